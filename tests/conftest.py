"""What several test files share: a clock turned by hand, and stores that are proved sound when their test ends."""

import asyncio
import contextlib
import signal
from types import SimpleNamespace

import hypothesis
import pytest
from command import Server

from tornado_signal.errors import Unavailable
from tornado_signal.session import Side, TopicPosition
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


TIMEOUT_MS = 1000
BEGIN_MS = 1_700_000_000_000


class HandClock:
    """Time that stands still until a test turns it, `clock.ms += 5`; to the server it is a `Clock`."""

    def __init__(self, ms=BEGIN_MS):
        self.ms = ms

    def now_ms(self):
        return self.ms


class Under:
    """A store as one origin sees it at what is now by a clock: every operation without its first and last argument."""

    def __init__(self, store, clock, origin):
        self.store, self.clock, self.origin = store, clock, origin

    async def create(self, topic="topic", info="info", offer="offer", **options):
        return await self.store.create(self.origin, topic, info, offer, self.clock.ms, **options)

    async def answer(self, code, answer="answer", **options):
        await self.store.answer(self.origin, code, answer, self.clock.ms, **options)

    async def add(self, code, side, *candidates, **options):
        await self.store.add_candidates(self.origin, code, side, candidates, self.clock.ms, **options)

    async def read(self, code, side, **options):
        """What one side has sent."""
        return await self.store.read(self.origin, code, side.other, self.clock.ms, **options)

    async def withdraw(self, code, side=Side.OFFERER, **options):
        await self.store.withdraw(self.origin, code, side, self.clock.ms, **options)

    async def refresh(self, code, side=Side.OFFERER, **options):
        return await self.store.refresh(self.origin, code, side, self.clock.ms, **options)

    async def begin(self):
        """Where a reader of a topic begins that knows nothing of it."""
        return await self.store.begin_topic(self.clock.ms)

    async def events(self, position, topic="topic"):
        """All that has happened to a topic since a position: triples of the position after it, code, and reason.

        The reason is None for what has come. A position is as a client has it: without the store's own key.
        """
        found, more = [], True
        while more:
            step = await self.store.topic_step(self.origin, topic, position, self.clock.ms)
            found += [(TopicPosition(each.serial, position.listed), each.code, each.reason) for each in step.left]
            for listed in step.arrived:
                found.append((TopicPosition(step.position.serial, listed.session.serial), listed.session.code, None))
            position, more = step.position, step.more
        return found

    async def news(self, position, topic="topic"):
        """The same without positions."""
        return [event[1:] for event in await self.events(position, topic)]

    async def state(self, topic="topic"):
        return await self.store.listing_state(self.origin, topic, self.clock.ms)

    async def sessions(self, topic="topic", limit=None):
        steps = [step async for step in self.store.sessions(self.origin, topic, self.clock.ms, limit)]
        return [listed for step in steps for listed in step]

    async def codes(self, topic="topic"):
        return [listed.session.code for listed in await self.sessions(topic)]

    async def topics(self, offset=0, limit=1000):
        return await self.store.topics(self.origin, offset, limit, self.clock.ms)


async def sweep(store, now_ms):
    """Sweep until nothing is left to do; how many keys went in each step."""
    steps = []
    while deleted := await store.sweep(now_ms):
        steps.append(deleted)
    return steps


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
