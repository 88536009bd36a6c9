"""Slow, dead and numerous readers are disconnected in time, leave nothing behind and delay nobody."""

import asyncio
import gc
import json
import os
import socket
import time
from pathlib import Path

import pytest
from support import rpc
from support.raw_http import reset
from support.service import ORIGIN, head, with_origin
from support.sse import open_stream
from support.waiting import until

from tornado_signal.http.request import Request
from tornado_signal.transport import connection, listener, stream

pytest_plugins = ["support.http_fixtures"]

BOUND_S = 20
MANY = 1000  # of each kind: waiters on sessions and streams of topics
ROUNDS = 4
CROWD = 3000


def open_socket(port, receive_bytes=None):
    """Return a client's socket with a small receive buffer, so that unread data stays at the server."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.connect(("127.0.0.1", port))
    return client


def half_close(client):
    client.shutdown(socket.SHUT_WR)


GOODBYES = {"FIN": socket.socket.close, "RST": reset, "half": half_close}


def abandon(clients):
    """Have some clients go away, in turn politely and without a word."""
    for n, client in enumerate(clients):
        GOODBYES[["FIN", "RST"][n // 2 % 2]](client)


def poll_request(code, **fields):
    data = json.dumps({"code": code, "side": "offerer", "wait": 60, **fields}).encode()
    return head("POST", "/poll", with_origin(ORIGIN, [("Content-Length", str(len(data)))])) + data


def requests_that_wait(code):
    """One of each kind of request that waits."""
    return {
        "poll": poll_request(code),
        "listing": head("GET", "/nobody/sessions?wait=60", with_origin(ORIGIN)),
        "topic's stream": head("GET", "/lobby/events", with_origin(ORIGIN)),
        "session's stream": head("GET", f"/events?code={code}&side=offerer", with_origin(ORIGIN)),
    }


def alive(*kinds):
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, kinds)]


@pytest.mark.parametrize(
    ("kind", "goodbye"),
    [(kind, "RST") for kind in requests_that_wait("")] + [("poll", "FIN"), ("topic's stream", "half")],
)
async def test_waiter_is_released_when_its_client_disconnects(kind, goodbye, service):
    code = await service.offer()
    client = open_socket(service.port)
    client.sendall(requests_that_wait(code)[kind])
    await rpc.until(lambda: len(service.store.watches) == 1)
    GOODBYES[goodbye](client)
    await rpc.until(lambda: not service.store.watches)  # long before the wait is over
    client.close()
    del client
    await rpc.until(lambda: not alive(connection.Connection, stream.HTTPStream, Request))


@pytest.mark.parametrize("whose", ["topic", "session"])
async def test_stream_of_a_stalled_client_is_closed_with_little_memory(whose, start_service, monkeypatch):
    monkeypatch.setattr(connection, "STALLED_S", 0.5)
    monkeypatch.setattr(listener, "TICK_S", 0.1)
    service = await start_service(max_body_bytes=25_000_000)
    code = await service.offer()
    client = open_socket(service.port, 4096)
    kind = f"{whose}'s stream"
    client.sendall(requests_that_wait(code)[kind])
    await rpc.until(lambda: len(service.store.watches) == 1)
    (kept,) = alive(connection.Connection)
    text = "x" * 100_000
    most = 0
    for _ in range(100):
        if whose == "topic":
            await service.offer(offer=text)
        else:
            await service.post("/answer", code=code, side="answerer", candidate=text)
        most = max(most, kept._transport.get_write_buffer_size())
        if not len(service.store.watches):
            break
    assert most < 1_000_000, "10 MB came, and most of it was kept for a reader that does not read"
    await rpc.until(lambda: not service.store.watches)
    del kept
    await rpc.until(lambda: not alive(connection.Connection))
    client.close()
    assert len(await service.sessions()) > (1 if whose == "topic" else 0)  # others are served normally


async def test_slow_reader_is_not_disconnected(start_service, monkeypatch):
    monkeypatch.setattr(connection, "STALLED_S", 3.0)
    service = await start_service(max_body_bytes=25_000_000)
    code = await service.offer()
    async with open_stream(service.port, f"/events?code={code}&side=offerer") as stream:
        for n in range(40):
            await service.post("/answer", code=code, side="answerer", candidate=str(n) * 100_000)
        for n in range(40):
            (event,) = await stream.take()
            assert event.data["candidate"][:2] == str(n)[0] + str(n)[-1]
            await asyncio.sleep(0.09)  # it is this client that is slow


def fill(server, requests):
    """Open a connection for each request and send it. They all wait once a later request has its response."""
    port = server.port
    clients = []
    for request in requests:
        clients.append(open_socket(port))
        clients[-1].sendall(request)
    return clients


def test_memory_does_not_grow_from_round_to_round(start):
    server = start("--durability", "os")
    code = server.offer()
    kinds = [poll_request(code), head("GET", "/lobby/events", with_origin(ORIGIN))]
    assert server.call("/health")[0] == 200
    process = Path(f"/proc/{server.process.pid}")

    def descriptors():
        """Return the number of open connections, after all earlier requests have responses."""
        server.call("/health")
        return len(os.listdir(process / "fd"))

    def anonymous_kb():
        """Return the memory that the server itself allocated, in KB: no pages of files, which the kernel may drop."""
        lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) + int(lines["VmSwap"].split()[0])

    idle, sizes_kb = descriptors(), []
    for _ in range(ROUNDS):
        clients = fill(server, kinds * MANY)
        until(lambda: descriptors() >= idle + 2 * MANY)
        abandon(clients)
        until(lambda: descriptors() <= idle)
        sizes_kb.append(anonymous_kb())
    # The first rounds fill what the allocator keeps for the next ones.
    assert max(sizes_kb[2:]) - max(sizes_kb[:2]) < 1500, sizes_kb


def receive(client, what):
    got = b""
    while what not in got:
        data = client.recv(10_000)
        assert data, got
        got += data
    return got


def loop_cpu_s(server):
    """Return the CPU time of the thread of a server's event loop, without the time of other processes."""
    return int(Path(f"/proc/{server.process.pid}/schedstat").read_text().split()[0]) / 1e9


def test_waking_many_waiters_stalls_no_request(start):
    server = start("--durability", "os")
    pollers = fill(server, [head("GET", "/lobby/sessions?wait=0", with_origin(ORIGIN))] * (CROWD // 2))
    listeners = fill(server, [head("GET", "/lobby/events", with_origin(ORIGIN))] * (CROWD // 2))
    for client in pollers + listeners:
        client.settimeout(BOUND_S)
    for client in pollers:
        receive(client, b'"cursor":')
    for client in listeners:
        receive(client, b"id: ")
    (asking,) = fill(server, [b""])
    health = head("GET", "/health", with_origin(ORIGIN))

    def ask():
        """Send a small request. Return the CPU time of the server's loop until its response."""
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
