"""What several test files share: a clock turned by hand, and stores that are proved sound when their test ends."""

import asyncio
import contextlib
import signal
from types import SimpleNamespace

import hypothesis
import pytest

pytest.register_assert_rewrite("support")  # before any of it is imported

from support.command import Server
from support.stores import TIMEOUT_MS, HandClock, Under

from tornado_signal.errors import Unavailable
from tornado_signal.stores.leveldb.store import Store

# How long an example takes says something about the machine, not about the code; nothing is left behind.
hypothesis.settings.register_profile(
    "suite", deadline=None, database=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("suite")


# A shell's background job ignores SIGINT, and whatever a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: what they wait for passes while others work, and nobody waits at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session", autouse=True)
def default_loop():
    """The loop that Tornado puts aside while its own is current; left to asyncio, nobody would close it."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def clock():
    """A clock that a test turns by hand."""
    return HandClock()


@pytest.fixture
def open_store(io_loop, tmp_path, clock):
    """A function that opens a store; when the test ends each store is checked, reopened and checked again."""
    opened = {}

    def open_one(name="data", **options):
        path = tmp_path / name
        options = {"timeout_ms": TIMEOUT_MS, "durability": "os"} | options
        opened[path] = SimpleNamespace(store=Store(path, **options), options=options)
        return opened[path].store

    async def prove():
        for path, each in opened.items():
            with contextlib.suppress(Unavailable):  # the test has closed it
                each.store.check(clock.ms)
            await each.store.close()
            again = Store(path, **each.options)
            try:
                again.check(clock.ms)
            finally:
                await again.close()

    yield open_one
    io_loop.run_sync(prove)


@pytest.fixture
def store(io_loop, open_store):
    """A fresh store with random codes, under `TIMEOUT_MS`."""

    async def opening():
        return open_store()

    return io_loop.run_sync(opening)


@pytest.fixture
def under(clock):
    """A function that makes a store speak for one origin, at the time of the clock: `under(store, origin)`."""
    return lambda store, origin="https://one.example": Under(store, clock, origin)


@pytest.fixture
def start(tmp_path):
    """A function that starts the installed command, on the same data each time if not told otherwise."""
    started = []

    def starting(*arguments, port=0, data="data"):
        started.append(Server("--data-dir", tmp_path / data, *arguments, port=port))
        return started[-1]

    yield starting
    for server in started:
        server.end()
