"""File descriptors that run out: who has a connection is served, others are told or let go, and it ends by itself."""

import contextlib
import http.client
import json
import os
import resource
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from bench.processes import Target
from support.command import BOUND_S, COMMAND, ORIGIN, Server, environment

from tornado_signal.limits.per_address import SPARE_CONNECTIONS
from tornado_signal.server import DESCRIPTORS_KEPT

ROOM = 40
OFFER = os.urandom(45_000).hex()
IDLE_CPU_S = 0.5  # of one second, also for a busy machine; a loop that spins takes all of it


def allow(server, files):
    """Change how many files a server may have open from now on."""
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (files, hard))


def descriptors(server):
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def connect(server):
    """A connection that is opened when it is used."""
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=BOUND_S)


def post(connection, path, body):
    """Status, headers and JSON."""
    send(connection, path, body)
    return answer(connection)


def send(connection, path, body):
    connection.request("POST", path, json.dumps(body), {"Origin": ORIGIN})


def answer(connection):
    """Status, headers and JSON."""
    response = connection.getresponse()
    return response.status, response.headers, json.load(response)


def until(true):
    deadline_s = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def served(server):
    """Whether a newcomer is served."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return server.call("/health")[0] == 200
    return False


def test_too_few_to_serve_anybody(tmp_path):
    """With descriptors for the store only, the server refuses to start, and says what to raise."""
    for check in ([], ["--check"]):
        command = ["prlimit", f"--nofile={DESCRIPTORS_KEPT}", COMMAND, "serve", *check, "--port", "0"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=BOUND_S, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert f"{DESCRIPTORS_KEPT} open files are allowed" in done.stderr
        assert "LimitNOFILE" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.fixture
def little_room(tmp_path):
    """A server with descriptors for `ROOM` connections."""
    files = DESCRIPTORS_KEPT + ROOM
    prefix = ["prlimit", f"--nofile={files}"]
    server = Server("--data-dir", tmp_path / "data", "--admin-port", 0, prefix=prefix)
    yield server
    server.end()


def test_more_clients_than_descriptors(little_room):
    """As many as there is room for are served, some more are told to come later, the rest is let go."""
    server = little_room
    with contextlib.ExitStack() as ends:
        clients = [ends.enter_context(contextlib.closing(connect(server))) for _ in range(ROOM + 3 * SPARE_CONNECTIONS)]
        welcome, others = clients[:ROOM], clients[ROOM:]
        for client in welcome:
            client.connect()
        for client in others:  # at once: the server does not wait long for what these say
            client.connect()
            with contextlib.suppress(OSError):
                send(client, "/late/offer", {"info": "i", "offer": "o"})
        codes = []
        for number, client in enumerate(welcome):
            status, _, found = post(client, f"/{number}/offer", {"info": "i", "offer": OFFER})
            assert status == 200
            codes.append(found["code"])
        told = 0
        for client in others:
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, headers, found = answer(client)
                assert (status, found) == (503, {"error": "Service unavailable"})
                assert int(headers["Retry-After"]) >= 1
                assert headers["Access-Control-Allow-Origin"] == ORIGIN
                told += 1
        assert told >= SPARE_CONNECTIONS
        for client, code in zip(welcome, codes, strict=True):
            status, _, found = post(client, "/poll", {"code": code, "side": "answerer"})
            assert (status, found["offer"]) == (200, OFFER)
    until(lambda: served(server))
    assert server.codes("late") == []
    assert server.stop() == 0
    assert all(" INFO tornado_signal" in line for line in server.log)


def test_none_left(tmp_path):
    """When not even one is left, who was there goes on, the loop does not spin, and who comes later is served."""
    server = Server("--data-dir", tmp_path / "data", "--admin-port", 0)
    try:
        with contextlib.ExitStack() as ends:
            known = ends.enter_context(contextlib.closing(connect(server)))
            status, _, found = post(known, "/lobby/offer", {"info": "i", "offer": "o"})
            assert status == 200
            allow(server, descriptors(server) + ROOM)
            others = [ends.enter_context(socket.create_connection((known.host, known.port))) for _ in range(3 * ROOM)]
            until(lambda: descriptors(server) >= resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0])
            target = Target(server.url, server.process.pid)
            before_s, began_s = target.cpu_s(), time.monotonic()
            while time.monotonic() < began_s + 2:
                assert post(known, "/poll", {"code": found["code"], "side": "answerer"})[0] == 200
                assert not served(server)
                time.sleep(0.1)
            assert target.cpu_s() - before_s < 2 * IDLE_CPU_S
            for other in others:
                other.close()
            until(lambda: served(server))
        with contextlib.ExitStack() as ends:
            clients = [ends.enter_context(contextlib.closing(connect(server))) for _ in range(ROOM // 2)]
            assert {post(each, "/lobby/offer", {"info": "i", "offer": "o"})[0] for each in clients} == {200}
        assert server.stop() == 0
    finally:
        server.end()


def test_none_for_the_store(tmp_path):
    """LevelDB cannot open its next file: 503 with Retry-After until it can, and nothing acknowledged is lost."""
    server = Server("--data-dir", tmp_path / "data", "--admin-port", 0)
    try:
        kept, refused = {}, 0
        with contextlib.closing(connect(server)) as client:
            post(client, "/lobby/offer", {"info": "i", "offer": "first"})
            allow(server, descriptors(server))
            deadline_s = time.monotonic() + BOUND_S
            while refused < 3:
                assert time.monotonic() < deadline_s
                status, headers, found = post(client, "/lobby/offer", {"info": "i", "offer": f"{len(kept)} {OFFER}"})
                if status == 200:
                    kept[found["code"]] = f"{len(kept)} {OFFER}"
                else:
                    assert (status, found) == (503, {"error": "Service unavailable"})
                    assert int(headers["Retry-After"]) >= 1
                    refused += 1
            allow(server, DESCRIPTORS_KEPT)
            until(lambda: server.call("/readyz", base=server.admin_url, origin=None)[0] == 200)
            for code, offer in kept.items():
                status, _, found = post(client, "/poll", {"code": code, "side": "answerer"})
                assert (status, found["offer"]) == (200, offer)
            assert post(client, "/lobby/offer", {"info": "i", "offer": "last"})[0] == 200
        assert len(kept) > 10
        assert server.stop() == 0
        assert any("refusing requests until it is open again" in line for line in server.log)
    finally:
        server.end()
