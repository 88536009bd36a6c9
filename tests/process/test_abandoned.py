"""Slow, dead and numerous clients are disconnected in time, leave nothing behind and delay no other client."""

import contextlib
import gc
import os
import resource
import socket
import statistics
import time
from pathlib import Path

import pytest
from support import rpc
from support.command import ORIGIN
from support.processes import memory_bytes
from support.raw_http import reset, silent_clients
from support.service import request
from support.waiting import until

from tornado_signal.http.request import Request
from tornado_signal.transport import connection, stream

GOODBYES = {"FIN": socket.socket.close, "RST": reset, "half": lambda client: client.shutdown(socket.SHUT_WR)}


def requests_that_wait(code):
    """One of each kind of request that waits."""
    return {
        "poll": request("POST", "/poll", {"code": code, "side": "offerer", "wait": 60}),
        "listing": request("GET", "/other/sessions?wait=60"),
        "topic's stream": request("GET", "/lobby/events"),
        "session's stream": request("GET", f"/events?code={code}&side=offerer"),
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
    client = socket.create_connection(("127.0.0.1", service.port))
    client.sendall(requests_that_wait(code)[kind])
    await rpc.until(lambda: len(service.store.watches) == 1)
    GOODBYES[goodbye](client)
    await rpc.until(lambda: not service.store.watches)  # long before the wait is over
    client.close()
    del client
    await rpc.until(lambda: not alive(connection.Connection, stream.HTTPStream, Request))


def test_memory_does_not_grow_from_round_to_round(start):
    server = start("--durability", "os")
    waiting = requests_that_wait(server.offer())
    requests = [waiting["poll"], waiting["topic's stream"]] * 1000
    process = Path(f"/proc/{server.process.pid}")

    def descriptors():
        """Return the number of open files, after all earlier requests have responses."""
        assert server.call("/health")[0] == 200
        return len(os.listdir(process / "fd"))

    def anonymous_kb():
        """Return the memory that the server itself allocated: no pages of files, which the kernel may drop."""
        lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return int(lines["RssAnon"].split()[0]) + int(lines["VmSwap"].split()[0])

    idle, sizes_kb = descriptors(), []
    for _ in range(4):
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in requests]
        for client, sent in zip(clients, requests, strict=True):
            client.sendall(sent)
        until(lambda: descriptors() >= idle + len(requests))
        for number, client in enumerate(clients):
            GOODBYES[["FIN", "RST"][number // 2 % 2]](client)
        until(lambda: descriptors() <= idle)
        sizes_kb.append(anonymous_kb())
    # The first rounds fill what the allocator keeps for the next ones.
    assert max(sizes_kb[2:]) - max(sizes_kb[:2]) < 1500, sizes_kb


SILENT = 10_000
SLOW = 100  # of each kind
MEDIAN_S, MOST_S = 0.5, 10  # for each request of the others, beyond ten times what it takes when all is quiet
HEAD = f"POST /lobby/offer HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\n".encode()
UNREAD = b"GET /openapi.json HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n\r\n" * 20
# Input that is sent in one piece and then byte by byte. All but the last is never complete, so it must have no effect.
SLOWLY = {
    b"GET /": b"a",
    HEAD + b"X-Slow: ": b"a",
    HEAD: b"X: y\r\n",
    HEAD + b"Content-Length: 200000\r\n\r\n{": b" ",
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n": b"1\r\n \r\n",
    UNREAD: UNREAD,
}


@pytest.mark.slow
def test_ten_thousand_silent_clients_and_hundreds_of_slow_ones_delay_no_other(start):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < SILENT + 2000:
        pytest.skip("needs more open files than this machine allows")
    server = start()

    def seconds(number):
        began_s = time.monotonic()
        code = server.offer(f"topic-{number}")
        assert server.codes(f"topic-{number}") == [code]
        return time.monotonic() - began_s

    usual_s = 10 * statistics.median(map(seconds, range(5)))
    open_files = Path(f"/proc/{server.process.pid}/fd")
    idle = len(os.listdir(open_files))
    with silent_clients(server.port, SILENT), contextlib.ExitStack() as ends:
        clients = []
        for begin, drop in [*SLOWLY.items()] * SLOW:
            client = ends.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            client.sendall(begin)
            client.setblocking(False)
            clients.append((client, drop))
        until(lambda: len(os.listdir(open_files)) >= idle + SILENT)
        taken_s = []
        for number in range(5, 45):
            for client, drop in clients:
                with contextlib.suppress(OSError):  # the server had enough, or reads no more
                    client.send(drop)
            taken_s.append(seconds(number))
        memory_mib = memory_bytes(server.process.pid) / 2**20
        print(f"median {statistics.median(taken_s):.4f} s, most {max(taken_s):.4f} s, {memory_mib:.0f} MiB")
        assert statistics.median(taken_s) < MEDIAN_S + usual_s
        assert max(taken_s) < MOST_S + usual_s
        assert memory_mib < 300
        assert server.codes("lobby") == []
    until(lambda: len(os.listdir(open_files)) <= idle + 5)
    assert server.stop() == 0
    assert not [line for line in server.log if "ERROR" in line or "Traceback" in line]
