"""Locks of sessions: exclusive changes one after another, appends together, and none left waiting."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import SessionLocks

KEY, OTHER = b"one session", b"another"


async def turn_of_the_loop():
    """Let everything go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def waiting(locks, appends, key=KEY):
    """A task that holds the lock as soon as it has acquired it."""

    async def wait():
        await locks.acquire(key, appends=appends)
        locks.hold([key], appends=appends)

    return asyncio.create_task(wait())


@pytest.mark.parametrize(("first", "second", "together"), [(0, 0, False), (0, 1, False), (1, 0, False), (1, 1, True)])
async def test_only_appends_join_appends(io_loop, first, second, together):
    """A change waits for the one before it unless both only append."""
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


async def test_other_sessions_are_not_waited_for(io_loop):
    """A change of one session does not hold up another one."""
    locks = SessionLocks()
    locks.hold([KEY])
    await locks.acquire(OTHER)
    assert (locks.held(KEY), locks.held(OTHER)) == (True, False)


async def test_an_exclusive_change_waits_for_every_append(io_loop):
    """The last of several appends makes way, not the first."""
    locks = SessionLocks()
    for _ in range(3):
        locks.hold([KEY], appends=True)
    task = waiting(locks, False)
    for _ in range(3):
        await turn_of_the_loop()
        assert not task.done()
        locks.release([KEY])
    await task


async def test_exclusive_changes_go_one_by_one_in_the_order_of_their_coming(io_loop):
    """Of many that wait, one goes at a time, the first to come first."""
    locks = SessionLocks()
    locks.hold([KEY])
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


async def test_an_unbroken_stream_of_appends_does_not_shut_others_out(io_loop):
    """An answer gets the lock also while candidates of its session never stop coming."""
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


async def test_what_has_waited_is_not_overtaken_on_the_way(io_loop):
    """Between the release and the moment that the first in line goes on, a newcomer does not slip in."""
    locks = SessionLocks()
    locks.hold([KEY])
    first = waiting(locks, False)
    await turn_of_the_loop()
    locks.release([KEY])
    newcomer = waiting(locks, True)
    await turn_of_the_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    locks.release([KEY])
    await newcomer


async def test_what_changes_nothing_makes_way(io_loop):
    """A waiter that has the lock and holds nothing does not hold up the next, nor leave anything behind."""
    locks = SessionLocks()
    locks.hold([KEY])
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
    """What the sweep holds in one step is free again after one release."""
    locks = SessionLocks()
    locks.hold([KEY, OTHER])
    tasks = [waiting(locks, False), waiting(locks, True, OTHER)]
    await turn_of_the_loop()
    assert [task.done() for task in tasks] == [False, False]
    locks.release([KEY, OTHER])
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("late", [False, True])
async def test_what_gives_up_waiting_harms_no_other(io_loop, late):
    """A waiter that is cancelled, also in the moment it gets the lock, leaves it to the others."""
    locks = SessionLocks()
    locks.hold([KEY])
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
