"""Work of many clients: each in its turn, a little in each turn of the loop, and nothing is kept of it."""

import asyncio
import itertools

import pytest
import uvloop

from tornado_signal.limits import fair_queue as fair
from tornado_signal.limits.fair_queue import FairQueue

pytestmark = pytest.mark.parametrize("io_loop", [uvloop.new_event_loop, asyncio.new_event_loop], indirect=True)


@pytest.fixture
def now_s(monkeypatch):
    """The time by which a queue measures its turns, turned by hand: `now_s[0] += 1.0`."""
    seconds = [1000.0]
    monkeypatch.setattr(fair, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.fixture
def queue(io_loop, now_s):
    """A fresh queue, which must be empty in the end."""

    async def make():
        return FairQueue()

    made = io_loop.run_sync(make)
    yield made
    assert not made._waiting
    io_loop.run_sync(lambda: asyncio.sleep(0))
    assert not made._running


async def emptied(queue, turn=lambda: None):
    """Let the loop turn until nothing waits; `turn` is called behind each turn."""
    while queue._waiting:
        await asyncio.sleep(0)
        turn()


async def test_clients_take_turns(queue):
    begun = []
    for number in range(1000):
        queue.submit("many", lambda number=number: begun.append(("many", number)))
    for number in range(3):
        for client in ("a", "b"):
            queue.submit(client, lambda client=client, number=number: begun.append((client, number)))
    await emptied(queue)
    assert begun[:9] == [(client, number) for number in range(3) for client in ("many", "a", "b")]
    assert begun[9:] == [("many", number) for number in range(3, 1000)]


async def test_a_newcomer_waits_for_one_task_of_each_client(queue):
    begun = []
    for client in range(10):
        for _ in range(100):
            queue.submit(client, lambda client=client: begun.append(client))
    await asyncio.sleep(0)
    before = len(begun)
    queue.submit("late", lambda: begun.append("late"))
    await emptied(queue)
    assert before <= begun.index("late") <= before + 10


async def test_a_turn_begins_at_most_the_limit(queue):
    begun = []
    for number in range(100):
        queue.submit(number % 7, lambda: begun.append(1))
    turns = [0]
    await emptied(queue, lambda: turns.append(len(begun)))
    steps = [after - before for before, after in itertools.pairwise(turns)]
    assert max(steps) == fair.MAX_STARTED
    assert len(steps) <= 100 / fair.MAX_STARTED + 3
    assert len(begun) == 100


async def test_slow_turns_begin_fewer_until_they_are_fast_again(queue, now_s):
    begun, counts = [], [0]

    def turn():
        counts.append(len(begun))
        now_s[0] += 2 * fair.TURN_S if len(counts) <= 6 else 0

    for _ in range(60):
        queue.submit("c", lambda: begun.append(1))
    await emptied(queue, turn)
    steps = [after - before for before, after in itertools.pairwise(counts) if after > before]
    assert steps[:6] == [fair.MAX_STARTED, fair.MAX_STARTED // 2, 1, 1, 1, 1]
    assert max(steps[6:]) == fair.MAX_STARTED


async def test_turns_keep_the_order_of_each_client(queue):
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


async def test_a_cancelled_turn_holds_up_nobody(queue):
    turns = [queue.turn("a") for _ in range(20)]
    for turn in turns[::2]:
        turn.cancel()
    other = queue.turn("b")
    await asyncio.gather(*turns[1::2], other)
    assert [turn.cancelled() for turn in turns] == [True, False] * 10


async def test_an_exception_does_not_stop_the_queue(queue):
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


async def test_work_that_submits_more_leaves_room_for_others(queue):
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
