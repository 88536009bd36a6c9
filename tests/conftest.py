"""What several test files share: a clock turned by hand, and stores that are proved sound when their test ends."""

import asyncio
import contextlib
import gc
import signal

import hypothesis
import pytest

pytest.register_assert_rewrite("support")  # before any of it is imported

from support.command import Server
from support.disks import SIZE_MIB, mounted
from support.paths import TESTS
from support.stores import ENGINES, HandClock, Under

from tornado_signal.errors import Unavailable

# How long an example takes says something about the machine, not about the code; nothing is left behind.
# Every run has other examples.
hypothesis.settings.register_profile(
    "suite",
    max_examples=40,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("suite"), max_examples=20)
hypothesis.settings.load_profile("suite")


# A shell's background job ignores SIGINT, and whatever a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


# The files that take longest begin first, and several others are left to fill the time at the end.
LONGEST = [
    "containers",
    "proxies",
    "attacks_connections",
    "systemd_real",
    "soak",
    "redis_faults",
    "redis",
    "several_servers",
    "attacks_watching",
    "workers",
    "attacks_websockets",
    "bench",
    "client_js",
    "room",
    "room_python",
    "pythons",
    "attacks_store",
    "client_streams",
    "full_store",
    "bindings",
    "server",
    "care",
    "bare_websocket",
    "demo",
    "documents",
    "commands",
    "rescue",
    "eventsource",
    "store_model",
    "transport_life",
    "tls_connections",
    "tls",
    "store",
    "openapi",
    "store_additions",
    "peers",
    "packaging",
    "artefacts",
    "examples",
    "client_peers",
    "client_socket",
    "crash",
    "fuzz",
    "other_peers",
    "errors_and_routes",
    "monitoring",
    "abandoned",
    "clock_jumps",
    "waits",
    "client",
    "requests",
    "admin",
    "leveldb",
    "listing_state",
    "streams",
    "disk_full",
]
PLACE = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}


def pytest_collection_modifyitems(items):
    """What tests need shows in their folder and fixtures."""
    for item in items:
        if (folder := item.path.relative_to(TESTS).parts[0]) in ("browser", "system"):
            item.add_marker(folder)
        if "small_disk" in item.fixturenames:
            item.add_marker("root")
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if any(parameters.get(name) in ("redis", "redis-cluster") for name in ("engine", "name")):
            item.add_marker("servers")
    items.sort(key=lambda item: PLACE.get(item.path.name, len(PLACE)))


def pytest_collection_finish():
    """Thousands of tests and what they import stay to the end: no garbage collection of a test looks through them."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(params=sorted(ENGINES))
def engine(request, tmp_path, clock):
    """What makes stores of one engine; a test that uses it runs with each."""
    return ENGINES[request.param](tmp_path, clock)


@pytest.fixture
def open_store(io_loop, engine):
    """A function that opens a store; when the test ends each store is checked, reopened and checked again."""
    opened = {}

    async def open_one(name="data", **options):
        store = await engine.open(name, **options)
        opened[name] = (store, options)
        return store

    async def prove():
        for name, (store, options) in opened.items():
            with contextlib.suppress(Unavailable):  # the test has closed it
                await engine.check(store)
            await store.close()
            again = await engine.open(name, **options)
            try:
                await engine.check(again)
            finally:
                await again.close()

    yield open_one
    io_loop.run_sync(prove)


@pytest.fixture
def store(io_loop, open_store):
    """A fresh store with random codes, under `TIMEOUT_MS`."""
    return io_loop.run_sync(open_store)


@pytest.fixture
def under():
    """A function that makes a store speak for one origin: `under(store, origin)`."""
    return lambda store, origin="https://one.example": Under(store, origin)


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


@pytest.fixture
def small_disk(tmp_path):
    """A filesystem of its own with little room."""
    with mounted(tmp_path / "disk", SIZE_MIB) as path:
        yield path
