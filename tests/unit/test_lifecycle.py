"""The lifecycle of the process: its states, the end of all that it opened, and workers that follow their supervisor."""

import asyncio
import itertools
import os

import pytest

from tornado_signal.process import draining, handover
from tornado_signal.process.draining import LIMITS_S, Stages
from tornado_signal.process.handover import SLACK, Balance, create_balance_memory, encode, watch_pipe
from tornado_signal.system.lifecycle import CLOSED, DRAINING, LEAVING, SERVING, STARTING, Lifecycle, State


def test_states_have_an_order_and_never_go_back():
    assert list(State) == [STARTING, SERVING, LEAVING, DRAINING, CLOSED] == sorted(State)
    for first, second in itertools.product(State, State):
        lifecycle = Lifecycle()
        lifecycle.reach(first)
        lifecycle.reach(second)
        assert lifecycle.state is max(first, second)


def test_second_request_to_stop_closes_immediately():
    for before in State:
        lifecycle = Lifecycle()
        lifecycle.reach(before)
        lifecycle.stop()
        assert lifecycle.state is (LEAVING if before in (STARTING, SERVING) else CLOSED)


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
    with pytest.raises(AssertionError, match="store"):  # it is not in the documented order
        opened("store")
    await stages.close()
    assert closed == ["requests", "webhooks", "relay", "store"]
    assert [record.getMessage() for record in caplog.records if record.name == draining.__name__] == [
        "stopping: cannot close webhooks",
        "stopping: relay not closed within 0.01 s; continuing without it",
    ]
    await stages.close()
    assert len(closed) == 4


@pytest.mark.parametrize("end", ["closed", "unreadable"])
async def test_worker_applies_settings_after_an_error_and_stops_at_the_end(io_loop, monkeypatch, caplog, end):
    monkeypatch.setattr(handover, "MAX_ENCODED_BYTES", 1000)
    reader, writer = os.pipe()
    applied, stopped = [], asyncio.Event()

    def apply(settings):
        applied.append(settings)
        if settings == "bad":
            raise ZeroDivisionError

    os.write(writer, encode("bad") + b"no line of base64\n" + encode("good") + b"x" * (3000 * (end != "closed")))
    if end == "closed":
        os.close(writer)
    await asyncio.wait_for(watch_pipe(reader, apply, stopped.set), 60)
    await asyncio.sleep(0.01)  # until the pipe is closed
    assert applied == ["bad", "good"]
    assert stopped.is_set()
    assert "ZeroDivisionError" in caplog.text
    assert ("cannot read from the supervisor" in caplog.text) == (end == "unreadable")
    if end != "closed":
        os.close(writer)


@pytest.fixture(params=["as the system has it", "without memfd_create"])
def rows(monkeypatch, request):
    """Three processes. The duration and processor time of the test do not matter."""
    if request.param == "without memfd_create":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr(handover, "FRESH_S", 1e9)
    monkeypatch.setattr(handover, "BUSY", float("inf"))
    descriptor = create_balance_memory(3)
    yield [Balance(descriptor, number) for number in (1, 2, 3)]
    os.close(descriptor)


def test_process_with_clearly_more_leaves_connections_to_the_others(rows):
    first, second, third = rows
    assert first.accepts(100)
    assert second.accepts(100)
    assert third.accepts(0)
    assert not first.accepts(SLACK + 1)
    assert first.accepts(SLACK)
    assert not second.accepts(100)
    assert not third.accepts(90)
    assert first.accepts(100)


def test_last_accepting_process_continues_and_a_stuck_or_busy_one_is_not_waited_for(rows, monkeypatch):
    first, second, _ = rows
    assert second.accepts(5)
    assert not first.accepts(10)
    assert second.accepts(50)  # until the first process reads that it has the fewest
    assert first.accepts(10)
    assert not second.accepts(50)
    for name, value in (("FRESH_S", 0), ("BUSY", -1)):
        with monkeypatch.context() as patch:
            patch.setattr(handover, name, value)
            assert first.accepts(0)
            assert second.accepts(100)
