"""The operator's listener: alive, ready, and why not."""

import logging

import pytest
from service import ORIGIN, head

pytest_plugins = ["http_fixtures"]


@pytest.fixture
def ask(service):
    """A coroutine function that asks the admin listener, without an Origin."""

    async def call(method, path):
        response = await service.raw(head(method, path, [("Host", "x")]), method, service.admin_port)
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
    service.application.draining = True
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
