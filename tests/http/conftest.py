import asyncio

import pytest
from support.service import ORIGIN
from support.y_webrtc import RawClient


@pytest.fixture
def loop():
    """The event loop of a server that runs in its own thread. Tests `on_both_loops` also run with another one."""
    return "uvloop"


@pytest.fixture(params=[True, False], ids=["websocket", "http"])
def websocket(request):
    return request.param


@pytest.fixture
def charged(service, monkeypatch):
    """The units that requests and messages have been charged, in order."""
    units_of_all, charge = [], service.shared.limits.charge_request

    def recording(client, now_ms, units=1):
        units_of_all.append(units)
        return charge(client, now_ms, units)

    monkeypatch.setattr(service.shared.limits, "charge_request", recording)
    return units_of_all


@pytest.fixture
def pass_time(io_loop):
    """A coroutine function that turns the clock of the event loop forward, and lets happen what is due then.

    The clock is not turned back, or else timers that the test leaves would be due minutes later.
    """
    loop, passed_s = io_loop.asyncio_loop, 0.0
    time = loop.time

    async def pass_(seconds):
        nonlocal passed_s
        until_s = passed_s + seconds
        while passed_s < until_s:  # in steps in which no client becomes silent
            passed_s = min(until_s, passed_s + 5)
            for _ in range(10):
                await asyncio.sleep(0)

    loop.time = lambda: time() + passed_s
    return pass_


@pytest.fixture
def open_raw(io_loop):
    """A coroutine function that opens a client of another library's protocol at a path of a server."""
    opened = []

    async def opening(server, path, origin=ORIGIN, kind=RawClient, **options):
        client = await kind(f"ws://127.0.0.1:{server.port}{path}", origin, **options).__aenter__()
        opened.append(client)
        return client

    yield opening

    async def close():
        for client in opened:
            client.socket.transport.abort()

    io_loop.run_sync(close)
