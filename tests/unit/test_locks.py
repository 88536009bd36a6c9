"""Session locks: changes run one at a time, appends keep none waiting, and no waiter is left behind."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import LockToken, SessionLocks

KEY, OTHER = b"one session", b"another"


async def run_loop():
    for _ in range(5):
        await asyncio.sleep(0)


def enter(locks, *keys, appends=False):
    """Enter the locks of sessions, even if they are held."""
    locks.enter([LockToken(key, appends, locks._iteration.current()) for key in keys])


def release(locks, *keys):
    locks.release([LockToken(key, False, 0) for key in keys])


def start_waiter(locks, appends, key=KEY):
    """Start a task that enters the lock once it has acquired it."""

    async def wait():
        locks.enter([await locks.acquire(key, appends=appends)])

    return asyncio.create_task(wait())


@pytest.fixture
def locks(io_loop):
    """Session locks of which one is held."""

    async def make():
        session_locks = SessionLocks()
        enter(session_locks, KEY)
        return session_locks

    return io_loop.run_sync(make)


async def test_appends_wait_for_a_change_and_keep_none_waiting(locks):
    tasks = [start_waiter(locks, True) for _ in range(3)]
    await run_loop()
    assert not any(task.done() for task in tasks)
    release(locks, KEY)
    await asyncio.gather(*tasks)
    await run_loop()
    assert not locks.held(KEY)
    enter(locks, KEY, appends=True)
    task = start_waiter(locks, False)
    await run_loop()
    assert task.done()


async def test_exclusive_changes_run_one_at_a_time_in_order(locks):
    await locks.acquire(OTHER)  # the lock of another session is free
    assert not locks.held(OTHER)
    order = []

    async def change(number):
        locks.enter([await locks.acquire(KEY)])
        order.append(number)

    tasks = [asyncio.create_task(change(number)) for number in range(20)]
    for completed in range(20):
        await run_loop()
        assert order == list(range(completed))
        release(locks, KEY)
    await asyncio.gather(*tasks)


async def test_new_waiter_does_not_overtake_the_first_one(locks):
    first = start_waiter(locks, False)
    await run_loop()
    release(locks, KEY)
    newcomer = start_waiter(locks, True)
    await run_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    release(locks, KEY)
    await newcomer


async def test_waiter_that_does_not_enter_lets_others_proceed(locks):
    idle = [asyncio.create_task(locks.acquire(KEY, appends=appends)) for appends in (False, True, True, False)]
    task = start_waiter(locks, False)
    await run_loop()
    release(locks, KEY)
    await asyncio.gather(*idle)
    await task
    release(locks, KEY)
    await run_loop()
    assert not locks.held(KEY)


async def test_several_sessions_are_held_and_released_together(io_loop):
    locks = SessionLocks()
    enter(locks, KEY, OTHER)
    tasks = [start_waiter(locks, False), start_waiter(locks, True, OTHER)]
    await run_loop()
    assert [task.done() for task in tasks] == [False, False]
    release(locks, KEY, OTHER)
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("late", [False, True])
async def test_cancelled_waiter_leaves_the_lock_to_others(locks, late):
    tasks = [start_waiter(locks, False) for _ in range(3)]
    await run_loop()
    if late:
        release(locks, KEY)
    tasks[0].cancel()
    if not late:
        release(locks, KEY)
    await tasks[1]
    release(locks, KEY)
    await tasks[2]
    release(locks, KEY)
    await run_loop()
    assert tasks[0].cancelled()
    assert not locks.held(KEY)


@pytest.mark.parametrize("contended", [False, True])
async def test_token_entered_after_an_await_is_refused(contended, io_loop):
    locks = SessionLocks()
    if contended:
        enter(locks, KEY)
        io_loop.call_later(0.01, release, locks, KEY)
    token = await locks.acquire(KEY)
    assert token.iteration == locks._iteration.number
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="before the next await"):
        locks.enter([token])
    await run_loop()
    assert not locks.held(KEY)  # the refused token holds nothing
    locks.enter([await locks.acquire(KEY)])
    assert locks.held(KEY)


async def test_several_tokens_are_entered_all_or_none(io_loop):
    locks = SessionLocks()
    old = await locks.acquire(KEY)
    await asyncio.sleep(0)
    new = await locks.acquire(OTHER)
    with pytest.raises(RuntimeError):
        locks.enter([new, old])
    assert not locks.held(OTHER)


async def test_try_acquire_does_not_wait(locks):
    assert locks.try_acquire(KEY) is None
    token = locks.try_acquire(OTHER)
    locks.enter([token])
    assert locks.try_acquire(OTHER) is None
    locks.release([token])
    assert not locks.held(OTHER)
