"""The admin listener: liveness, readiness and metrics."""

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import types

import pytest
from support.command import BOUND_S
from support.service import head

from tornado_signal.limits.per_address import ADMIN_CONNECTIONS
from tornado_signal.service.refusals import CALM_S
from tornado_signal.system.lifecycle import DRAINING

GETS = ("/healthz", "/readyz", "/metrics")


@pytest.fixture
def call_admin(service):
    """A coroutine function that sends a request without an Origin to the admin listener."""

    async def call(method, path):
        response = await service.ask_admin(path, method)
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
    response = await service.ask_admin("/metrics")
    data.unlink()
    aside.rename(data)
    assert response.status == 200
    assert b"\ntornado_signal_store_available 1.0\n" in response.body
    assert b"store_size_bytes" not in response.body


async def test_draining_server_or_server_without_store_is_alive_but_not_ready(service, call_admin):
    async def reason():
        assert await call_admin("GET", "/healthz") == (200, {"status": "ok"})
        status, fields = await call_admin("GET", "/readyz")
        assert (status, fields["status"]) == (503, "unavailable")
        return fields["reason"]

    await service.close_store()
    assert "database" in await reason()
    service.shared.lifecycle.reach(DRAINING)
    assert await reason() == "draining"


async def test_unknown_paths_and_methods_are_refused_in_json(call_admin):
    for method in ("GET", "POST"):
        for path in ("/index.html", "/topics", "/healthz/", "/lobby/sessions", "/metrics/x", "/inspect", "/compact"):
            assert await call_admin(method, path) == (404, {"error": "Not found"})
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        for path in GETS:
            assert await call_admin(method, path) == (405, {"error": "Method not allowed"})


async def test_internal_error_is_500_and_logged(service, call_admin, monkeypatch, caplog):
    async def fail():
        raise ZeroDivisionError

    monkeypatch.setattr(service.store, "probe", fail)
    assert await call_admin("GET", "/readyz") == (500, {"error": "Internal server error"})
    assert [record.exc_info[0] for record in caplog.records if record.levelno >= logging.ERROR] == [ZeroDivisionError]
    caplog.clear()


async def test_admin_paths_are_404_on_the_public_listener(service):
    for path in GETS:
        assert (await service.call("GET", path)).status == 404


def test_idle_connections_do_not_block_probes(start):
    kinds = [b"", b"GET /", b"GET / HTTP/1.1\r\n\r\n"]
    kinds += [b"POST /actions/drain HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"]
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
    rows = [*itertools.product(NAMES[:1], GETS, ("1.1", "1.0"), ("GET", "HEAD", "POST", "OPTIONS"))]
    for host, path, version, method in [*rows, *itertools.product(NAMES[1:], GETS, ("1.1",), ("GET",))]:
        for target, named in ((path, host), (f"http://{host}{path}", "localhost")):
            raw = f"{method} {target} HTTP/{version}\r\nHost: {named}\r\nConnection: close\r\n\r\n".encode()
            response = await service.raw(raw, method, service.admin_port)
            assert response.status == 403, raw
            assert method == "HEAD" or set(response.json) == {"error"}


async def test_names_of_the_setting_are_served_and_the_reason_names_it(start_service):
    service = await start_service(admin_hosts=("signal", "signal.example"))
    for host in ("signal", "signal:3001", "SIGNAL.example:3001"):
        for path in GETS:
            assert (await service.ask_admin(path, Host=host)).status == 200
    response = await service.ask_admin("/metrics", Host="other")
    assert (response.status, "--admin-hosts" in response.json["error"]) == (403, True)


async def test_first_and_last_refused_request_of_a_reason_are_logged(service, caplog, monkeypatch):
    service.admin.policy.token = b"a token"
    refusals = service.admin.refusals
    rows = [
        (401, "/status", {}, "without the token of --admin-token-file"),
        (403, "/status", {"Origin": "https://a.example"}, "web pages have no access"),
        (403, "/healthz", {"Host": "a.example"}, "the Host is not an address; list this name in --admin-hosts"),
    ]
    for status, path, headers, _ in rows:
        for _ in range(3):
            assert (await service.ask_admin(path, **headers)).status == status
    refusals.check()
    later_s = asyncio.get_running_loop().time() + CALM_S
    monkeypatch.setattr(refusals, "_loop", types.SimpleNamespace(time=lambda: later_s))
    refusals.check()
    assert caplog.messages == [
        *(f"clients are refused ({status}): admin listener: {reason}" for status, _, _, reason in rows),
        *(
            f"clients are no longer refused ({status}): admin listener: {reason}; it was 3 requests"
            for status, _, _, reason in rows
        ),
    ]


LOCAL = ("localhost", "localhost:1", "127.0.0.1:9000", "127.8.8.8", "[::1]", "[::1]:80", "10.1.2.3:80", "[fd00::1]:1")


async def test_request_with_an_address_or_localhost_as_host_is_served(service):
    for path in GETS:
        for host in LOCAL:
            assert (await service.ask_admin(path, Host=host)).status == 200
        without_host = f"GET {path} HTTP/1.0\r\n\r\n".encode()  # only from old clients, never from browsers
        assert (await service.raw(without_host, "GET", service.admin_port)).status == 200
