"""Locks of sessions: exclusive changes one after another, appends together, and none left waiting."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import SessionLocks

KEY, OTHER = b"one session", b"another"


async def turn_of_the_loop():
    for _ in range(5):
        await asyncio.sleep(0)


def waiting(locks, appends, key=KEY):
    """A task that holds the lock as soon as it has acquired it."""

    async def wait():
        await locks.acquire(key, appends=appends)
        locks.hold([key], appends=appends)

    return asyncio.create_task(wait())


@pytest.fixture
def locks(io_loop):
    """The locks of some sessions, of which one is held."""
    made = SessionLocks()
    made.hold([KEY])
    return made


@pytest.mark.parametrize(("first", "second", "together"), [(0, 0, False), (0, 1, False), (1, 0, False), (1, 1, True)])
async def test_only_appends_join_appends(io_loop, first, second, together):
    locks = SessionLocks()
    locks.hold([KEY], appends=bool(first))
    task = waiting(locks, bool(second))
    await turn_of_the_loop()
    assert task.done() == together
    locks.release([KEY])
    await task
    locks.release([KEY])
    await turn_of_the_loop()
    assert not locks.held(KEY)


async def test_an_exclusive_change_waits_for_every_append(io_loop):
    locks = SessionLocks()
    for _ in range(3):
        locks.hold([KEY], appends=True)
    task = waiting(locks, False)
    for _ in range(3):
        await turn_of_the_loop()
        assert not task.done()
        locks.release([KEY])
    await task


async def test_exclusive_changes_go_one_by_one_in_order(locks):
    await locks.acquire(OTHER)  # another session is not waited for
    assert not locks.held(OTHER)
    order = []

    async def change(number):
        await locks.acquire(KEY)
        locks.hold([KEY])
        order.append(number)

    tasks = [asyncio.create_task(change(number)) for number in range(20)]
    for done in range(20):
        await turn_of_the_loop()
        assert order == list(range(done))
        locks.release([KEY])
    await asyncio.gather(*tasks)


async def test_a_stream_of_appends_does_not_shut_out_an_exclusive_change(io_loop):
    locks = SessionLocks()
    locks.hold([KEY], appends=True)
    exclusive = waiting(locks, False)
    appends = []
    for _ in range(50):
        await turn_of_the_loop()
        if exclusive.done():
            break
        appends.append(waiting(locks, True))  # the next one comes before the last one is settled
        await turn_of_the_loop()
        locks.release([KEY])
    assert exclusive.done()
    locks.release([KEY])
    await asyncio.gather(*appends)


async def test_a_newcomer_does_not_overtake_the_first_in_line(locks):
    first = waiting(locks, False)
    await turn_of_the_loop()
    locks.release([KEY])
    newcomer = waiting(locks, True)
    await turn_of_the_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    locks.release([KEY])
    await newcomer


async def test_a_waiter_that_holds_nothing_makes_way(locks):
    idle = [asyncio.create_task(locks.acquire(KEY, appends=appends)) for appends in (False, True, True, False)]
    task = waiting(locks, False)
    await turn_of_the_loop()
    locks.release([KEY])
    await asyncio.gather(*idle)
    await task
    locks.release([KEY])
    await turn_of_the_loop()
    assert not locks.held(KEY)


async def test_several_sessions_are_held_and_released_together(io_loop):
    locks = SessionLocks()
    locks.hold([KEY, OTHER])
    tasks = [waiting(locks, False), waiting(locks, True, OTHER)]
    await turn_of_the_loop()
    assert [task.done() for task in tasks] == [False, False]
    locks.release([KEY, OTHER])
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_waiter_leaves_the_lock_to_others(locks, late):
    tasks = [waiting(locks, False) for _ in range(3)]
    await turn_of_the_loop()
    if late:
        locks.release([KEY])
    tasks[0].cancel()
    if not late:
        locks.release([KEY])
    await tasks[1]
    locks.release([KEY])
    await tasks[2]
    locks.release([KEY])
    await turn_of_the_loop()
    assert tasks[0].cancelled()
    assert not locks.held(KEY)
