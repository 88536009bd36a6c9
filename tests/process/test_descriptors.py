"""File descriptors or memory that run out: clients are served, refused or let go, and nothing acknowledged is lost."""

import contextlib
import http.client
import json
import os
import re
import resource
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.command import BOUND_S, ORIGIN, run
from support.processes import cpu_s
from support.service_manager import check_fullness
from support.waiting import until

from tornado_signal.limits.per_address import SPARE_CONNECTIONS
from tornado_signal.process.tuning import DESCRIPTORS_KEPT

ROOM = 40
OFFER = os.urandom(45_000).hex()
IDLE_CPU_S = 0.5  # of one second, also for a busy machine; a loop that spins takes all of it


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def connect(server):
    return contextlib.closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=BOUND_S))


def post(connection, path, **body):
    send(connection, path, **body)
    return answer(connection)


def send(connection, path, **body):
    connection.request("POST", path, json.dumps(body), {"Origin": ORIGIN})


def answer(connection):
    response = connection.getresponse()
    return response.status, response.headers, json.load(response)


def served(server):
    with contextlib.suppress(OSError, http.client.HTTPException):
        return server.call("/health")[0] == 200
    return False


@pytest.mark.parametrize("check", [["--check"], []])
def test_descriptor_limit_below_the_store_prevents_the_start(check, tmp_path):
    done = run("serve", *check, "--port", 0, prefix=["prlimit", f"--nofile={DESCRIPTORS_KEPT}"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(rf".*{DESCRIPTORS_KEPT} open files are allowed.*LimitNOFILE.*\n", done.stderr)
    assert not (tmp_path / "data").exists()


def test_more_clients_than_descriptors_are_served_refused_or_closed(start):
    server = start("--admin-port", 0, prefix=["prlimit", f"--nofile={DESCRIPTORS_KEPT + ROOM}"])
    with contextlib.ExitStack() as ends:
        clients = [ends.enter_context(connect(server)) for _ in range(ROOM + 3 * SPARE_CONNECTIONS)]
        welcome, others = clients[:ROOM], clients[ROOM:]
        for client in welcome:
            client.connect()
        for client in others:  # at once: the server does not wait long for what these say
            client.connect()
            with contextlib.suppress(OSError):
                send(client, "/late/offer", info="i", offer="o")
        refused = 0
        for client in others:  # while no connection is idle, and would be closed for them
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, headers, found = answer(client)
                assert (status, found) == (503, {"error": "Service unavailable"})
                assert int(headers["Retry-After"]) >= 1
                assert headers["Access-Control-Allow-Origin"] == ORIGIN
                refused += 1
        assert refused >= SPARE_CONNECTIONS
        codes = []
        for number, client in enumerate(welcome):
            status, _, found = post(client, f"/{number}/offer", info="i", offer=OFFER)
            assert status == 200
            codes.append(found["code"])
        for client, code in zip(welcome, codes, strict=True):
            status, _, found = post(client, "/poll", code=code, side="answerer")
            assert (status, found["offer"]) == (200, OFFER)
    until(lambda: served(server))
    assert server.codes("late") == []
    assert server.stop() == 0
    expected = (" INFO tornado_signal", "operator.fullness: ", "service.refusals: clients are disconnected: ")
    assert all(any(text in line for text in expected) for line in server.log)


@pytest.mark.slow
def test_full_server_is_visible_everywhere_and_logged_twice(start, manager):
    manager, name = manager
    limit = ["prlimit", f"--nofile={DESCRIPTORS_KEPT + 3}"]
    server = start("--admin-port", 0, prefix=limit, NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
    check_fullness(server, manager, "descriptors", count=6)
    assert any("room for 3 connections, by the limit of open files" in line for line in server.log)


def test_exhausted_descriptors_keep_serving_open_connections(start):
    server = start("--admin-port", 0)
    with connect(server) as known, contextlib.ExitStack() as ends:
        status, _, found = post(known, "/lobby/offer", info="i", offer="o")
        assert status == 200
        _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (descriptors(server) + ROOM, hard))
        others = [ends.enter_context(socket.create_connection((known.host, known.port))) for _ in range(3 * ROOM)]
        until(lambda: descriptors(server) >= resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0])
        before_s, began_s = cpu_s(server.process.pid), time.monotonic()
        while time.monotonic() < began_s + 2:
            assert post(known, "/poll", code=found["code"], side="answerer")[0] == 200
            assert not served(server)
            time.sleep(0.1)
        assert cpu_s(server.process.pid) - before_s < 2 * IDLE_CPU_S
        for other in others:
            other.close()
        until(lambda: served(server))
    with contextlib.ExitStack() as ends:
        clients = [ends.enter_context(connect(server)) for _ in range(ROOM // 2)]
        assert {post(each, "/lobby/offer", info="i", offer="o")[0] for each in clients} == {200}
    assert server.stop() == 0


# Too little memory for what clients send


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
