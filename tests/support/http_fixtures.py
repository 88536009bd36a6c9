"""Fixtures for HTTP tests. Load them with `pytest_plugins = ["support.http_fixtures"]`."""

import asyncio
import contextlib
import logging

import pytest

from .service import Service


@pytest.fixture
def transport():
    return "own"


async def finish_requests():
    """Wait for requests to other servers, which continue without their caller (`Endpoint.send`)."""
    left = [task for task in asyncio.all_tasks() if task.get_coro().__qualname__ == "_HTTPConnection.run"]
    await asyncio.gather(*left, return_exceptions=True)


@pytest.fixture
def start_service(io_loop, tmp_path, transport, caplog):
    """A function that starts a server. Finally its store must be consistent, and `caplog` must have no errors."""
    started = []

    async def start(**settings):
        service = Service(tmp_path / f"data{len(started)}", transport, **settings)
        await service.start()
        started.append(service)
        return service

    yield start
    for service in started:
        io_loop.run_sync(service.stop)
    io_loop.run_sync(finish_requests)
    records = [record for when in ("setup", "call", "teardown") for record in caplog.get_records(when)]
    assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def service(io_loop, start_service):
    return io_loop.run_sync(start_service)


@pytest.fixture
def clients(request, io_loop, service):
    """Three clients of one origin, from `open_socket` of the test's file."""
    stack = contextlib.AsyncExitStack()

    async def connect():
        return [await stack.enter_async_context(request.module.open_socket(service)) for _ in range(3)]

    yield io_loop.run_sync(connect)
    io_loop.run_sync(stack.aclose)
