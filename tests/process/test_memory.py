"""Too little memory for what clients send: they are let go, others are served, nothing acknowledged is lost."""

import re
import resource
import socket
import threading
from pathlib import Path

from support.command import BOUND_S, ORIGIN
from support.waiting import until

GREEDY = 600
ROOM_BYTES = 40 << 20  # for all of them, who want nearly four times as much
BEGUN = b'{"info": "i", "offer": "' + b"x" * 260_000
HEAD = f"POST /greedy/offer HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\nContent-Length: 262000\r\n\r\n".encode()


def test_large_bodies_wait_for_memory_while_small_requests_pass(start):
    server = start()
    pid = server.process.pid
    clients = []
    reading = threading.Thread(target=lambda: server.log.extend(server.process.stderr))  # it would wait for a reader
    reading.start()
    try:
        kept = {server.offer(offer=f"before {number}"): f"before {number}" for number in range(20)}
        status = Path(f"/proc/{pid}/status").read_text()
        now_bytes = int(re.search(r"VmSize:\s+(\d+) kB", status)[1]) * 1024
        resource.prlimit(pid, resource.RLIMIT_AS, (now_bytes + ROOM_BYTES, resource.RLIM_INFINITY))
        for _ in range(GREEDY):
            clients.append(socket.create_connection(("127.0.0.1", server.port), timeout=BOUND_S))
            clients[-1].sendall(HEAD + BEGUN)
        until(lambda: sum(map(is_over, clients)) >= GREEDY / 4)
        kept |= {server.offer(offer=f"meanwhile {number}"): f"meanwhile {number}" for number in range(20)}
        check(server, kept)
        for client in clients:
            client.close()
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        large = "x" * 250_000
        kept |= {server.offer(offer=large): large}
        check(server, kept)
        assert server.codes("greedy") == []
        server.process.terminate()
        assert server.process.wait(BOUND_S) == 0
        reading.join(BOUND_S)
        assert any("MemoryError" in line for line in server.log)
        assert not any("xxx" in line for line in server.log)
        check(start(), kept)
    finally:
        for client in clients:
            client.close()
        server.process.kill()
        reading.join(BOUND_S)


def is_over(client):
    client.setblocking(False)
    try:
        return client.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def check(server, kept):
    for code, offer in kept.items():
        status, found = server.call("/poll", {"code": code, "side": "answerer"})
        assert (status, found["offer"]) == (200, offer)
