"""Slow, dead and numerous clients are disconnected in time, leave nothing behind and delay nobody."""

import contextlib
import gc
import json
import os
import resource
import socket
import statistics
import threading
import time
from pathlib import Path

import pytest
from support import rpc
from support.command import ORIGIN
from support.processes import memory_bytes
from support.raw_http import reset, silent_clients
from support.service import head, with_origin
from support.waiting import until

from tornado_signal.http.request import Request
from tornado_signal.transport import connection, listener, stream

pytest_plugins = ["support.http_fixtures"]

BOUND_S = 20
MANY = 1000  # of each kind: waiters on sessions and streams of topics
ROUNDS = 4


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


# Ten thousand silent connections, slow senders and slow readers at once


SILENT = 10_000
SLOW = 100  # of each kind
FLOWS = 40
MEDIAN_S, MOST_S = 0.5, 10  # for each request of the others, beyond ten times what it takes when all is quiet

READING = b"GET /openapi.json HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n\r\n" * 20
HEAD = f"POST /lobby/offer HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\n".encode()
# Input that is sent in one piece and then byte by byte. It is never complete, so it must have no effect.
SLOWLY = {
    "a request line": (b"GET /", b"a"),
    "a header": (HEAD + b"X-Slow: ", b"a"),
    "headers": (HEAD, b"X: y\r\n"),
    "a body": (HEAD + b"Content-Length: 200000\r\n\r\n{", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.fixture
def server(start):
    """A server that may have as many descriptors as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SILENT + 2000:
        pytest.skip("needs more open files than this machine allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hostile(port, stopping):
    """Drip, and ask without reading, until it is to stop."""
    slow = [each for each in (*SLOWLY.values(), (READING, READING)) for _ in range(SLOW)]
    with contextlib.ExitStack() as ends:
        clients = []
        for begin, drop in slow:
            clients.append((ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=BOUND_S)), drop))
            clients[-1][0].sendall(begin)
        for client, _ in clients:
            client.setblocking(False)
        while not stopping.wait(0.1):
            for client, drop in clients:
                with contextlib.suppress(OSError):  # the server had enough, or reads no more
                    client.send(drop)


@pytest.mark.slow
def test_large_exports_stall_nobody_and_free_their_memory(server):
    port = server.port
    server.offer("before")
    quiet_s = []
    for number in range(5):
        flow(server, f"quiet-{number}", quiet_s)
    usual_s = 10 * statistics.median(quiet_s)
    open_files = Path(f"/proc/{server.process.pid}/fd")
    idle = len(os.listdir(open_files))
    with silent_clients(port, SILENT):
        stopping = threading.Event()
        attacking = threading.Thread(target=hostile, args=(port, stopping))
        attacking.start()
        try:
            until(lambda: len(os.listdir(open_files)) >= idle + SILENT + len(SLOWLY) * SLOW)
            taken_s = []
            for number in range(FLOWS):
                flow(server, f"topic-{number}", taken_s)
            memory_mib = memory_bytes(server.process.pid) / 2**20
        finally:
            stopping.set()
            attacking.join(BOUND_S)
        print(f"median {statistics.median(taken_s):.4f} s, most {max(taken_s):.4f} s, {memory_mib:.0f} MiB")
        assert statistics.median(taken_s) < MEDIAN_S + usual_s
        assert max(taken_s) < MOST_S + usual_s
        assert memory_mib < 300
        assert server.codes("lobby") == []  # of all that was begun nothing was done
    until(lambda: len(os.listdir(open_files)) <= idle + 5)
    flow(server, "after", [])
    assert server.stop() == 0
    assert not [line for line in server.log if "ERROR" in line or "Traceback" in line]


def flow(server, topic, taken_s):
    """A whole exchange, each request of which is a success and on a connection of its own."""

    def ask(path, body=None):
        began_s = time.monotonic()
        status, found = server.call(path, body)
        taken_s.append(time.monotonic() - began_s)
        assert status == 200, found
        return found

    code = ask(f"/{topic}/offer", {"info": "i", "offer": "o"})["code"]
    assert [each["code"] for each in ask(f"/{topic}/sessions")["sessions"]] == [code]
    for body in ({"candidate": "c"}, {"answer": "a"}):
        ask("/answer", {"code": code, "side": "answerer", **body})
    assert ask("/poll", {"code": code, "side": "offerer"}) == {"answer": "a", "answerCandidates": ["c"]}
