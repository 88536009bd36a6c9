"""The operator's listener: alive, ready, and why not."""

import asyncio
import contextlib
import io
import itertools
import logging
import os
import random
import socket
import time

import pytest
from support.command import BOUND_S
from support.raw_http import read_all
from support.service import ORIGIN, head

from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.maintenance.backup import unpack
from tornado_signal.stores.leveldb import layout
from tornado_signal.stores.leveldb.binding import plyvel

pytest_plugins = ["support.http_fixtures"]


@pytest.fixture
def ask(service):
    """A coroutine function that asks the admin listener, without an Origin."""

    async def call(method, path):
        response = await service.raw(head(method, path, [("Host", "localhost")]), method, service.admin_port)
        assert response.headers["Content-Type"] == "application/json"
        assert "Access-Control-Allow-Origin" not in response.headers
        return response.status, response.body and response.json

    return call


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_all_is_well(path, ask):
    """A server that works is alive and ready; no Origin is needed to ask."""
    assert await ask("GET", path) == (200, {"status": "ok"})
    assert await ask("HEAD", path) == (200, b"")


async def test_ready_writes_to_the_store(service, ask):
    """Asking for readiness leaves the store as it was, and sound."""
    code = await service.offer()
    for _ in range(3):
        assert (await ask("GET", "/readyz"))[0] == 200
    assert [each["code"] for each in await service.sessions()] == [code]


async def test_draining(service, ask):
    """A server that stops is alive, but not ready."""
    service.site.draining = True
    assert await ask("GET", "/healthz") == (200, {"status": "ok"})
    assert await ask("GET", "/readyz") == (503, {"status": "unavailable", "reason": "draining"})


async def test_store_out_of_service(service, ask):
    """A server whose store cannot be used is alive, but not ready, and says why."""
    await service.close_store()
    assert await ask("GET", "/healthz") == (200, {"status": "ok"})
    status, found = await ask("GET", "/readyz")
    assert (status, found["status"]) == (503, "unavailable")
    assert "database" in found["reason"]


@pytest.mark.parametrize("path", ["/", "/topics", "/healthz/", "/lobby/sessions", "/metrics/x"])
async def test_other_paths(path, ask):
    """The admin listener has nothing of the public one, and answers other paths in JSON."""
    assert await ask("GET", path) == (404, {"error": "Not found"})
    assert await ask("POST", path) == (404, {"error": "Not found"})


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods(method, ask):
    """What is not GET or HEAD is refused in JSON."""
    for path in ("/healthz", "/readyz"):
        assert await ask(method, path) == (405, {"error": "Method not allowed"})


async def test_defect(service, ask, monkeypatch, caplog):
    """A defect is a 500 in JSON, and in the log."""

    async def broken():
        raise ZeroDivisionError

    monkeypatch.setattr(service.store, "probe", broken)
    assert await ask("GET", "/readyz") == (500, {"error": "Internal server error"})
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [ZeroDivisionError]
    caplog.clear()


async def test_the_public_listener_knows_nothing_of_it(service):
    """On the public listener the admin's paths do not exist."""
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await service.call("GET", path, origin=ORIGIN)).status == 404


# What only the operator's own programs may ask for.


async def post(service, path, headers=(("Host", "127.0.0.1"),)):
    """POST to the admin listener."""
    return await service.raw(head("POST", path, headers), "POST", service.admin_port)


def entries(response):
    """What a backup holds, and that it is whole."""
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/octet-stream"
    return dict(unpack(io.BytesIO(response.body).read))


async def test_a_backup_is_all_that_is_committed(service):
    """A backup has every key and value of the store, also those of a large one, in many steps."""
    codes = [await service.offer(offer=str(number) + "x" * 3000) for number in range(200)]
    held = dict(service.store.database.view.iterator())
    response = await post(service, "/backup")
    assert entries(response) == held
    assert len(held) == 3 * len(codes) + 203
    assert int(response.headers["Store-Bytes"]) == service.store.database.size_bytes()


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:9000", "127.8.8.8", "[::1]", "[::1]:80"])
@pytest.mark.parametrize("path", ["/backup", "/compact"])
async def test_names_of_this_machine(path, host, service):
    """Whoever asks this machine by one of its own names for itself is served."""
    assert (await post(service, path, [("Host", host)])).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        [("Host", "127.0.0.1"), ("Origin", "http://127.0.0.1:9000")],
        [("Host", "127.0.0.1"), ("Origin", "null")],
        [("Host", "127.0.0.1"), ("Origin", "")],
        [("Host", "127.0.0.1"), ("Sec-Fetch-Site", "none")],
        [("Host", "localhost"), ("Sec-Fetch-Site", "same-origin")],
        *[[("Host", host)] for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.1", "[::2]", "", "x:1")],
        *[[("Host", host)] for host in ("localhost.evil.example:80", "127.0.0.1:80:80", "::1", "127.1")],
    ],
)
@pytest.mark.parametrize("path", ["/backup", "/compact"])
async def test_no_page_may_ask(path, headers, service):
    """What a browser sends for a page, by whatever name of this machine, is refused, and nothing is told."""
    await service.offer()
    response = await post(service, path, headers)
    assert response.status in (400, 403)  # some of these names are no names
    assert set(response.json) == {"error"}
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("path", ["/backup", "/compact"])
async def test_care_by_other_methods(path, ask):
    """A link or a form's GET does nothing."""
    for method in ("GET", "PUT", "DELETE", "OPTIONS"):
        status, found = await ask(method, path)
        assert (status, found) in ((405, {"error": "Method not allowed"}), (403, {"error": "Forbidden"}))


@pytest.mark.parametrize("path", ["/backup", "/compact"])
async def test_care_while_there_is_no_service(path, service):
    """While the server stops, or its store is out of service, there is none of it, and the reason is told."""
    service.site.draining = True
    response = await post(service, path)
    assert (response.status, response.json) == (503, {"status": "unavailable", "reason": "draining"})
    service.site.draining = False
    await service.close_store()
    response = await post(service, path)
    assert response.status == 503
    assert "database" in response.json["reason"]


async def until(condition):
    """Wait for something that is about to become true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0.01)


async def begun(service, connection):
    """Ask for a backup that is larger than what the connection holds, and read its beginning alone."""
    rng = random.Random(1)
    await asyncio.gather(*[service.offer(offer=rng.randbytes(30_000).hex()) for _ in range(400)])
    await connection.send(head("POST", "/backup", [("Host", "localhost")]))
    assert b"200 OK" in await connection.reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("end", ["closed", "failed"])
async def test_the_store_goes_in_the_middle_of_a_backup(end, service, caplog):
    """The store is closed or fails in the middle: the connection breaks off, the log says why, nothing crashes."""
    async with service.connect(service.admin_port) as connection:
        await begun(service, connection)
        if end == "closed":
            await service.close_store()
        else:
            service.store.database.failed(plyvel.CorruptionError(b"bad block"))
        with contextlib.suppress(ConnectionError):
            assert not (await connection.reader.read()).endswith(b"0\r\n\r\n")
    await until(lambda: end == "closed" or service.store.database._snapshot)
    (record,) = [each for each in caplog.records if each.name == "tornado_signal.admin.application"]
    assert "a backup was not finished: the database was closed or reopened meanwhile" in record.getMessage()
    assert not any(each.exc_info for each in caplog.records)
    caplog.clear()


async def test_a_client_that_leaves_in_the_middle(service, caplog):
    """What was kept for a backup is given back when its client goes, without a word of complaint."""
    async with service.connect(service.admin_port) as connection:
        await begun(service, connection)
        assert len(service.store.database._pinned) == 1
    await until(lambda: not service.store.database._pinned)
    assert not any(each.levelno >= logging.ERROR for each in caplog.records)
    assert (await post(service, "/backup")).status == 200


async def test_a_client_that_does_not_read(service):
    """A backup waits for its reader: little is read ahead, others are served meanwhile, and it is whole in the end."""
    async with service.connect(service.admin_port) as connection:
        await begun(service, connection)
        steps = []
        for _ in range(50):
            steps.append(len(await service.sessions("elsewhere")))
            await service.offer("elsewhere")
        assert steps == list(range(50))
        body = await connection._body("POST", 200, {"Transfer-Encoding": "chunked"})
    held = dict(unpack(io.BytesIO(body).read))
    assert sum(key.endswith(layout.HEAD) and key.startswith(layout.SESSIONS) for key in held) >= 400
    assert not any(b"elsewhere" in key for key in held)


async def test_compaction(service):
    """A compaction tells both sizes, and loses nothing."""
    code = await service.offer()
    response = await post(service, "/compact")
    assert response.status == 200
    assert set(response.json) == {"before_bytes", "after_bytes"}
    assert response.json["after_bytes"] == service.store.database.size_bytes()
    assert [each["code"] for each in await service.sessions()] == [code]


# Connections of its own.


def descriptors(server):
    """How many descriptors a server has open."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def test_connections_are_bounded(start):
    """So many connections are served; one more is told, and closed; when one goes, there is room."""
    server = start("--admin-port", 0)
    port = int(server.admin_url.rpartition(":")[2])
    before = descriptors(server)
    alive = head("GET", "/healthz", [("Host", "localhost")])
    with contextlib.ExitStack() as ends:

        def connect():
            return ends.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_S))

        clients = [connect() for _ in range(ADMIN_CONNECTIONS)]
        for client in clients:
            client.sendall(alive)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        many = [connect() for _ in range(3 * ADMIN_CONNECTIONS)]
        many[0].sendall(alive)
        assert read_all(many[0]).startswith(b"HTTP/1.1 503")
        assert {read_all(client) for client in many[1:]} == {b""}
        assert descriptors(server) <= before + ADMIN_CONNECTIONS
        assert server.call("/health")[0] == 200
        clients.pop().close()
        until_s = time.monotonic() + BOUND_S
        while server.call("/readyz", base=server.admin_url, origin=None)[0] != 200:
            assert time.monotonic() < until_s
    assert server.stop() == 0


# Names that are not its own.


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:3001", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.", "a"]
)
async def test_other_names_are_refused(host, service):
    """A page that has its own name lead to this machine learns nothing, whatever it asks for and however."""
    await service.offer()
    paths = ("/healthz", "/readyz", "/metrics", "/backup", "/compact")
    for path, version, method in itertools.product(paths, ("1.1", "1.0"), ("GET", "HEAD", "POST", "OPTIONS")):
        for target, named in ((path, host), (f"http://{host}{path}", "localhost")):
            raw = f"{method} {target} HTTP/{version}\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode()
            response = await service.raw(raw, method, service.admin_port)
            assert response.status == 403, raw
            assert method == "HEAD" or response.json == {"error": "Forbidden"}


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:3001", "localhost", "localhost:3001", "10.1.2.3:80", "[::1]", "[fd00::1]:3001"]
)
async def test_addresses_are_taken(host, path, service):
    """Whoever asks by an address, as Prometheus does, or as localhost is served."""
    assert (await service.raw(head("GET", path, [("Host", host)]), "GET", service.admin_port)).status == 200


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_no_name_at_all(path, service):
    """An old client names no host, and no browser is like that."""
    assert (await service.raw(f"GET {path} HTTP/1.0\r\n\r\n".encode(), "GET", service.admin_port)).status == 200
