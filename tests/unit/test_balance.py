"""Processes that share sockets: one with clearly more WebSockets leaves connections to the others."""

import os

import pytest

from tornado_signal.process import balance
from tornado_signal.process.balance import SLACK, Balance, share


@pytest.fixture
def rows(monkeypatch):
    """Three processes; neither how long the test takes nor the processor time that it uses matters."""
    monkeypatch.setattr(balance, "FRESH_S", 1e9)
    monkeypatch.setattr(balance, "BUSY", float("inf"))
    descriptor = share(3)
    yield [Balance(descriptor, number) for number in (1, 2, 3)]
    os.close(descriptor)


def test_who_has_clearly_more_leaves_connections_to_the_others(rows):
    one, other, third = rows
    assert one.accepts(100)
    assert other.accepts(100)
    assert third.accepts(0)
    assert not one.accepts(SLACK + 1)
    assert one.accepts(SLACK)
    assert not other.accepts(100)
    assert not third.accepts(90)
    assert one.accepts(100)


def test_the_last_that_accepts_goes_on(rows):
    one, other, _ = rows
    assert other.accepts(5)
    assert not one.accepts(10)
    assert other.accepts(50)  # until the first one reads that it has the fewest
    assert one.accepts(10)
    assert not other.accepts(50)


@pytest.mark.parametrize(("name", "value"), [("FRESH_S", 0), ("BUSY", -1)])
def test_a_process_that_is_stuck_or_busy_attracts_nothing(name, value, rows, monkeypatch):
    one, other, _ = rows
    monkeypatch.setattr(balance, name, value)
    assert other.accepts(0)
    assert one.accepts(100)
