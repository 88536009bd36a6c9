"""Locks of sessions: exclusive changes one after another, appends together, and none left waiting."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import SessionLocks, Token
from tornado_signal.stores.leveldb.turn import Turn

KEY, OTHER = b"one session", b"another"


async def turn_of_the_loop():
    for _ in range(5):
        await asyncio.sleep(0)


def hold(locks, *keys, appends=False):
    """Enter the locks of sessions, whether others hold them or not."""
    locks.enter([Token(key, appends, locks._turn.current()) for key in keys])


def release(locks, *keys):
    locks.release([Token(key, False, 0) for key in keys])


def waiting(locks, appends, key=KEY):
    """A task that holds the lock as soon as it has acquired it."""

    async def wait():
        locks.enter([await locks.acquire(key, appends=appends)])

    return asyncio.create_task(wait())


@pytest.fixture
def locks(io_loop):
    """The locks of some sessions, of which one is held."""

    async def make():
        made = SessionLocks(Turn())
        hold(made, KEY)
        return made

    return io_loop.run_sync(make)


@pytest.mark.parametrize(("first", "second", "together"), [(0, 0, False), (0, 1, False), (1, 0, False), (1, 1, True)])
async def test_only_appends_join_appends(io_loop, first, second, together):
    locks = SessionLocks(Turn())
    hold(locks, KEY, appends=bool(first))
    task = waiting(locks, bool(second))
    await turn_of_the_loop()
    assert task.done() == together
    release(locks, KEY)
    await task
    release(locks, KEY)
    await turn_of_the_loop()
    assert not locks.held(KEY)


async def test_an_exclusive_change_waits_for_every_append(io_loop):
    locks = SessionLocks(Turn())
    for _ in range(3):
        hold(locks, KEY, appends=True)
    task = waiting(locks, False)
    for _ in range(3):
        await turn_of_the_loop()
        assert not task.done()
        release(locks, KEY)
    await task


async def test_exclusive_changes_go_one_by_one_in_order(locks):
    await locks.acquire(OTHER)  # another session is not waited for
    assert not locks.held(OTHER)
    order = []

    async def change(number):
        locks.enter([await locks.acquire(KEY)])
        order.append(number)

    tasks = [asyncio.create_task(change(number)) for number in range(20)]
    for done in range(20):
        await turn_of_the_loop()
        assert order == list(range(done))
        release(locks, KEY)
    await asyncio.gather(*tasks)


async def test_a_stream_of_appends_does_not_shut_out_an_exclusive_change(io_loop):
    locks = SessionLocks(Turn())
    hold(locks, KEY, appends=True)
    exclusive = waiting(locks, False)
    appends = []
    for _ in range(50):
        await turn_of_the_loop()
        if exclusive.done():
            break
        appends.append(waiting(locks, True))  # the next one comes before the last one is settled
        await turn_of_the_loop()
        release(locks, KEY)
    assert exclusive.done()
    release(locks, KEY)
    await asyncio.gather(*appends)


async def test_a_newcomer_does_not_overtake_the_first_in_line(locks):
    first = waiting(locks, False)
    await turn_of_the_loop()
    release(locks, KEY)
    newcomer = waiting(locks, True)
    await turn_of_the_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    release(locks, KEY)
    await newcomer


async def test_a_waiter_that_holds_nothing_makes_way(locks):
    idle = [asyncio.create_task(locks.acquire(KEY, appends=appends)) for appends in (False, True, True, False)]
    task = waiting(locks, False)
    await turn_of_the_loop()
    release(locks, KEY)
    await asyncio.gather(*idle)
    await task
    release(locks, KEY)
    await turn_of_the_loop()
    assert not locks.held(KEY)


async def test_several_sessions_are_held_and_released_together(io_loop):
    locks = SessionLocks(Turn())
    hold(locks, KEY, OTHER)
    tasks = [waiting(locks, False), waiting(locks, True, OTHER)]
    await turn_of_the_loop()
    assert [task.done() for task in tasks] == [False, False]
    release(locks, KEY, OTHER)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_waiter_leaves_the_lock_to_others(locks, late):
    tasks = [waiting(locks, False) for _ in range(3)]
    await turn_of_the_loop()
    if late:
        release(locks, KEY)
    tasks[0].cancel()
    if not late:
        release(locks, KEY)
    await tasks[1]
    release(locks, KEY)
    await tasks[2]
    release(locks, KEY)
    await turn_of_the_loop()
    assert tasks[0].cancelled()
    assert not locks.held(KEY)


@pytest.mark.parametrize("contended", [False, True])
async def test_a_token_that_is_entered_after_an_await_is_refused(contended, io_loop):
    locks = SessionLocks(Turn())
    if contended:
        hold(locks, KEY)
        io_loop.call_later(0.01, release, locks, KEY)
    token = await locks.acquire(KEY)
    assert token.turn == locks._turn.number
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="before the next await"):
        locks.enter([token])
    await turn_of_the_loop()
    assert not locks.held(KEY)  # nothing is left of it
    locks.enter([await locks.acquire(KEY)])
    assert locks.held(KEY)


async def test_of_several_tokens_all_are_entered_or_none(io_loop):
    locks = SessionLocks(Turn())
    old = await locks.acquire(KEY)
    await asyncio.sleep(0)
    new = await locks.acquire(OTHER)
    with pytest.raises(RuntimeError):
        locks.enter([new, old])
    assert not locks.held(OTHER)


async def test_a_lock_is_tried_without_waiting(locks):
    assert locks.try_acquire(KEY) is None
    token = locks.try_acquire(OTHER)
    locks.enter([token])
    assert locks.try_acquire(OTHER) is None
    locks.release([token])
    assert not locks.held(OTHER)
