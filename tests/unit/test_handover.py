"""A worker follows its supervisor until the end of the pipe, and leaves connections to others that have fewer."""

import asyncio
import os

import pytest

from tornado_signal.process import handover
from tornado_signal.process.handover import SLACK, Balance, encode, share, watch_pipe


@pytest.mark.parametrize("end", ["closed", "unreadable"])
async def test_worker_applies_settings_after_an_error_and_stops_at_the_end(io_loop, monkeypatch, caplog, end):
    monkeypatch.setattr(handover, "MAX_ENCODED_BYTES", 1000)
    reader, writer = os.pipe()
    applied, stopped = [], asyncio.Event()

    def apply(settings):
        applied.append(settings)
        if settings == "bad":
            raise ZeroDivisionError

    os.write(
        writer, encode("bad") + b"no line of base64\n" + encode("good") + (b"x" * 3000 if end != "closed" else b"")
    )
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
    descriptor = share(3)
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


def test_last_accepting_process_continues(rows):
    first, second, _ = rows
    assert second.accepts(5)
    assert not first.accepts(10)
    assert second.accepts(50)  # until the first process reads that it has the fewest
    assert first.accepts(10)
    assert not second.accepts(50)


@pytest.mark.parametrize(("name", "value"), [("FRESH_S", 0), ("BUSY", -1)])
def test_stuck_or_busy_process_is_not_waited_for(name, value, rows, monkeypatch):
    first, second, _ = rows
    monkeypatch.setattr(handover, name, value)
    assert second.accepts(0)
    assert first.accepts(100)
