"""Requests of the last minutes by name: bounded, and honest about adversaries with many names."""

import pytest

from tornado_signal.limits.recent import (
    KEPT,
    MAX_NAMES,
    MINUTE,
    OTHERS,
    SLICES,
    Counts,
    RecentCounts,
    network_of,
    with_networks,
)


@pytest.fixture
def recent():
    return RecentCounts(network_of, OTHERS)


def count(recent, name, *statuses):
    for status in statuses:
        recent.count(name, status)


def test_counts_are_those_of_five_minutes_and_of_the_last_one(recent):
    count(recent, "192.0.2.1", 200, 404, 429, 503)
    for _ in range(MINUTE):
        recent.rotate()
        assert recent.totals() == {"192.0.2.1": (Counts(4, 2, 1), Counts(4, 2, 1))}
    recent.rotate()
    count(recent, "192.0.2.1", 0)
    assert recent.totals() == {"192.0.2.1": (Counts(5, 2, 1), Counts(1, 0, 0))}
    for _ in range(SLICES):
        recent.rotate()
    assert recent.totals() == {"192.0.2.1": (Counts(1, 0, 0), Counts(0, 0, 0))}
    recent.rotate()
    assert recent.totals() == {}


def test_clients_of_a_large_network_are_merged_and_replace_nobody(recent):
    for _ in range(20):
        count(recent, "192.0.2.1", *[200] * 20)
        for number in range(600):
            count(recent, f"2001:db8:1:{number:x}::/64", 429)
            assert len(recent._current) <= MAX_NAMES
        recent.rotate()
        assert len(recent._complete[-1]) <= 2 * KEPT
    totals = recent.totals()
    assert totals["192.0.2.1"][0] == Counts(400, 0, 0)
    shown = with_networks(totals)
    assert shown["2001:db8:1::/48"][0] == Counts(12_000, 12_000, 0)


def test_clients_of_very_many_networks_are_merged(recent):
    for number in range(2000):
        count(recent, f"10.{number // 250}.{number % 250}.7", 200)
        assert len(recent._current) <= MAX_NAMES
    recent.rotate()
    totals = recent.totals()
    assert sum(all_.requests for all_, _ in totals.values()) == 2000
    assert totals[OTHERS][0].requests > 1000


def test_networks_with_several_clients_are_shown_as_one():
    one = (Counts(2, 1, 0), Counts(1, 0, 0))
    shown = with_networks({f"192.0.2.{number}": one for number in range(3)} | {"198.51.100.1": one, "": one})
    assert shown["192.0.2.0/24"] == (Counts(6, 3, 0), Counts(3, 0, 0))
    assert shown.keys() - {"192.0.2.0", "192.0.2.1", "192.0.2.2"} == {"192.0.2.0/24", "198.51.100.1", ""}


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("192.0.2.1", "192.0.2.0/24"),
        ("192.0.2.0/24", OTHERS),
        ("2001:db8:1:2::/64", "2001:db8:1::/48"),
        ("2001:db8:1::/48", OTHERS),
        ("2001:db8::1", "2001:db8::/48"),
        ("", OTHERS),
        (OTHERS, OTHERS),
    ],
)
def test_network_of_a_client(name, network):
    assert network_of(name) == network
