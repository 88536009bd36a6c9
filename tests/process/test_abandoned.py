"""Clients that disconnect while they wait leave nothing behind."""

import os
import socket

from support.processes import memory_bytes
from support.raw_http import reset
from support.service import request
from support.waiting import until


def test_memory_does_not_grow_from_round_to_round(start):
    server = start("--durability", "os")
    poll = request("POST", "/poll", {"code": server.offer(), "side": "offerer", "wait": 60})
    requests = [poll, request("GET", "/lobby/events")] * 1000

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
            (reset if number // 2 % 2 else socket.socket.close)(client)
        until(lambda: descriptors() <= idle)
        sizes_kb.append(sum(memory_bytes(server.process.pid, name) for name in ("RssAnon", "VmSwap")) // 1024)
    # The first rounds fill what the allocator keeps for the next ones.
    assert max(sizes_kb[2:]) - max(sizes_kb[:2]) < 1500, sizes_kb
