"""Expiry in LevelDB under stress: many sessions at once, slow disks, pending changes and failing commits."""

import asyncio
import dataclasses
import time
from unittest import mock

import pytest
from support.stores import TIMEOUT_MS, check_memory, sweep

from tornado_signal.errors import Unavailable
from tornado_signal.session import MIN_HELD_MS, Reason, Side
from tornado_signal.stores.leveldb import layout, session_table
from tornado_signal.stores.leveldb.database import Group

EXPIRED = Reason.EXPIRED


@pytest.fixture
def slow_disk(monkeypatch):
    """Return a function that delays each write of a group in the writer's thread."""
    write = Group.write

    def slow(by_s):
        def written(group):
            time.sleep(by_s)
            write(group)

        monkeypatch.setattr(Group, "write", written)

    return slow


def session_keys(store):
    return list(store.database.snapshot.iterator(prefix=layout.SESSIONS, include_value=False))


@pytest.mark.parametrize("callers", [1, 5])
async def test_settling_runs_in_timed_steps_one_in_each_iteration(callers, store, one, clock, monkeypatch):
    for _ in range(3):
        await one.answer(await one.create())
    codes = [await one.create() for _ in range(30)]
    position = await one.knowing()
    clock.ms += TIMEOUT_MS
    monkeypatch.setattr(session_table, "STEP_S", 0.0)
    expiring = asyncio.gather(*(store.expire_due(clock.ms) for _ in range(callers)))
    for left in (*[30] * 3, *reversed(range(30))):  # also those that are not listed give others their turn
        assert not expiring.done()
        await asyncio.sleep(0)
        assert (await store.counts())[0] == left
    await expiring
    assert {code for code, _ in await one.news(position)} == set(codes)


@pytest.mark.parametrize("read", ["news", "codes", "topics", "create"])
async def test_unfinished_change_delays_no_other_listing_and_its_own_is_exact(read, opened, clock, under):
    store, one = await opened(codes="content", max_sessions_per_origin=2)
    stuck, other = await one.create("stuck"), await one.create("other")
    positions = {topic: await one.knowing(topic) for topic in ("stuck", "other")}
    clock.ms += TIMEOUT_MS
    with await store._lock(one.origin, stuck):
        assert await one.news(positions["other"], "other") == [(other, EXPIRED)]
        assert await under(store, "https://other.example").topics() == ([], 0)
        arguments = {"news": (positions["stuck"], "stuck"), "codes": ("stuck",), "topics": (), "create": ("new",)}
        reading = asyncio.create_task(getattr(one, read)(*arguments[read]))
        await asyncio.sleep(0.05)
        assert not reading.done()
    found = await reading
    if read != "create":
        assert found == {"news": [(stuck, EXPIRED)], "codes": [], "topics": ([], 0)}[read]
    assert [reason for _, reason in await one.news(positions["stuck"], "stuck")] == [EXPIRED]
    assert await store.counts() == ((1, 1) if read == "create" else (0, 0))
    check_memory(store)


@pytest.mark.parametrize("change", ["answer", "refresh", "add", "withdraw"])
@pytest.mark.parametrize("durability", ["os", "fsync"])
async def test_change_in_flight_ends_before_the_expiry_is_reported(change, durability, opened, clock, slow_disk):
    store, one = await opened(durability=durability)
    codes = [await one.create() for _ in range(5)]
    position = await one.knowing()
    slow_disk(0.05)
    clock.ms += TIMEOUT_MS - 1
    middle = codes[2]
    changing = asyncio.create_task(getattr(one, change)(middle, *((Side.OFFERER, "c") if change == "add" else ())))
    await asyncio.sleep(0)
    clock.ms += 1
    settling = [asyncio.create_task(store.expire_due(clock.ms)) for _ in range(3)]
    swept = asyncio.create_task(store.sweep(clock.ms))
    await changing
    await asyncio.gather(*settling)
    reasons = dict(await one.news(position))
    of_middle = {"answer": Reason.ANSWERED, "withdraw": Reason.WITHDRAWN, "refresh": None, "add": EXPIRED}[change]
    assert reasons == dict.fromkeys(codes, EXPIRED) | {middle: of_middle}  # None: it is listed again
    await swept
    await sweep(store)
    assert await one.codes() == ([middle] if change == "refresh" else [])
    clock.ms += TIMEOUT_MS
    assert dict(await one.news(position)).get(middle) == (of_middle or EXPIRED)


async def test_departures_survive_failed_commits(store, one, clock, monkeypatch, until):
    codes, expired = [await one.create() for _ in range(10)], []
    store.observe(lambda outcome, origin, code, *_: expired.append(code))
    clock.ms += TIMEOUT_MS

    def failing(group):
        raise OSError("the disk fails")

    with monkeypatch.context() as patch:
        patch.setattr(Group, "write", failing)
        with pytest.raises(Unavailable):
            await store.sweep(clock.ms)
        await until(lambda: store.available)
    assert await one.codes() == []
    assert len(session_keys(store)) == 20
    assert sorted(expired) == sorted(codes)  # once each
    await sweep(store)
    assert session_keys(store) == []


@pytest.mark.parametrize("change", ["refresh", "hold", "renew", "answer", "withdraw", "close", "kept"])
async def test_time_continues_after_every_change_and_a_restart_with_an_earlier_clock(
    change, opened, clock, monkeypatch
):
    """A session lives no longer than before, whatever wrote the store's time."""
    store, one = await opened(session_timeout_ms=MIN_HELD_MS)
    lease = b"l" * 12
    changed = await one.create(lease=lease if change == "renew" else b"")
    old = await one.create(ttl_ms=MIN_HELD_MS)
    clock.ms += MIN_HELD_MS * 3 // 4
    late_ms = clock.ms
    if change == "kept":
        monkeypatch.setattr(clock, "ahead_s", lambda: 1.0)
        await store.keep_time()
    elif change != "close":
        await getattr(one, change)(changed, *([lease] if change in ("hold", "renew") else []))
    if change != "close":  # a killed server writes nothing more
        monkeypatch.setattr(store, "write_time", mock.AsyncMock(side_effect=Unavailable("killed")))
    await store.close()
    clock.ms -= MIN_HELD_MS // 2
    _, one = await opened(session_timeout_ms=MIN_HELD_MS)
    assert clock.ms == late_ms
    clock.ms += MIN_HELD_MS // 4
    assert old not in await one.codes()


@pytest.mark.parametrize("change", ["answer", "refresh", "withdraw"])
async def test_change_includes_the_appends_that_are_being_written(change, store, one, clock, slow_disk):
    code = await one.create()
    clock.ms += 1
    slow_disk(0.05)
    adding = [asyncio.create_task(one.add(code, Side.OFFERER, str(number))) for number in range(20)]
    await asyncio.sleep(0)
    await getattr(one, change)(code)
    assert all(task.done() for task in adding)
    check_memory(store)
    assert len(session_keys(store)) == {"answer": 23, "refresh": 22, "withdraw": 0}[change]


@pytest.mark.parametrize("change", ["create", "answer", "withdraw"])
async def test_refused_change_is_not_counted(change, opened, under, monkeypatch, restarted):
    store, one = await opened(max_sessions_per_origin=3)
    code = await one.create()
    before = await one.state()
    arguments = [] if change == "create" else [code]
    add = Group.add

    def refusing(group, change, on_committed, waiter):
        add(group, dataclasses.replace(change, puts=[*change.puts, (b"key", "no bytes")]), on_committed, waiter)

    with monkeypatch.context() as patch:
        patch.setattr(Group, "add", refusing)
        for _ in range(5):
            with pytest.raises(TypeError):
                await getattr(one, change)(*arguments)
    assert await one.state() == before
    other = await one.create()
    assert store.memory.listed == 2
    await one.answer(code)
    store, one = await restarted(store, max_sessions_per_origin=3)
    assert (store.memory.listed, await under(store).codes()) == (1, [other])
