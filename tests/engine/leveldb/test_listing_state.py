"""Listings and detection of their changes, at a cost that is independent of the history of the topic."""

import asyncio
import functools

import pytest
from support.stores import TIMEOUT_MS

from tornado_signal.stores.leveldb import database
from tornado_signal.stores.leveldb.directory import Snapshot

WORN = 400
NEVER_MS = 10**6


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
    await store.expire_due(clock.ms)
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
