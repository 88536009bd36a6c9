"""The lifecycle of the process: its states have one order, are never left for an earlier one, and release waiters."""

import asyncio
import itertools

import pytest

from tornado_signal.system.lifecycle import CLOSED, DRAINING, LEAVING, SERVING, STARTING, Lifecycle, State


def test_order_of_the_states():
    assert list(State) == [STARTING, SERVING, LEAVING, DRAINING, CLOSED] == sorted(State)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(State, State)))
def test_state_never_goes_back(first, second):
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
