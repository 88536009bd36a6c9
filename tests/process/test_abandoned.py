"""Slow, dead and very many readers: each is let go in time, nothing is left of any of them, and nobody else waits."""

import asyncio
import gc
import json
import os
import socket
import struct
import time
import weakref
from pathlib import Path

import pytest
from support.command import Server
from support.service import ORIGIN, head, with_origin
from support.sse import open_stream

from tornado_signal.http.request import Request
from tornado_signal.transport import connection, exchange, listener

pytest_plugins = ["support.http_fixtures"]

BOUND_S = 20
MANY = 1000  # of each kind: waiters on sessions and streams of topics
ROUNDS = 4
CROWD = 3000


def open_socket(port, receive_bytes=None):
    """A client's socket; what it does not read is the server's to keep."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.connect(("127.0.0.1", port))
    return client


def reset(client):
    """Go away without a word of farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client):
    """Say that nothing more will be sent, and keep the rest open."""
    client.shutdown(socket.SHUT_WR)


GOODBYES = {"FIN": socket.socket.close, "RST": reset, "half": half_close}


def poll_request(code, **fields):
    """The bytes of a poll."""
    data = json.dumps({"code": code, "side": "offerer", "wait": 60, **fields}).encode()
    return head("POST", "/poll", with_origin(ORIGIN, [("Content-Length", str(len(data)))])) + data


def requests_that_wait(code, topic="lobby"):
    """One of each kind of request that waits."""
    return {
        "poll": poll_request(code),
        "listing": head("GET", "/nobody/sessions?wait=60", with_origin(ORIGIN)),
        "topic's stream": head("GET", f"/{topic}/events", with_origin(ORIGIN)),
        "session's stream": head("GET", f"/events?code={code}&side=offerer", with_origin(ORIGIN)),
    }


async def reaches(found, expected):
    """Wait until `found()` is what is expected; the loop does its work meanwhile."""
    async with asyncio.timeout(BOUND_S):
        while found() != expected:  # noqa: ASYNC110 (objects that go tell nobody)
            await asyncio.sleep(0.01)


def alive():
    """How many of the objects that a request needs are there."""
    gc.collect()
    kinds = (connection.Connection, exchange.Exchange, Request)
    return sum(isinstance(each, kinds) for each in gc.get_objects())


# One at a time.


@pytest.mark.parametrize("goodbye", GOODBYES)
@pytest.mark.parametrize("kind", requests_that_wait(""))
async def test_a_waiter_is_freed_when_its_client_goes(kind, goodbye, service):
    """The moment a client goes away nobody waits for it, and nothing is kept of it."""
    code = await service.offer()
    gone = []
    start_request = service.application.start_request

    def watched(server_conn, request_conn):
        gone.append(weakref.ref(request_conn))
        return start_request(server_conn, request_conn)

    service.application.start_request = watched
    client = open_socket(service.port)
    client.sendall(requests_that_wait(code)[kind])
    await reaches(lambda: len(service.store.watches), 1)
    assert len(gone) == 1
    began_s = time.monotonic()
    GOODBYES[goodbye](client)
    await reaches(lambda: len(service.store.watches), 0)
    assert time.monotonic() - began_s < 1
    client.close()
    del client

    def left():
        gc.collect()
        return sum(ref() is not None for ref in gone)

    await reaches(left, 0)


@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_a_reader_that_stops_reading(whose, start_service, monkeypatch):
    """A stream whose client reads nothing is dropped after a while; until then no more than a bound is kept for it."""
    monkeypatch.setattr(connection, "STALLED_S", 0.5)
    monkeypatch.setattr(listener, "TICK_S", 0.1)
    service = await start_service(max_side_bytes=100_000_000)
    code = await service.offer()
    client = open_socket(service.port, 4096)
    kind = f"{whose}'s stream"
    client.sendall(requests_that_wait(code)[kind])
    await reaches(lambda: len(service.store.watches), 1)
    (kept,) = service_connections()
    text = "x" * 100_000
    most = 0

    async def write():
        if whose == "topic":
            await service.offer(offer=text)
        else:
            await service.post("/answer", code=code, side="answerer", candidate=text)

    for _ in range(100):
        await write()
        most = max(most, kept._transport.get_write_buffer_size())
        if not len(service.store.watches):
            break
    assert most < 1_000_000, "10 MB came, and most of it was kept for a reader that does not read"
    await reaches(lambda: len(service.store.watches), 0)
    del kept
    await reaches(lambda: len(service_connections()), 0)
    client.close()
    assert len(await service.sessions()) > (1 if whose == "topic" else 0)  # others are served as ever


def service_connections():
    """The transport's connections that are there."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, connection.Connection)]


async def test_a_reader_that_is_slow_but_reads(start_service, monkeypatch):
    """A client that reads a little at a time is not dropped, and gets all of it."""
    monkeypatch.setattr(connection, "STALLED_S", 1.0)
    service = await start_service(max_side_bytes=100_000_000)
    code = await service.offer()
    async with open_stream(service.port, f"/events?code={code}&side=offerer") as stream:
        for n in range(40):
            await service.post("/answer", code=code, side="answerer", candidate=str(n) * 100_000)
        for n in range(40):
            (event,) = await stream.take()
            assert event.data["candidate"][:2] == str(n)[0] + str(n)[-1]
            await asyncio.sleep(0.03)  # it is this client that is slow


# Thousands.


def read_status(pid):
    """Resident memory of a process, in KB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


async def test_thousands_come_and_go(service):
    """Thousands of waiters and streams that are opened and abandoned leave no watch and no object behind."""
    code = await service.offer()
    waits = list(requests_that_wait(code).values())
    for _ in range(ROUNDS):
        clients = []
        for n in range(MANY):
            clients.append(open_socket(service.port))
            clients[-1].sendall(waits[n % len(waits)])
            if n % 100 == 0:
                await asyncio.sleep(0)
        await reaches(lambda: len(service.store.watches), MANY)
        for n, client in enumerate(clients):
            GOODBYES[["FIN", "RST"][n // 2 % 2]](client)
        clients.clear()
        await reaches(lambda: len(service.store.watches), 0)
        assert service.store.watches._by_tick == {}
    await reaches(alive, 0)


@pytest.fixture
def server(tmp_path):
    """The installed command as a process."""
    started = Server("--data-dir", tmp_path / "data", "--durability", "os", "--admin-port", 0)
    yield started
    started.end()


def fill(server, requests):
    """Open a connection for each request and send it; once a later request is answered, all of these wait."""
    port = int(server.url.rpartition(":")[2])
    clients = []
    for request in requests:
        clients.append(open_socket(port))
        clients[-1].sendall(request)
    return clients


def descriptors(server):
    """How many descriptors the server has open."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_memory_does_not_grow(server):
    """From round to round of thousands that are abandoned the server's memory stays what it was."""
    code = server.offer()
    kinds = [poll_request(code), head("GET", "/lobby/events", with_origin(ORIGIN))]
    assert server.call("/health")[0] == 200
    idle, sizes = descriptors(server), []
    for _ in range(ROUNDS):
        clients = fill(server, kinds * MANY)
        deadline_s = time.monotonic() + BOUND_S
        while descriptors(server) < idle + len(clients):
            assert time.monotonic() < deadline_s
            server.call("/health")
        for n, client in enumerate(clients):
            GOODBYES[["FIN", "RST"][n // 2 % 2]](client)
        while descriptors(server) > idle:
            assert time.monotonic() < deadline_s
            server.call("/health")
        sizes.append(read_status(server.process.pid))
    # The first round fills what the allocator keeps for the next ones.
    assert max(sizes[2:]) - sizes[1] < 1500, sizes


def receive(client, what):
    """Read until something has come."""
    got = b""
    while what not in got:
        data = client.recv(10_000)
        assert data, got
        got += data
    return got


def loop_cpu_s(server):
    """The CPU time of the thread that runs a server's event loop: another process that takes the CPU does not count."""
    return int(Path(f"/proc/{server.process.pid}/schedstat").read_text().split()[0]) / 1e9


def test_a_crowd_that_is_woken_stalls_nobody(server):
    """One session that thousands wait for is told to all of them, while another request is answered as ever."""
    pollers = fill(server, [head("GET", "/lobby/sessions?wait=0", with_origin(ORIGIN))] * (CROWD // 2))
    listeners = fill(server, [head("GET", "/lobby/events", with_origin(ORIGIN))] * (CROWD // 2))
    for clients, first in ((pollers, b'"cursor":'), (listeners, b"id: ")):
        for client in clients:
            client.settimeout(BOUND_S)
            receive(client, first)
    (asking,) = fill(server, [b""])
    health = head("GET", "/health", with_origin(ORIGIN))

    def ask():
        """Ask for something small; the CPU time that the server's loop has used until it is answered."""
        before_s = loop_cpu_s(server)
        asking.sendall(health)
        assert asking.recv(10_000).startswith(b"HTTP/1.1 200")
        return loop_cpu_s(server) - before_s

    shares = []
    for _ in range(3):  # LevelDB may be merging in one of them; a stall slows all
        cursor = server.call("/lobby/sessions?wait=0")[1]["cursor"]
        for client in pollers:
            client.sendall(head("GET", f"/lobby/sessions?wait=60&since={cursor}", with_origin(ORIGIN)))
        until_s = time.perf_counter() + 1
        while time.perf_counter() < until_s:
            ask()
        before_s = loop_cpu_s(server)
        code = server.offer().encode()
        until_s, used_s = time.perf_counter() + 1, []
        while time.perf_counter() < until_s:
            used_s.append(ask())
        for client in pollers + listeners:
            receive(client, code)
        shares.append(max(used_s) / (loop_cpu_s(server) - before_s))
    for client in [*pollers, *listeners, asking]:
        client.close()
    assert min(shares) < 0.5, shares  # of all that the crowd costs; a stall is all of it
