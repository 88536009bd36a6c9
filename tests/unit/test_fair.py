"""Work of many clients: each in its turn, a little in each turn of the loop, and nothing is kept of it."""

import asyncio
import itertools
import time

import pytest
import uvloop

from tornado_signal.limits import fair_queue as fair
from tornado_signal.limits.fair_queue import FairQueue

LOOPS = {"uvloop": uvloop.run, "asyncio": asyncio.run}


@pytest.fixture(params=LOOPS)
def run(request):
    """Run a coroutine function with a fresh queue, on a loop of its own; in the end the queue must be empty."""

    def run(test):
        async def started():
            queue = FairQueue()
            await test(queue)
            assert not queue._waiting
            await asyncio.sleep(0)
            assert not queue._running

        return LOOPS[request.param](started())

    return run


async def emptied(queue, turn=lambda: None):
    """Let the loop turn until nothing waits; `turn` is called behind each turn."""
    while queue._waiting:
        await asyncio.sleep(0)
        turn()


def test_clients_take_turns(run):
    async def test(queue):
        begun = []
        for number in range(1000):
            queue.submit("many", lambda number=number: begun.append(("many", number)))
        for number in range(3):
            for client in ("a", "b"):
                queue.submit(client, lambda client=client, number=number: begun.append((client, number)))
        await emptied(queue)
        assert begun[:9] == [(client, number) for number in range(3) for client in ("many", "a", "b")]
        assert begun[9:] == [("many", number) for number in range(3, 1000)]

    run(test)


def test_a_newcomer_waits_for_one_task_of_each_client(run):
    async def test(queue):
        begun = []
        for client in range(10):
            for _ in range(100):
                queue.submit(client, lambda client=client: begun.append(client))
        await asyncio.sleep(0)
        before = len(begun)
        queue.submit("late", lambda: begun.append("late"))
        await emptied(queue)
        assert before <= begun.index("late") <= before + 10

    run(test)


def test_a_turn_begins_at_most_the_limit(run):
    async def test(queue):
        begun = []
        for number in range(100):
            queue.submit(number % 7, lambda: begun.append(1))
        turns = [0]
        await emptied(queue, lambda: turns.append(len(begun)))
        steps = [after - before for before, after in itertools.pairwise(turns)]
        assert max(steps) == fair.MOST
        assert len(steps) <= 100 / fair.MOST + 3
        assert len(begun) == 100

    run(test)


def test_slow_turns_begin_fewer_until_they_are_fast_again(run):
    async def test(queue):
        begun = []
        pause_s = 2 * fair.TURN_S

        def begin():
            begun.append(1)

        for _ in range(60):
            queue.submit("c", begin)
        steps = []
        for turn in range(40):
            before = len(begun)
            await asyncio.sleep(0)
            steps.append(len(begun) - before)
            if turn < 6:
                time.sleep(pause_s)  # noqa: ASYNC251 (what was begun takes so long)
            if not queue._waiting:
                break
        found = [step for step in steps if step]
        assert found[0] == fair.MOST
        assert found[1:6] == [fair.MOST // 2, 1, 1, 1, 1]
        assert max(found[6:]) == fair.MOST
        await emptied(queue)

    run(test)


def test_turns_keep_the_order_of_each_client(run):
    async def test(queue):
        done = []

        async def work(client, number):
            await queue.turn(client)
            done.append((client, number))

        working = [asyncio.ensure_future(work("a", number)) for number in range(5)]
        working += [asyncio.ensure_future(work("b", number)) for number in range(2)]
        await asyncio.gather(*working)
        assert [number for client, number in done if client == "a"] == list(range(5))
        assert [number for client, number in done if client == "b"] == [0, 1]
        assert done.index(("b", 1)) < done.index(("a", 3))

    run(test)


def test_a_cancelled_turn_holds_up_nobody(run):
    async def test(queue):
        turns = [queue.turn("a") for _ in range(20)]
        for turn in turns[::2]:
            turn.cancel()
        other = queue.turn("b")
        await asyncio.gather(*turns[1::2], other)
        assert [turn.cancelled() for turn in turns] == [True, False] * 10

    run(test)


def test_an_exception_does_not_stop_the_queue(run):
    async def test(queue):
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["exception"]))

        def fail():
            raise ZeroDivisionError

        begun = []
        for number in range(20):
            queue.submit(number % 3, fail if number % 5 == 0 else lambda: begun.append(1))
        await emptied(queue)
        assert (len(begun), [type(each) for each in told]) == (16, [ZeroDivisionError] * 4)
        await asyncio.sleep(0)
        await asyncio.wait_for(queue.turn("a"), 5)

    run(test)


def test_work_that_submits_more_leaves_room_for_others(run):
    async def test(queue):
        begun = []

        def again(left):
            begun.append(left)
            if left:
                queue.submit("a", lambda: again(left - 1))

        again(50)
        queue.submit("b", lambda: begun.append("b"))
        await emptied(queue)
        assert begun.index("b") <= 2
        assert begun[-1] == 0

    run(test)
