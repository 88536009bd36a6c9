"""Clients that disconnect while they wait leave nothing behind."""

import gc
import os
import socket

import pytest
from support import rpc
from support.processes import memory_bytes
from support.raw_http import reset
from support.service import request
from support.waiting import until

from tornado_signal.http.request import Request
from tornado_signal.transport import connection, stream

GOODBYES = {"FIN": socket.socket.close, "RST": reset, "half": lambda client: client.shutdown(socket.SHUT_WR)}


def requests_that_wait(code):
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

    def descriptors():
        """Return the number of open files, after all earlier requests have responses."""
        assert server.call("/health")[0] == 200
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))

    idle, sizes_kb = descriptors(), []
    for _ in range(4):
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in requests]
        for client, sent in zip(clients, requests, strict=True):
            client.sendall(sent)
        until(lambda: descriptors() >= idle + len(requests))
        for number, client in enumerate(clients):
            GOODBYES[["FIN", "RST"][number // 2 % 2]](client)
        until(lambda: descriptors() <= idle)
        sizes_kb.append(sum(memory_bytes(server.process.pid, name) for name in ("RssAnon", "VmSwap")) // 1024)
    # The first rounds fill what the allocator keeps for the next ones.
    assert max(sizes_kb[2:]) - max(sizes_kb[:2]) < 1500, sizes_kb
