"""A manual clock, the storage engines, and a store from the view of one origin."""

import asyncio
import contextlib
import functools
import itertools
import re

import pytest

from tornado_signal.session import Removed, Side, content_code
from tornado_signal.settings.settings import Settings
from tornado_signal.stores.leveldb import layout, records, session_table
from tornado_signal.stores.leveldb import store as store_module
from tornado_signal.stores.leveldb.check import contradictions
from tornado_signal.stores.leveldb.memory import Record
from tornado_signal.stores.leveldb.store import LevelDBStore
from tornado_signal.stores.redis import check as redis_check
from tornado_signal.stores.redis import discovery
from tornado_signal.stores.redis.partitions import Partitions
from tornado_signal.stores.redis.store import RedisStore
from tornado_signal.system.clock import Clock

from . import redis_servers

TIMEOUT_MS = 1000
BEGIN_MS = 1_700_000_000_000
PARTITIONS = 16
NEVER_MS = 3_600_000  # the sweep interval, because tests sweep explicitly
LIMITS = ("max_sessions_per_origin", "max_candidates", "max_body_bytes", "max_store_bytes")
UNLIMITED = {"session_timeout_ms": TIMEOUT_MS, "min_free_bytes": 0} | dict.fromkeys(LIMITS, 2**53)


class HandClock(Clock):
    """A clock that stands still until a test changes it: `clock.ms += 5`."""

    def __init__(self, ms=BEGIN_MS):
        super().__init__()
        self.on_change = lambda ms: None
        self.ms = ms

    @property
    def ms(self):
        return self._ms

    @ms.setter
    def ms(self, ms):
        self._ms = ms
        self.on_change(ms)

    def now_ms(self):
        return self.ms

    def wall_s(self):
        return self.ms / 1000

    def advance_to(self, floor_ms):
        self.ms = max(self.ms, floor_ms)


class LevelDB:
    in_files = True  # what is read after a restart is what was written
    in_order = True  # concurrent operations run in order

    def __init__(self, path, clock):
        self._path, self._clock = path, clock

    async def open(self, name, **options):
        return await open_leveldb(self._path / name, self._clock, **{"durability": "os", **options})

    def code(self, origin, topic, offer):
        return content_code(origin, [topic], offer)

    def one_process(self, store):
        return store

    async def check(self, store):
        check_memory(store)

    def may_forget(self, store, position):
        """Return whether a reader is reset: the store was opened since, or has forgotten a later removal."""
        memory = store.memory
        return position.store != memory.generation or position.event < memory.removals._forgotten

    async def settled(self, store):
        await turns()

    async def sweep_some(self, store):
        await store.sweep(store.now_ms())

    async def holds_nothing(self, store):
        """Check that only the store's own keys are left."""
        own = {layout.FORMAT_KEY, layout.IDENTITY_KEY, layout.COUNTERS_KEY}
        assert set(store.database.snapshot.iterator(include_value=False)) <= own

    @staticmethod
    def take_small_steps(monkeypatch):
        monkeypatch.setattr(records, "LISTING_STEP", 3)
        monkeypatch.setattr(store_module, "REMOVALS_STEP", 3)
        monkeypatch.setattr(session_table, "STEP", 8)
        monkeypatch.setattr("tornado_signal.stores.leveldb.memory.MAX_REMOVALS", 3)


class Redis:
    in_files = False
    cluster, processes, in_order = False, 1, True
    prefixes = (f"test-{number}:" for number in itertools.count())

    def __init__(self, path, clock):
        self._server, self._wall_clock = redis_servers.with_hand_clock(self.cluster)
        self._clock, self._latest_ms, self._prefix = clock, 0, next(self.prefixes)
        clock.on_change = self._turn
        self._turn(clock.ms)

    def _turn(self, ms):
        self._latest_ms = max(self._latest_ms, ms)
        self._wall_clock.set(ms)

    async def open(self, name, **options):
        # The clock of a server must not be set back.
        self._clock.ms = self._latest_ms
        # On a busy machine a node can need seconds.
        options = {"session_timeout_ms": TIMEOUT_MS, "redis_timeout_ms": 30_000, **options}
        addresses = [("127.0.0.1", int(port)) for port in re.findall(":([0-9]+)", self._server.address)]
        prefix = f"{self._prefix}{name}:"
        store = Alternating([redis_store(addresses, prefix=prefix, **options) for _ in range(self.processes)])
        await store.open()
        return store

    def code(self, origin, topic, offer):
        return Partitions("", PARTITIONS).place(content_code(origin, [topic], offer), topic)

    def one_process(self, store):
        return store.stores[0]

    def may_forget(self, store, position):
        return False

    async def check(self, store):
        assert await redis_check.contradictions(store) == []

    async def settled(self, store):
        for each in store.stores:
            await received(each.change_feed)
        await turns()

    async def sweep_some(self, store):
        """Do nothing: Redis deletes expired sessions automatically."""

    async def holds_nothing(self, store):
        """Check that only the store's own keys are left after a minute, longer than a held offer lives."""
        self._clock.ms += 60_000
        left = [key async for keys in redis_check.all_keys(store.stores[0]) for key in keys]
        own = re.compile(b":(store|origins|processes|(held|claim|probe):[0-9a-f]+)$")
        assert [key for key in left if not own.search(key)] == []

    @staticmethod
    def take_small_steps(monkeypatch):
        monkeypatch.setattr(discovery, "LISTING_STEP", 3)
        monkeypatch.setattr(discovery, "EVENTS_STEP", 2)
        monkeypatch.setattr(discovery, "TOPICS_STEP", 2)


class Alternating:
    """A store with several processes. Each call uses the next process."""

    def __init__(self, stores):
        self.stores = stores
        self._turn = itertools.cycle(stores)

    def __getattr__(self, name):
        if name in ("use", "end_watches", "observe"):  # for all processes
            return lambda *arguments: [getattr(store, name)(*arguments) for store in self.stores]
        return getattr(next(self._turn), name)

    async def open(self):
        for store in self.stores:
            await store.open()

    async def close(self):
        for store in self.stores:
            await store.close()


class RedisCluster(Redis):
    """Redis Cluster with two processes."""

    cluster, processes, in_order = True, 2, False
    _move = None

    async def move(self, store, origin, topic, share):
        """Begin to move a topic's slot to another node, with a share of its keys, or end such a move."""
        if self._move is not None:
            await self.end_move()
            return
        slot = store.partitions.of_topic(origin, topic).slot
        self._move = await asyncio.to_thread(redis_servers.Move, self._server, slot)
        keys = self._move.left()
        await asyncio.to_thread(self._move.move, keys[: int(share * len(keys))])

    async def check(self, store):
        await self.end_move()  # the keys of a partition are at two nodes meanwhile
        for each in store.stores:
            await each.topology.refresh_soon()
        await super().check(store)

    async def end_move(self):
        if self._move is not None:
            await asyncio.to_thread(self._move.end)
            self._move = None


ENGINES = {"leveldb": LevelDB, "redis": Redis, "redis-cluster": RedisCluster}
ON_SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in sorted(ENGINES) if name != "leveldb"]
# For tests of concurrent operations, which one node runs in order.
on_every_engine = pytest.mark.parametrize("engine", ["leveldb", *ON_SERVERS], indirect=True)


async def received(feed):
    while feed.pending:
        await asyncio.wait(list(feed.pending.values()))
    subscribers = list(feed._subscribers.values())
    for subscriber in subscribers:
        subscriber._queue(b"PING", b"")
    while any(subscriber._unsent or subscriber._in_flight for subscriber in subscribers):  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def turns():
    for _ in range(10):
        await asyncio.sleep(0)


async def open_leveldb(path, clock=None, **options):
    """Open a directory with the LevelDB engine, without background work."""
    settings = Settings(data_dir=path, **{"sweep_interval_ms": NEVER_MS, **UNLIMITED, **options})
    store = LevelDBStore(settings, clock or Clock())
    await store.open()
    return store


def check_memory(store):
    """Check that the memory of a LevelDB store agrees with its database. Expired sessions can be partly swept."""
    memory, now_ms = store.memory, store.now_ms()
    stored = records.load(store.database.snapshot)
    issues = contradictions(store.database.snapshot, stored, now_ms)
    for key in stored.sessions.keys() | memory.sessions.keys():
        ours, theirs = memory.sessions.get(key), stored.sessions.get(key)
        if store.locks.held(key) or (ours is not None and ours.expires_ms <= now_ms):
            continue
        if ours is None or theirs is None or _fields(ours) != _fields(theirs):
            issues.append(f"the session {key!r} in memory differs from the records")
    listed = 0
    for origin in memory.origins.values():
        for topic in origin.topics.values():
            listed += len(topic.sessions)
            serials = [record.serial for record in topic.sessions]
            if not serials or serials != sorted(serials):
                issues.append(f"the listing of {origin.name} {topic.name.decode()} is not in order")
    counted = sum(origin.count for origin in memory.origins.values())
    topics = sum(len(origin.topics) for origin in memory.origins.values())
    if (listed, listed, topics) != (memory.listed, counted, memory.topic_count):
        issues.append("the counts in memory are wrong")
    assert not issues, "\n".join(issues)


def _fields(record):
    topic = record.topic and (record.topic.origin.name, record.topic.name)
    return (topic, *(getattr(record, name) for name in Record.__slots__ if name != "topic"))


def redis_store(addresses, *, prefix="tornado-signal:", **options):
    """Return a store on nodes of Redis, which is not open yet."""
    options = {**UNLIMITED, "session_timeout_ms": 60_000, "durability": "os", **options}
    return RedisStore(Settings(store="redis", redis_nodes=addresses, redis_prefix=prefix, **options))


@contextlib.asynccontextmanager
async def opened_on(*nodes, **options):
    store = redis_store([(node.host, node.port) for node in nodes], **options)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class Under:
    def __init__(self, store, origin):
        self.store, self.origin = store, origin

    async def create(self, topic="topic", info="info", offer="offer", **options):
        return (await self.store.create(self.origin, topic, info, offer, **options))[0]

    async def answer(self, code, answer="answer", **options):
        await self.store.answer(self.origin, code, answer, **options)

    async def add(self, code, side, *candidates, **options):
        await self.store.add_candidates(self.origin, code, side, candidates, **options)

    async def read(self, code, side, **options):
        """Read the other side's messages for a side."""
        return await self.store.read(self.origin, code, side.other, **options)

    async def withdraw(self, code, side=Side.OFFERER, **options):
        await self.store.withdraw(self.origin, code, side, **options)

    def __getattr__(self, name):  # `hold`, `renew` and `release`
        return functools.partial(getattr(self.store, name), self.origin)

    async def refresh(self, code, side=Side.OFFERER, **options):
        return (await self.store.refresh(self.origin, code, side, **options)).expires_ms

    async def begin(self, topic="topic"):
        return (await self.store.begin_topic(self.origin, topic, None))[0]

    async def knowing(self, topic="topic"):
        first = await self.begin(topic)
        return [first, *(event[0] for event in await self.events(first, topic))][-1]

    async def events(self, position, topic="topic"):
        """Return the events of a topic since a position: the next position, code, and reason. None for a listed one."""
        events = [event async for step in self.steps(position, topic) for event in step]
        return [
            event if isinstance(event, Removed) else (event.position, event.listed.session.code, None)
            for event in events
        ]

    async def steps(self, position, topic="topic", on_reset=None):
        """Yield the steps of the events of a topic since a position. `on_reset` is called if the store has lost it."""
        more = True
        while more:
            events, position, more, reset = await self.store.topic_step(self.origin, topic, position)
            if reset:
                on_reset()
            yield events

    async def news(self, position, topic="topic"):
        return [event[1:] for event in await self.events(position, topic)]

    async def state(self, topic="topic", since=None):
        return await self.store.listing_state(self.origin, topic, since)

    async def sessions(self, topic="topic", limit=None):
        steps = [step async for step in self.store.sessions(self.origin, topic, limit)]
        return [listed for step in steps for listed in step]

    async def codes(self, topic="topic"):
        return [listed.session.code for listed in await self.sessions(topic)]

    async def topics(self, offset=0, limit=1000, ranges=None):
        return await self.store.topics(self.origin, offset, limit, ranges)


async def sweep(store):
    """Sweep until nothing is left to do. Return the number of keys deleted in each step."""
    if isinstance(store, Alternating):  # the watches of a topic sweep it when they are woken
        for each in store.stores:
            for channel in list(each._expiries):
                each.watches.changed(channel)
        return []
    steps = []
    while deleted := await store.sweep(store.now_ms()):
        steps.append(deleted)
    return steps


def unlimited(publisher, units):
    return True


def covers(ranges, topic):
    """Return whether a listing of topics that is restricted to ranges shows a topic. None stands for all topics."""
    texts = [(each.text, topic[: len(each.text)] if each.is_prefix else topic) for each in ranges or ()]
    return ranges is None or any(text == compared for text, compared in texts)


class Inbox:
    """A receiver of a relay that keeps its messages."""

    def __init__(self):
        self.messages = []

    def relayed(self, message):
        self.messages.append(message)
