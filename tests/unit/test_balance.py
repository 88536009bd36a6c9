"""Processes that share sockets: one with clearly more WebSockets leaves new connections to the others."""

import os

import pytest

from tornado_signal.process import handover
from tornado_signal.process.handover import SLACK, Balance, share


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
