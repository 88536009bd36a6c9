"""Whose turn it is: exclusive changes one after another, appends together, and nobody left waiting."""

import asyncio

import pytest

from tornado_signal.stores.leveldb.locks import Turns

KEY, OTHER = b"one session", b"another"


async def turn_of_the_loop():
    """Let everything go on that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def waiting(turns, appends, key=KEY):
    """A task that takes its turn as soon as it has it."""

    async def wait():
        await turns.mine(key, appends=appends)
        turns.take([key], appends=appends)

    return asyncio.create_task(wait())


@pytest.mark.parametrize(("first", "second", "together"), [(0, 0, False), (0, 1, False), (1, 0, False), (1, 1, True)])
async def test_only_appends_join_appends(io_loop, first, second, together):
    """A change waits for the one before it unless both only append."""
    turns = Turns()
    turns.take([KEY], appends=bool(first))
    task = waiting(turns, bool(second))
    await turn_of_the_loop()
    assert task.done() == together
    turns.release([KEY])
    await task
    turns.release([KEY])
    await turn_of_the_loop()
    assert not turns.taken(KEY)


async def test_other_sessions_are_not_waited_for(io_loop):
    """A change of one session does not hold up another one."""
    turns = Turns()
    turns.take([KEY])
    await turns.mine(OTHER)
    assert (turns.taken(KEY), turns.taken(OTHER)) == (True, False)


async def test_an_exclusive_change_waits_for_every_append(io_loop):
    """The last of several appends makes way, not the first."""
    turns = Turns()
    for _ in range(3):
        turns.take([KEY], appends=True)
    task = waiting(turns, False)
    for _ in range(3):
        await turn_of_the_loop()
        assert not task.done()
        turns.release([KEY])
    await task


async def test_exclusive_changes_go_one_by_one_in_the_order_of_their_coming(io_loop):
    """Of many that wait, one goes at a time, the first to come first."""
    turns = Turns()
    turns.take([KEY])
    order = []

    async def change(number):
        await turns.mine(KEY)
        turns.take([KEY])
        order.append(number)

    tasks = [asyncio.create_task(change(number)) for number in range(20)]
    for done in range(20):
        await turn_of_the_loop()
        assert order == list(range(done))
        turns.release([KEY])
    await asyncio.gather(*tasks)


async def test_an_unbroken_stream_of_appends_does_not_shut_others_out(io_loop):
    """An answer gets its turn also while candidates of its session never stop coming."""
    turns = Turns()
    turns.take([KEY], appends=True)
    exclusive = waiting(turns, False)
    appends = []
    for _ in range(50):
        await turn_of_the_loop()
        if exclusive.done():
            break
        appends.append(waiting(turns, True))  # the next one comes before the last one is settled
        await turn_of_the_loop()
        turns.release([KEY])
    assert exclusive.done()
    turns.release([KEY])
    await asyncio.gather(*appends)


async def test_who_has_waited_is_not_overtaken_on_the_way(io_loop):
    """Between the release and the moment that the first in line goes on, a newcomer does not slip in."""
    turns = Turns()
    turns.take([KEY])
    first = waiting(turns, False)
    await turn_of_the_loop()
    turns.release([KEY])
    newcomer = waiting(turns, True)
    await turn_of_the_loop()
    assert (first.done(), newcomer.done()) == (True, False)
    turns.release([KEY])
    await newcomer


async def test_who_changes_nothing_makes_way(io_loop):
    """A waiter that has its turn and takes nothing does not hold up the next, nor leave anything behind."""
    turns = Turns()
    turns.take([KEY])
    idle = [asyncio.create_task(turns.mine(KEY, appends=appends)) for appends in (False, True, True, False)]
    task = waiting(turns, False)
    await turn_of_the_loop()
    turns.release([KEY])
    await asyncio.gather(*idle)
    await task
    turns.release([KEY])
    await turn_of_the_loop()
    assert not turns.taken(KEY)


async def test_several_sessions_are_taken_and_released_together(io_loop):
    """What the sweep takes in one step is free again after one release."""
    turns = Turns()
    turns.take([KEY, OTHER])
    tasks = [waiting(turns, False), waiting(turns, True, OTHER)]
    await turn_of_the_loop()
    assert [task.done() for task in tasks] == [False, False]
    turns.release([KEY, OTHER])
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("late", [False, True])
async def test_who_gives_up_waiting_harms_nobody(io_loop, late):
    """A waiter that is cancelled, also in the moment it gets its turn, leaves the others theirs."""
    turns = Turns()
    turns.take([KEY])
    tasks = [waiting(turns, False) for _ in range(3)]
    await turn_of_the_loop()
    if late:
        turns.release([KEY])
    tasks[0].cancel()
    if not late:
        turns.release([KEY])
    await tasks[1]
    turns.release([KEY])
    await tasks[2]
    turns.release([KEY])
    await turn_of_the_loop()
    assert tasks[0].cancelled()
    assert not turns.taken(KEY)
