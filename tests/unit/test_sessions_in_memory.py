"""The sessions in memory: their bytes, what is remembered of removals, and the order of changes by their locks."""

import asyncio
import gc
import tracemalloc

import pytest

from tornado_signal.session import Reason
from tornado_signal.stores.leveldb import layout, memory
from tornado_signal.stores.leveldb.locks import SessionLocks
from tornado_signal.stores.leveldb.memory import Memory, Record, Removals


def listed(its, topic, serial, origin="null", hashed=b"", lease=b""):
    key = layout.pack_session_prefix(origin, serial.to_bytes(16, "big"))
    record = Record(key, 2**41 + serial, 2**42 + serial, serial, hashed)
    record.set_sent(memory.Side.OFFERER, 1, 2**17 + serial)
    record.leases = lease
    its.add(record, origin, topic)
    return record


@pytest.fixture
def its():
    return Memory(bytes(38))


@pytest.mark.parametrize("topics", [1, 1000])
def test_memory_of_sessions_and_removals_is_within_its_count(its, topics):
    """Of the largest sessions: each with a secret on both sides and all leases."""
    count = 2000
    tracemalloc.start()
    try:
        records = []
        for number in range(count):
            secret = {"hashed": number.to_bytes(32, "big"), "lease": bytes(16 * 12)}
            records.append(listed(its, f"{number % topics:0100}", number, **secret))
        for record in records:
            record.answer_hash = bytes(record.offer_hash)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] <= its.size_bytes <= 3 * tracemalloc.get_traced_memory()[0]
        for record in records:
            its.delist(record, record.topic, Reason.WITHDRAWN, 1)
            its.remove(record)
        del record, records
        gc.collect()
        held_bytes = its.size_bytes
        assert tracemalloc.get_traced_memory()[0] <= held_bytes + 100_000  # of empty tables
        its.removals.forget(1)
        assert (its.size_bytes, its.removals.count, its.listed, its.topic_count, its.origins) == (0, 0, 0, 0, {})
    finally:
        tracemalloc.stop()


def removal(removals, topic, now_ms=0):
    removals.add(topic, Record(b"S" + bytes(16), 0, 0, 1, b""), Reason.ANSWERED, now_ms)
    return removals.last


def test_removals_are_forgotten_by_topic_when_they_are_too_many(monkeypatch):
    monkeypatch.setattr(memory, "MAX_REMOVALS", 30)
    monkeypatch.setattr(memory, "MAX_TOPIC_REMOVALS", 20)
    removals = Removals()
    quiet = [removal(removals, b"quiet") for _ in range(3)]
    busy = [removal(removals, b"busy") for _ in range(21)]
    assert [removals.remembers(b"busy", number) for number in (0, busy[2] - 1, busy[2])] == [False, False, True]
    assert [each.number for each in removals.after(b"busy", busy[17], 10)] == busy[18:]
    assert removals.remembers(b"quiet", 0)
    assert [each.number for each in removals.after(b"quiet", quiet[0], 1)] == quiet[1:2]
    for _ in range(10):
        removal(removals, b"another")
    assert removals.count <= 30
    assert [removals.remembers(b"quiet", number) for number in (quiet[1], quiet[2])] == [False, True]
    assert [removals.remembers(b"new", number) for number in (0, quiet[2])] == [False, True]
    assert not removals.remembers(b"new", removals.last + 1)


def test_removals_are_forgotten_some_time_after_the_last_one_of_their_topic():
    removals = Removals()
    first, last = removal(removals, b"one", 5), removal(removals, b"other", 6)
    removal(removals, b"one", 7)
    removals.forget(6)
    assert (removals.remembers(b"other", first), removals.remembers(b"other", last)) == (False, True)
    assert (removals.remembers(b"one", 0), removals.count) == (True, 2)
    removals.forget(7)
    assert (removals.remembers(b"one", last), removals.count) == (False, 0)


KEY, OTHER = b"one session", b"another"


async def run_loop():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def locks():
    return SessionLocks()


def start_waiter(locks, key=KEY):
    return asyncio.create_task(locks.acquire(key))


async def test_free_lock_is_acquired_at_once_and_a_new_waiter_does_not_overtake_the_first_one(locks):
    lock = await locks.acquire(KEY)
    acquiring = locks.acquire(OTHER)
    with pytest.raises(StopIteration):
        acquiring.send(None)
    assert (lock.key, locks.held(KEY), locks.held(OTHER)) == (KEY, True, True)
    first = start_waiter(locks)
    await run_loop()
    lock.release()
    newcomer = start_waiter(locks)
    await run_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    first.result().release()
    await newcomer


@pytest.mark.parametrize("late", [False, True])
async def test_cancelled_waiter_leaves_the_lock_to_others(locks, late):
    lock = await locks.acquire(KEY)
    tasks = [start_waiter(locks) for _ in range(3)]
    await run_loop()
    if late:
        lock.release()
    tasks[0].cancel()
    if not late:
        lock.release()
    for task in tasks[1:]:
        (await task).release()
    assert tasks[0].cancelled()
    assert not locks.held(KEY)
