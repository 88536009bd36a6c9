"""Session locks: changes run one at a time in their order, and no waiter is left behind."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import SessionLocks

KEY, OTHER = b"one session", b"another"


async def run_loop():
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def locks():
    return SessionLocks()


def start_waiter(locks, key=KEY):
    return asyncio.create_task(locks.acquire(key))


async def test_changes_run_one_at_a_time_in_order(locks):
    order = []

    async def change(number):
        with await locks.acquire(KEY):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(change(number) for number in range(20)))
    assert order == [number for number in range(20) for _ in range(2)]
    assert not locks.held(KEY)


async def test_free_lock_is_acquired_at_once(locks):
    with await locks.acquire(KEY) as lock:
        acquiring = locks.acquire(OTHER)
        with pytest.raises(StopIteration):
            acquiring.send(None)
        assert (lock.key, locks.held(KEY), locks.held(OTHER)) == (KEY, True, True)


async def test_new_waiter_does_not_overtake_the_first_one(locks):
    lock = await locks.acquire(KEY)
    first = start_waiter(locks)
    await run_loop()
    lock.release()
    newcomer = start_waiter(locks)
    await run_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    first.result().release()
    await newcomer


async def test_lock_of_a_submitted_change_outlives_the_block_until_the_write(locks):
    with await locks.acquire(KEY) as lock:
        lock.writing = True
    waiter = start_waiter(locks)
    await run_loop()
    assert not waiter.done()
    lock.release()
    with await waiter:
        pass
    assert not locks.held(KEY)


async def test_failed_change_lets_others_proceed(locks):
    async def fail():
        with await locks.acquire(KEY):
            await run_loop()
            raise ZeroDivisionError

    failing, waiter = asyncio.create_task(fail()), start_waiter(locks)
    with pytest.raises(ZeroDivisionError):
        await failing
    await waiter


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
