"""The lifecycle of the process: its states have one order and release waiters, and all that it opened is closed."""

import asyncio
import itertools

import pytest

from tornado_signal.process import draining
from tornado_signal.process.draining import LIMITS_S, Stages
from tornado_signal.system.lifecycle import CLOSED, DRAINING, LEAVING, SERVING, STARTING, Lifecycle, State


def test_states_have_an_order_and_never_go_back():
    assert list(State) == [STARTING, SERVING, LEAVING, DRAINING, CLOSED] == sorted(State)
    for first, second in itertools.product(State, State):
        lifecycle = Lifecycle()
        lifecycle.reach(first)
        lifecycle.reach(second)
        assert lifecycle.state is max(first, second)


@pytest.mark.parametrize(
    ("before", "after"),
    [(STARTING, LEAVING), (SERVING, LEAVING), (LEAVING, CLOSED), (DRAINING, CLOSED), (CLOSED, CLOSED)],
)
def test_second_request_to_stop_closes_immediately(before, after):
    lifecycle = Lifecycle()
    lifecycle.reach(before)
    lifecycle.stop()
    assert lifecycle.state is after


async def test_waiters_are_released_by_their_state_or_a_later_one():
    lifecycle = Lifecycle()
    waiting = {state: asyncio.create_task(lifecycle.reached(state)) for state in State}
    reached = []
    for state in (STARTING, SERVING, DRAINING, CLOSED):
        lifecycle.reach(state)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reached.append([awaited for awaited, task in waiting.items() if task.done()])
    assert reached == [[STARTING], [STARTING, SERVING], [STARTING, SERVING, LEAVING, DRAINING], list(State)]


async def test_parts_are_closed_in_reverse_order_although_one_fails_and_one_hangs(monkeypatch, caplog):
    monkeypatch.setitem(LIMITS_S, "relay", 0.01)
    stages, closed = Stages(), []

    def opened(name, work=None):
        async def close():
            closed.append(name)
            if work is not None:
                await work()

        stages.opened(name, close)

    async def fail():
        raise ZeroDivisionError

    opened("store")
    opened("relay", asyncio.Event().wait)
    opened("webhooks", fail)
    opened("requests")
    await stages.close()
    assert closed == ["requests", "webhooks", "relay", "store"]
    assert [record.getMessage() for record in caplog.records if record.name == draining.__name__] == [
        "stopping: cannot close webhooks",
        "stopping: relay not closed within 0.01 s; continuing without it",
    ]
    await stages.close()
    assert len(closed) == 4


def test_part_out_of_the_documented_order_is_refused():
    stages = Stages()
    stages.opened("relay", asyncio.Event().wait)
    with pytest.raises(AssertionError, match="store"):
        stages.opened("store", asyncio.Event().wait)
