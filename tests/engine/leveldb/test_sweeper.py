"""The work in the background: all that has expired goes, step by step, compactions not too often, failures survived."""

import asyncio
import os
from types import SimpleNamespace

import pytest
from support.stores import BEGIN_MS, TIMEOUT_MS

from tornado_signal.session import Reason
from tornado_signal.stores.leveldb import session_table
from tornado_signal.stores.leveldb.binding import plyvel
from tornado_signal.stores.leveldb.space import UNLIMITED
from tornado_signal.system import loop


@pytest.fixture
def compactions(store, monkeypatch):
    """How often the store has compacted its database, as a list of one number."""
    count = [0]
    compact = store.database.compact

    async def counted():
        count[0] += 1
        await compact()

    monkeypatch.setattr(store.database, "compact", counted)
    return count


@pytest.fixture
def filled_and_swept(store, one, clock, monotonic):
    """Return a function that advances the time, publishes over a megabyte, lets it expire and sweeps."""

    async def run(passed_s, *, full=False, **options):
        monotonic[0] += passed_s
        store.space.max_bytes = UNLIMITED
        await fill(one, **options)
        store.space.max_bytes = 1 if full else UNLIMITED
        clock.ms += TIMEOUT_MS
        await store.sweep_all()

    return run


@pytest.fixture
def monotonic(monkeypatch):
    """The sweeper's monotonic clock, turned by hand: `monotonic[0] += 1.0`."""
    seconds = [1000.0]
    monkeypatch.setattr(session_table, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


async def fill(one, number=100):
    """Publish over a megabyte, as long as nothing else is said."""
    await asyncio.gather(*[one.create(offer=os.urandom(10_000).hex()) for _ in range(number)])


async def test_sweep_deletes_all_expired_sessions_during_requests(store, one, clock, monkeypatch):
    monkeypatch.setattr(session_table, "STEP", 100)  # at least sixty steps
    await asyncio.gather(*[one.create("old") for _ in range(2000)])
    clock.ms += 1
    kept = await one.create("old")
    await store.sweep_all()
    assert len(await one.codes("old")) == 2001
    clock.ms += TIMEOUT_MS - 1
    sweeping = asyncio.create_task(store.sweep_all())
    served = 0
    while not sweeping.done():
        assert len(await one.sessions("new")) == served
        await one.create("new")
        served += 1
    await sweeping
    assert served > 10
    assert await one.codes("old") == [kept]
    assert await store.sweep(clock.ms) == 0


async def test_compaction_follows_a_sweep_that_deleted(store, one, clock, compactions):
    await fill(one)
    full = store.database.size_bytes()
    await store.sweep_all()
    assert compactions == [0]
    clock.ms += TIMEOUT_MS
    await store.sweep_all()
    assert store.database.size_bytes() < full / 10
    await store.sweep_all()
    assert compactions == [1]
    assert sum(store.database.metrics.compactions.counts) == 1
    assert sum(store.database.metrics.sweeps.counts) == 3


@pytest.mark.parametrize(
    ("lasting", "took_s", "steps"),
    [
        (
            0,
            0.0,
            [
                (0.0, {"number": 20}, 0),
                (0.0, {}, 1),
                (59.9, {}, 1),
                (0.0, {}, 1),
                (0.1, {}, 2),
                (59, {}, 2),
                (1, None, 3),
            ],
        ),
        (40, 0.0, [(60.0, {"number": 80}, 1), (60.0, {"number": 80}, 1), (60.0, {"number": 400}, 2)]),
        (0, 0.0, [(0.0, {}, 1), (5.1, {}, 1), (0.0, {"full": True}, 2), (4.9, {"full": True}, 2)]),
        (0, 10.0, [(0.0, {}, 1), (199.0, {}, 1), (1.0, {}, 2)]),
    ],
    ids=["of a megabyte, after a pause", "after the store has doubled", "shorter pause while full", "after a long one"],
)
async def test_compactions(lasting, took_s, steps, store, one, filled_and_swept, monotonic, compactions, monkeypatch):
    compact = store.database.compact

    async def slow():
        await compact()
        monotonic[0] += took_s

    monkeypatch.setattr(store.database, "compact", slow)
    for _ in range(lasting):
        await one.create(offer=os.urandom(50_000).hex(), ttl_ms=100 * TIMEOUT_MS)
    for passed_s, filling, expected in steps:
        if filling is None:
            monotonic[0] += passed_s
            await store.sweep_all()
        else:
            await filled_and_swept(passed_s, **filling)
        assert compactions == [expected]


async def test_every_sweep_step_reads_the_clock(store, one, clock, monkeypatch):
    for number in range(200):
        clock.ms = BEGIN_MS + number // 50
        await one.create()
    clock.ms = BEGIN_MS + TIMEOUT_MS - 1
    sweep = store.sweep

    async def slow(now_ms):
        clock.ms += 1
        return await sweep(now_ms + 1)

    monkeypatch.setattr(store, "sweep", slow)
    await store.sweep_all()
    left = {key[:1] for key in store.database.snapshot.iterator(include_value=False)}
    assert left == {b"F", b"I", b"M"}


async def test_expiry_wakes_the_readers_of_a_topic_without_a_sweep(store, one, clock):
    code = await one.create()
    position = await one.knowing()
    with store.watch_topic(one.origin, "topic") as watch:
        waiting = watch.wait(watch.now_s() + 60)
        clock.ms += TIMEOUT_MS
        assert await waiting
        assert watch.woken_s  # by the change
    assert await store.counts() == (0, 0)
    assert await one.news(position) == [(code, Reason.EXPIRED)]
    assert sum(store.database.metrics.sweeps.counts) == 0


@pytest.mark.parametrize("failing", ["nothing", "defect", "database"])
async def test_sweeps_continue_after_a_failure_and_end_with_the_store(
    failing, open_store, under, clock, monkeypatch, caplog, until
):
    store = await open_store(sweep_interval_ms=10)
    await under(store).create()
    expire_due, failed = store.expire_due, asyncio.Event()

    async def failing_once(now_ms):
        monkeypatch.setattr(store, "expire_due", expire_due)
        failed.set()
        raise ZeroDivisionError

    if failing == "defect":
        monkeypatch.setattr(store, "expire_due", failing_once)
        await failed.wait()
    elif failing == "database":
        store.database.failed(plyvel.CorruptionError(b"bad block"))
    clock.ms += TIMEOUT_MS
    await until(lambda: store.metrics.swept == 1)
    assert store.database.metrics.reopened == (failing == "database")
    warned = [record for record in caplog.records if record.name == loop.__name__]
    assert ["repeated work failed" in each.getMessage() for each in warned] == [True] * (failing == "defect")
    await store.close()
    assert not [task for task in asyncio.all_tasks() if "Repeating" in repr(task.get_coro())]
    swept = sum(store.database.metrics.sweeps.counts)
    await asyncio.sleep(0.05)
    assert sum(store.database.metrics.sweeps.counts) == swept
