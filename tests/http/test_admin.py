"""The admin listener: liveness, readiness, metrics and maintenance requests."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket

import pytest
from support.command import BOUND_S
from support.rpc import until
from support.service import ORIGIN, head

from tornado_signal.errors import Unavailable
from tornado_signal.lifecycle import DRAINING
from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.stores.leveldb.binding import plyvel

GETS = ("/healthz", "/readyz", "/metrics")
MAINTENANCE = ("/inspect", "/compact")


@pytest.fixture
def call_admin(service):
    """A coroutine function that sends a request without an Origin to the admin listener."""

    async def call(method, path):
        response = await service.raw(head(method, path, [("Host", "localhost")]), method, service.admin_port)
        assert response.headers["Content-Type"] == "application/json"
        assert "Access-Control-Allow-Origin" not in response.headers
        return response.status, response.body and response.json

    return call


@pytest.mark.parametrize("path", GETS[:2])
async def test_healthy_server_is_alive_and_ready(path, service, call_admin):
    code = await service.offer()
    assert await call_admin("GET", path) == (200, {"status": "ok"})
    assert await call_admin("HEAD", path) == (200, b"")
    assert [session["code"] for session in await service.sessions()] == [code]


async def test_metrics_are_served_without_the_data_directory(service):
    data = service.settings.data_dir
    aside = data.rename(data.with_name("aside"))
    data.touch()
    response = await service.raw(head("GET", "/metrics", [("Host", "localhost")]), "GET", service.admin_port)
    data.unlink()
    aside.rename(data)
    assert response.status == 200
    assert b"\ntornado_signal_store_available 1.0\n" in response.body
    assert b"store_size_bytes" not in response.body


async def test_draining_server_or_server_without_store_is_alive_but_not_ready(service, call_admin):
    async def reasons():
        assert await call_admin("GET", "/healthz") == (200, {"status": "ok"})
        responses = [await call_admin("GET", "/readyz"), *[await call_admin("POST", path) for path in MAINTENANCE]]
        assert {(status, fields["status"]) for status, fields in responses} == {(503, "unavailable")}
        return {fields["reason"] for _, fields in responses}

    await service.close_store()
    assert all("database" in reason for reason in await reasons())
    service.shared.lifecycle.reach(DRAINING)
    assert await reasons() == {"draining"}


async def test_unknown_paths_and_methods_are_refused_in_json(call_admin):
    for method in ("GET", "POST"):
        for path in ("/index.html", "/topics", "/healthz/", "/lobby/sessions", "/metrics/x"):
            assert await call_admin(method, path) == (404, {"error": "Not found"})
    for method in ("PUT", "DELETE", "OPTIONS"):
        for path in GETS:
            assert await call_admin(method, path) == (405, {"error": "Method not allowed"})
        for path in MAINTENANCE:
            assert (await call_admin(method, path))[0] in (403, 405)
    for method, paths in (("POST", GETS), ("GET", MAINTENANCE)):
        for path in paths:
            assert await call_admin(method, path) == (405, {"error": "Method not allowed"})


async def test_internal_error_is_500_and_logged(service, call_admin, monkeypatch, caplog):
    async def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(service.store, "probe", fail)
    assert await call_admin("GET", "/readyz") == (500, {"error": "Internal server error"})
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [ZeroDivisionError]
    caplog.clear()


async def test_admin_paths_are_404_on_the_public_listener(service):
    for path in (*GETS, *MAINTENANCE):
        assert (await service.call("GET", path)).status == 404


# Maintenance, which is only for programs of the operator.


async def post(service, path, headers=(("Host", "127.0.0.1"),)):
    return await service.raw(head("POST", path, headers), "POST", service.admin_port)


async def test_inspection_counts_everything_committed(service):
    offers = [(f"topic {number % 3}", "i", f"{number}" + "x" * 3000) for number in range(600)]
    codes = await asyncio.gather(*(service.store.create(ORIGIN, *offer) for offer in offers))
    entries = dict(service.store.database.view.iterator())
    response = await post(service, "/inspect")
    assert response.status == 200
    expected = {"sessions": len(codes), "unanswered": len(codes), "entries": len(entries), "topics": 3, "origins": 1}
    assert response.json.items() >= expected.items()
    assert response.json["total_bytes"] == sum(len(key) + len(value) for key, value in entries.items())
    assert response.json["size_bytes"] == service.store.database.size_bytes()
    assert not service.store.database._pinned
    assert (len(response.json["largest_origins"]), len(response.json["largest_topics"])) == (1, 3)
    assert len((await post(service, "/inspect?most=2")).json["largest_topics"]) == 2
    for max_items in ("1001", "-1", "", "x", "%C2%B2"):
        assert (await post(service, f"/inspect?most={max_items}")).status == 400


@pytest.mark.parametrize("path", MAINTENANCE)
async def test_maintenance_requests_from_browsers_are_refused(path, service):
    own = ("Host", "127.0.0.1")
    names = ["evil.example", "127.0.0.1.evil.example", "192.168.0.1", "[::2]", "", "x:1", "localhost.evil.example:80"]
    for headers in (
        *([own, ("Origin", origin)] for origin in ("http://127.0.0.1:9000", "null", "")),
        *([own, ("Sec-Fetch-Site", site)] for site in ("none", "same-origin")),
        *([("Host", host)] for host in (*names, "127.0.0.1:80:80", "::1", "127.1")),
    ):
        response = await post(service, path, headers)
        assert response.status in (400, 403), headers  # some of these hosts are malformed
        assert set(response.json) == {"error"}
        assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize("end", ["closed", "failed"])
async def test_inspection_fails_if_the_store_closes(end, service, caplog):
    await asyncio.gather(*(service.store.create(ORIGIN, "lobby", "i", "o") for _ in range(400)))
    inspecting = asyncio.create_task(service.store.maintenance.inspect(1))
    await asyncio.sleep(0)
    assert len(service.store.database._pinned) == 1
    assert not inspecting.done()
    if end == "closed":
        await service.close_store()
    else:
        service.store.database.failed(plyvel.CorruptionError(b"bad block"))
    with pytest.raises(Unavailable) as refused:
        await inspecting
    assert refused.value.reason == "the database was closed or reopened"
    await until(lambda: end == "closed" or service.store.available)
    caplog.clear()


async def test_compaction_keeps_sessions(service):
    code = await service.offer()
    response = await post(service, "/compact")
    assert response.status == 200
    assert set(response.json) == {"before_bytes", "after_bytes"}
    assert response.json["after_bytes"] == service.store.database.size_bytes()
    assert [session["code"] for session in await service.sessions()] == [code]


def test_idle_connections_do_not_block_probes(start):
    kinds = [b"", b"GET /", b"GET / HTTP/1.1\r\n\r\n"]
    kinds += [b"POST /compact HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
    server = start("--admin-port", 0)
    port = int(server.admin_url.rpartition(":")[2])
    descriptors = f"/proc/{server.process.pid}/fd"
    before = len(os.listdir(descriptors))
    alive = head("GET", "/healthz", [("Host", "localhost")])
    with contextlib.ExitStack() as stack:

        def connect():
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), BOUND_S))

        clients = [connect() for _ in range(ADMIN_CONNECTIONS)]
        for client in clients:
            client.sendall(alive)
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
        for sent in kinds:
            idle = [connect() for _ in range(2 * ADMIN_CONNECTIONS)]
            for client in idle:
                with contextlib.suppress(ConnectionError):
                    client.sendall(sent)
            for _ in range(3):
                assert server.call("/readyz", base=server.admin_url, origin=None)[0] == 200
            assert len(os.listdir(descriptors)) <= before + ADMIN_CONNECTIONS
        assert server.call("/health")[0] == 200
    assert server.stop() == 0


NAMES = ("evil.example", "evil.example:3001", "127.0.0.1.evil.example", "localhost.evil.example", "localhost.", "a")


async def test_request_with_a_dns_name_as_host_is_403(service):
    await service.offer()
    rows = [*itertools.product(NAMES[:1], GETS + MAINTENANCE, ("1.1", "1.0"), ("GET", "HEAD", "POST", "OPTIONS"))]
    for host, path, version, method in [*rows, *itertools.product(NAMES[1:], GETS + MAINTENANCE, ("1.1",), ("GET",))]:
        for target, named in ((path, host), (f"http://{host}{path}", "localhost")):
            raw = f"{method} {target} HTTP/{version}\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode()
            response = await service.raw(raw, method, service.admin_port)
            assert response.status == 403, raw
            assert method == "HEAD" or set(response.json) == {"error"}


async def test_names_of_the_setting_are_served_and_the_reason_names_it(start_service):
    service = await start_service(admin_hosts=("signal", "signal.example"))
    for host in ("signal", "signal:3001", "SIGNAL.example:3001"):
        for path in GETS:
            assert (await service.raw(head("GET", path, [("Host", host)]), "GET", service.admin_port)).status == 200
        assert (await post(service, "/compact", [("Host", host)])).status == 403  # without a token only from here
    response = await service.raw(head("GET", "/metrics", [("Host", "other")]), "GET", service.admin_port)
    assert (response.status, "--admin-hosts" in response.json["error"]) == (403, True)


LOCAL = ("localhost", "localhost:1", "127.0.0.1:9000", "127.8.8.8", "[::1]", "[::1]:80", "10.1.2.3:80", "[fd00::1]:1")


async def test_request_with_an_address_or_localhost_as_host_is_served(service):
    for path in GETS:
        for host in LOCAL:
            assert (await service.raw(head("GET", path, [("Host", host)]), "GET", service.admin_port)).status == 200
        without_host = f"GET {path} HTTP/1.0\r\n\r\n".encode()  # only from old clients, never from browsers
        assert (await service.raw(without_host, "GET", service.admin_port)).status == 200
    for path, host in itertools.product(MAINTENANCE, LOCAL):
        expected = 403 if host.startswith(("10.", "[fd")) else 200  # maintenance is for this machine only
        assert (await post(service, path, [("Host", host)])).status == expected, host
