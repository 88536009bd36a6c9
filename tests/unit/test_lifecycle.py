"""The state of the process: in one order, never back, with those who wait for it."""

import asyncio
import itertools

import pytest

from tornado_signal.lifecycle import CLOSED, DRAINING, LEAVING, SERVING, STARTING, Lifecycle, State


def test_the_order_of_the_states():
    assert list(State) == [STARTING, SERVING, LEAVING, DRAINING, CLOSED] == sorted(State)


@pytest.mark.parametrize(("first", "second"), list(itertools.product(State, State)))
def test_a_state_is_never_left_for_an_earlier_one(first, second):
    lifecycle = Lifecycle()
    lifecycle.reach(first)
    lifecycle.reach(second)
    assert lifecycle.state is max(first, second)


@pytest.mark.parametrize(
    ("before", "after"),
    [(STARTING, LEAVING), (SERVING, LEAVING), (LEAVING, CLOSED), (DRAINING, CLOSED), (CLOSED, CLOSED)],
)
def test_the_second_request_to_stop_closes_at_once(before, after):
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
        reached.append([each for each, task in waiting.items() if task.done()])
    assert reached == [[STARTING], [STARTING, SERVING], [STARTING, SERVING, LEAVING, DRAINING], list(State)]
