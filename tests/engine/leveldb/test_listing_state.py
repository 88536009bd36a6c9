"""Detection of changed listings, at a cost that is independent of the history of the topic."""

import asyncio
import functools
import random

import pytest
from support.stores import TIMEOUT_MS, sweep

from tornado_signal.session import Position
from tornado_signal.stores.leveldb import database, layout, memory
from tornado_signal.stores.leveldb.directory import Snapshot

TOPICS = ["one", "two", "three"]
WORN = 400
NEVER_MS = 10**6


def newest(store, one, topic):
    """Return the serial of the newest entry of a listing on disk, 0 without one."""
    prefix = layout.pack_listing_prefix(one.origin, topic)
    with store.database.snapshot.iterator(prefix=prefix, include_value=False) as keys:
        return next((layout.unpack_listing_key(key)[3] for key in keys), 0)


@pytest.mark.parametrize("kept", [2, 10_000])
@pytest.mark.parametrize("seed", range(2))
async def test_state_is_restored_from_disk(seed, kept, opened, clock, monkeypatch, restarted):
    monkeypatch.setattr(memory, "MAX_REMOVALS", kept)
    rng = random.Random(seed)
    store, one = await opened()
    readers = {topic: (await one.begin(topic), set()) for topic in TOPICS}
    live = {}
    for _ in range(150):
        step = rng.choice(["create", "create", "create", "answer", "withdraw", "pass", "restart"])
        if step == "create":
            topic = rng.choice(TOPICS)
            live[await one.create(topic)] = (topic, clock.ms + TIMEOUT_MS)
        elif step == "pass":
            clock.ms += TIMEOUT_MS // 5
            await sweep(store)
            live = {code: each for code, each in live.items() if each[1] > clock.ms}
        elif step == "restart" and rng.random() < 0.2:
            store, one = await restarted(store)
        elif step in ("answer", "withdraw") and live:
            code = rng.choice(list(live))
            del live[code]
            await (one.answer(code) if step == "answer" else one.withdraw(code))
        for topic in rng.sample(TOPICS, 2):
            state = await one.state(topic)
            listed = {code for code, (name, _) in live.items() if name == topic}
            assert state.position == Position(store.identity, newest(store, one, topic), len(listed))
            position, known = readers[topic]
            for next_position, code, reason in await one.events(position, topic, known.clear):
                (known.add if reason is None else known.remove)(code)
                position = next_position
            readers[topic] = position, known
            assert known == listed
        assert store.memory.removals.count <= kept


@pytest.fixture
def reads(store):
    """A list of the reads of a store's tables: `get`, `iterator` or `raw_iterator`."""
    read = []

    class Noting(Snapshot):
        def __init__(self, db):
            super().__init__(db)
            for name in ("get", "iterator", "raw_iterator"):
                setattr(self, name, functools.partial(self._note, name, getattr(self, name)))

        @staticmethod
        def _note(name, method, *arguments, **options):
            read.append(name)
            return method(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "Snapshot", Noting)
        yield read


@pytest.mark.parametrize("end", ["withdraw", "answer", "expire"])
@pytest.mark.parametrize("kept", [0, 1, 2])
async def test_worn_topic_costs_no_more_than_a_new_one_and_slows_no_other(store, one, clock, reads, end, kept):
    """Listings read only the sessions that they return: an iterator would skip all deleted entries around it."""
    if kept == 2:
        await one.create("worn", ttl_ms=NEVER_MS)
    codes = await asyncio.gather(*[one.create("worn") for _ in range(WORN)])
    if end != "expire":
        await asyncio.gather(*[(one.answer if end == "answer" else one.withdraw)(code) for code in codes])
    if kept:
        await one.create("worn", ttl_ms=NEVER_MS)
    clock.ms += TIMEOUT_MS if end == "expire" else 0
    await store.table.expire_due(clock.ms)
    await asyncio.gather(*[one.create(topic) for topic in ("before", "x")])  # their keys are next to it
    for topic, live in [("before", 1), ("worn", kept), ("x", 1), ("new", 0)]:
        position = await one.knowing(topic)
        reads.clear()
        await one.state(topic)
        assert reads == []
        assert len(await one.sessions(topic)) == live
        assert reads == ["raw_iterator"] * live
        reads.clear()
        assert await one.events(position, topic) == []
        assert reads == []
