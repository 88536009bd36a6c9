"""What sweeps: all that has expired, step by step, compactions not too often, and failures left to the store."""

import asyncio
import os

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS

from tornado_signal.errors import Unavailable
from tornado_signal.session import Reason, Side
from tornado_signal.stores.leveldb import sweeper as sweeper_module
from tornado_signal.stores.leveldb.space import UNLIMITED
from tornado_signal.stores.leveldb.sweeper import Sweeper


class Watched:
    """A real store that notes when it is compacted, and refuses to be swept when it is told to."""

    def __init__(self, store):
        self._store = store
        self.compactions = 0
        self.refusing = False

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def sweep(self, now_ms):
        if self.refusing:
            raise Unavailable("for a test")
        return await self._store.sweep(now_ms)

    async def compact(self):
        self.compactions += 1
        await self._store.compact()


@pytest.fixture
def watched(store):
    """The store, watched."""
    return Watched(store)


@pytest.fixture
def monotonic(monkeypatch):
    """The machine's monotonic clock, turned by hand: `monotonic[0] += 1.0`."""
    seconds = [1000.0]
    monkeypatch.setattr(sweeper_module.time, "monotonic", lambda: seconds[0])
    return seconds


async def fill(one, bytes_each=20_000, number=100):
    """Publish over a megabyte, as long as nothing else is said."""
    await asyncio.gather(*[one.create(offer=os.urandom(bytes_each // 2).hex()) for _ in range(number)])


async def test_it_deletes_all_that_has_expired(watched, under, clock):
    """One call takes all that has expired, in however many steps, and nothing else."""
    one = under(watched)
    await asyncio.gather(*[one.create() for _ in range(500)])
    clock.ms += 1
    kept = await one.create()
    sweeper = Sweeper(watched, clock)
    await sweeper.sweep()
    assert len(await one.codes()) == 501
    clock.ms += TIMEOUT_MS - 1
    await sweeper.sweep()
    assert await one.codes() == [kept]
    assert await watched.sweep(clock.ms) == 0


async def test_others_come_in_between(watched, under, clock):
    """While a long sweep goes on, a request waits for a step of it at most."""
    one = under(watched)
    await asyncio.gather(*[one.create("old") for _ in range(2000)])
    clock.ms += TIMEOUT_MS
    sweeping = asyncio.create_task(Sweeper(watched, clock).sweep())
    served = 0
    while not sweeping.done():
        assert len(await one.sessions("new")) == served
        await one.create("new")
        served += 1
    await sweeping
    assert served > 10


async def test_it_compacts_once_something_was_swept(watched, under, clock):
    """The disk shrinks after a sweep that deleted something, and is left alone otherwise."""
    sweeper = Sweeper(watched, clock)
    await fill(under(watched))
    full = watched.size_bytes()
    await sweeper.sweep()
    assert watched.compactions == 0
    clock.ms += TIMEOUT_MS
    await sweeper.sweep()
    assert watched.compactions == 1
    assert watched.size_bytes() < full / 10
    await sweeper.sweep()
    assert watched.compactions == 1
    assert sum(watched.metrics.compactions.counts) == 1
    assert sum(watched.metrics.sweeps.counts) == 3


async def test_every_session_is_counted_once(watched, under, clock):
    """A session with so much in it that it takes several steps counts like any other; what was swept counts at all."""
    one = under(watched)
    large = await one.create()
    for _ in range(5):
        await one.add(large, Side.OFFERER, *map(str, range(100)))
    await asyncio.gather(*[one.create() for _ in range(120)])
    gone = await one.create()
    await one.withdraw(gone)
    assert (watched.metrics.created, watched.metrics.withdrawn, watched.metrics.swept) == (122, 1, 0)
    clock.ms += TIMEOUT_MS
    await Sweeper(watched, clock).sweep()
    assert (watched.metrics.created, watched.metrics.withdrawn, watched.metrics.swept) == (122, 1, 121)
    assert (watched.listed_count, watched.topic_count) == (0, 0)


async def test_a_small_store_is_not_worth_a_compaction(watched, under, clock):
    """Below a megabyte nothing is compacted, but what was swept is remembered until it is worth it."""
    sweeper = Sweeper(watched, clock)
    await fill(under(watched), number=20)
    clock.ms += TIMEOUT_MS
    await sweeper.sweep()
    assert watched.compactions == 0
    await fill(under(watched))
    await sweeper.sweep()
    assert watched.compactions == 1


async def test_it_does_not_compact_too_often(watched, under, clock, monotonic):
    """Between two compactions there is a pause, after which what has been swept meanwhile is made up for."""
    sweeper = Sweeper(watched, clock, compact_pause_s=60.0)
    for passed_s, compactions in [(0.0, 1), (59.9, 1), (0.0, 1), (0.1, 2), (59.0, 2)]:
        monotonic[0] += passed_s
        await fill(under(watched))
        clock.ms += TIMEOUT_MS
        await sweeper.sweep()
        assert watched.compactions == compactions
    monotonic[0] += 1.0
    await sweeper.sweep()
    assert watched.compactions == 3


async def test_it_compacts_sooner_while_the_store_is_full(watched, under, clock, monotonic):
    """When room is short, what has expired gives its own back after seconds."""
    sweeper = Sweeper(watched, clock, compact_pause_s=60.0)
    for passed_s, most_bytes, compactions in [(0.0, UNLIMITED, 1), (5.1, UNLIMITED, 1), (0.0, 1, 2), (4.9, 1, 2)]:
        watched.space.most_bytes = UNLIMITED
        await fill(under(watched))
        watched.space.most_bytes = most_bytes
        monotonic[0] += passed_s
        clock.ms += TIMEOUT_MS
        await sweeper.sweep()
        assert watched.compactions == compactions


async def test_a_long_compaction_is_followed_by_a_long_pause(watched, under, clock, monotonic, monkeypatch):
    """Compactions take at most a twentieth or so of the time, however long one takes."""
    sweeper = Sweeper(watched, clock, compact_pause_s=1.0)
    compact = watched._store.compact

    async def slow():
        await compact()
        monotonic[0] += 10.0

    monkeypatch.setattr(watched._store, "compact", slow)
    for passed_s, compactions in [(0.0, 1), (199.0, 1), (1.0, 2)]:
        monotonic[0] += passed_s
        await fill(under(watched))
        clock.ms += TIMEOUT_MS
        await sweeper.sweep()
        assert watched.compactions == compactions


async def test_a_store_that_cannot_serve_is_left_alone(watched, under, clock):
    """A sweep while the store is unavailable fails nobody, and a later one makes up for it."""
    sweeper = Sweeper(watched, clock)
    await fill(under(watched))
    clock.ms += TIMEOUT_MS
    watched.refusing = True
    await sweeper.sweep()
    watched.refusing = False
    assert watched.compactions == 0
    await sweeper.sweep()
    assert (watched.compactions, await watched.sweep(clock.ms)) == (1, 0)
    await watched.close()
    await sweeper.sweep()


async def test_it_asks_the_clock_at_every_step(watched, under, clock):
    """What expires during a long sweep is taken by the same one."""

    class Running:
        def now_ms(self):
            clock.ms += 1
            return clock.ms

    one = under(watched)
    for number in range(200):
        clock.ms = BEGIN_MS + number // 50
        await one.create()
    clock.ms = BEGIN_MS + TIMEOUT_MS - 1
    await Sweeper(watched, Running()).sweep()
    left = {key[:1] for key in watched._db.view.iterator(include_value=False)}
    assert left == {b"E", b"F", b"G", b"I", b"M"}  # those who left are remembered for a while


async def test_what_has_expired_leaves_while_others_sweep(watched, under, clock):
    """Departures do not wait for a compaction; what else there is of the sessions is left to the sweep."""
    one = under(watched)
    position = await one.begin()
    code = await one.create()
    (arrival,) = await one.events(position)
    clock.ms += TIMEOUT_MS
    sweeper = Sweeper(watched, clock)
    await sweeper.settle()
    assert watched.listed_count == 0
    assert await one.news(arrival[0]) == [(code, Reason.EXPIRED)]
    assert sum(watched.metrics.sweeps.counts) == 0
    await watched.close()
    await sweeper.settle()  # a store that cannot serve fails nobody
