"""FairQueue: clients take turns, each event-loop iteration does a bounded amount of work, and nothing is retained."""

import asyncio
import itertools

import pytest
import uvloop

from tornado_signal.limits import fair_queue as fair
from tornado_signal.limits.fair_queue import FairQueue

pytestmark = pytest.mark.parametrize("io_loop", [uvloop.new_event_loop, asyncio.new_event_loop], indirect=True)


@pytest.fixture
def now_s(monkeypatch):
    """The clock of the queue, set by the test: `now_s[0] += 1.0`."""
    seconds = [1000.0]
    monkeypatch.setattr(fair, "perf_counter", lambda: seconds[0])
    return seconds


@pytest.fixture
def queue(io_loop, now_s):
    async def make():
        return FairQueue()

    fair_queue = io_loop.run_sync(make)
    yield fair_queue
    assert not fair_queue._waiting
    io_loop.run_sync(lambda: asyncio.sleep(0))
    assert not fair_queue._running


async def until_empty(queue, turn=lambda: None):
    """Run the event loop until nothing waits. `turn` is called after each iteration."""
    while queue._waiting:
        await asyncio.sleep(0)
        turn()


async def test_clients_take_turns(queue):
    started = []
    for number in range(1000):
        queue.submit("many", lambda number=number: started.append(("many", number)))
    for number in range(3):
        for client in ("a", "b"):
            queue.submit(client, lambda client=client, number=number: started.append((client, number)))
    await until_empty(queue)
    assert started[:9] == [(client, number) for number in range(3) for client in ("many", "a", "b")]
    assert started[9:] == [("many", number) for number in range(3, 1000)]


async def test_slow_iterations_start_fewer_tasks_until_they_are_fast_again(queue, now_s):
    started, counts = [], [0]

    def turn():
        counts.append(len(started))
        now_s[0] += 2 * fair.TURN_S if len(counts) <= 6 else 0

    for _ in range(60):
        queue.submit("c", lambda: started.append(1))
    await until_empty(queue, turn)
    steps = [after - before for before, after in itertools.pairwise(counts) if after > before]
    assert steps[:6] == [fair.MAX_STARTED, fair.MAX_STARTED // 2, 1, 1, 1, 1]
    assert max(steps[6:]) == fair.MAX_STARTED


async def test_little_work_starts_at_once_and_more_waits_for_its_turn(queue, now_s):
    started = []

    def start(client, item):
        if queue.may_start(fair.perf_counter()):
            started.append(item)
        else:
            queue.submit(client, lambda: started.append(item))

    for number in range(2 * fair.MAX_STARTED):
        start("a", number)
    start("b", "b")
    assert started == list(range(fair.MAX_STARTED))
    now_s[0] += 2 * fair.TURN_S
    start("c", "c")  # not before those that wait
    await until_empty(queue)
    assert started[fair.MAX_STARTED :] == [6, "b", "c", 7, 8, 9, 10, 11]
    await asyncio.sleep(0)
    start("a", "a")
    assert started[-1] == "a"


async def test_turns_keep_the_order_of_each_client_and_cancelled_ones_delay_nobody(queue, caplog):
    names = [("a", number) for number in range(20)] + [("b", number) for number in range(2)]
    turns, done = {name: queue.turn(name[0]) for name in names}, []
    for name, turn in turns.items():
        turn.add_done_callback(lambda turn, name=name: turn.cancelled() or done.append(name))
    for number in range(0, 20, 2):
        turns["a", number].cancel()
    await asyncio.gather(*turns.values(), return_exceptions=True)
    await asyncio.sleep(0)
    assert [number for client, number in done if client == "a"] == list(range(1, 20, 2))
    assert [number for client, number in done if client == "b"] == [0, 1]
    assert done.index(("b", 1)) < done.index(("a", 7))
    assert caplog.records == []


async def test_exception_does_not_stop_the_queue(queue):
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context["exception"]))

    def fail():
        raise ZeroDivisionError

    started = []
    for number in range(20):
        queue.submit(number % 3, fail if number % 5 == 0 else lambda: started.append(1))
    await until_empty(queue)
    assert (len(started), [type(error) for error in errors]) == (16, [ZeroDivisionError] * 4)
    await asyncio.sleep(0)
    await asyncio.wait_for(queue.turn("a"), 60)


async def test_task_that_submits_more_does_not_delay_others(queue):
    started = []

    def submit_again(remaining):
        started.append(remaining)
        if remaining:
            queue.submit("a", lambda: submit_again(remaining - 1))

    submit_again(50)
    queue.submit("b", lambda: started.append("b"))
    await until_empty(queue)
    assert started.index("b") <= 2
    assert started[-1] == 0
