"""A clock turned by hand, the engines, and stores as one origin sees them."""

from tornado_signal.session import Side
from tornado_signal.stores.leveldb import expiry, layout, records
from tornado_signal.stores.leveldb import store as store_module
from tornado_signal.stores.leveldb.store import LevelDBStore
from tornado_signal.system.clock import Clock

TIMEOUT_MS = 1000
BEGIN_MS = 1_700_000_000_000
NEVER_MS = 3_600_000  # between two looks for what has expired: tests that are about that look themselves


class HandClock(Clock):
    """Time that stands still until a test turns it, `clock.ms += 5`."""

    def __init__(self, ms=BEGIN_MS):
        super().__init__()
        self.ms = ms

    def now_ms(self):
        return self.ms

    def advance_to(self, floor_ms):
        self.ms = max(self.ms, floor_ms)


class LevelDB:
    """How tests make the LevelDB engine, and prove that it is sound."""

    def __init__(self, path, clock):
        self._path, self._clock = path, clock

    async def open(self, name, **options):
        return await open_leveldb(self._path / name, self._clock, **{"durability": "os", **options})

    async def check(self, store):
        store.check()

    async def sweep_some(self, store):
        """Have it delete a part of what has expired."""
        await store.expiry.sweep(store.now_ms())

    async def holds_nothing(self, store):
        """Whether there is nothing left but what the store needs for itself."""
        own = {layout.FORMAT_KEY, layout.IDENTITY_KEY, layout.COUNTERS_KEY}
        return set(store.database.view.iterator(include_value=False)) <= own

    @staticmethod
    def take_small_steps(monkeypatch):
        """Make its steps so small that a test takes all of them."""
        monkeypatch.setattr(records, "LISTING_STEP", 3)
        monkeypatch.setattr(records, "PASSING_STEP", 2)
        monkeypatch.setattr(store_module, "SETTLING_STEP", 1)
        monkeypatch.setattr(expiry, "STEP", 8)


ENGINES = {"leveldb": LevelDB}


async def open_leveldb(path, clock=None, **options):
    """A directory opened by the LevelDB engine, without work in the background."""
    store = LevelDBStore(path, clock or Clock(), **{"timeout_ms": TIMEOUT_MS, "sweep_interval_ms": NEVER_MS, **options})
    await store.open()
    return store


class Under:
    """A store as one origin sees it: every operation without its first argument."""

    def __init__(self, store, origin):
        self.store, self.origin = store, origin

    async def create(self, topic="topic", info="info", offer="offer", **options):
        return await self.store.create(self.origin, topic, info, offer, **options)

    async def answer(self, code, answer="answer", **options):
        await self.store.answer(self.origin, code, answer, **options)

    async def add(self, code, side, *candidates, **options):
        await self.store.add_candidates(self.origin, code, side, candidates, **options)

    async def read(self, code, side, **options):
        """What one side has sent."""
        return await self.store.read(self.origin, code, side.other, **options)

    async def withdraw(self, code, side=Side.OFFERER, **options):
        await self.store.withdraw(self.origin, code, side, **options)

    async def refresh(self, code, side=Side.OFFERER, **options):
        return await self.store.refresh(self.origin, code, side, **options)

    async def begin(self):
        """Where a reader of a topic begins that knows nothing of it."""
        return (await self.store.begin_topic(None))[0]

    async def knowing(self, topic="topic"):
        """The position of a reader that knows all that is listed now."""
        position = await self.begin()
        for event in await self.events(position, topic):
            position = event[0]
        return position

    async def events(self, position, topic="topic"):
        """All that has happened to a topic since a position: triples of the position after it, code, and reason.

        The reason is None for what has come.
        """
        found, more = [], True
        while more:
            step = await self.store.topic_step(self.origin, topic, position)
            found += step.departures
            found += [(arrival.position, arrival.listed.session.code, None) for arrival in step.arrivals]
            position, more = step.position, step.more
        return found

    async def news(self, position, topic="topic"):
        """The same without positions."""
        return [event[1:] for event in await self.events(position, topic)]

    async def state(self, topic="topic", since=None):
        return await self.store.listing_state(self.origin, topic, since)

    async def sessions(self, topic="topic", limit=None):
        steps = [step async for step in self.store.sessions(self.origin, topic, limit)]
        return [listed for step in steps for listed in step]

    async def codes(self, topic="topic"):
        return [listed.session.code for listed in await self.sessions(topic)]

    async def topics(self, offset=0, limit=1000):
        return await self.store.topics(self.origin, offset, limit)


async def sweep(store):
    """Sweep until nothing is left to do; how many keys went in each step."""
    steps = []
    while deleted := await store.expiry.sweep(store.now_ms()):
        steps.append(deleted)
    return steps
