"""Metrics: histograms, requests by kind, and the lag of the event loop."""

import asyncio
import time

import pytest

from tornado_signal.metrics import Durations, Histogram, RequestMetrics
from tornado_signal.system.lag import PAUSE_S, Lag

BOUNDS = (0.5, 1.0, 2.0)


def test_bucket_includes_its_upper_bound():
    histogram = Histogram(BOUNDS)
    for value, bucket in [(0.0, 0), (0.5, 0), (0.6, 1), (1, 1), (2.0, 2), (2.1, 3)]:
        counts, total = list(histogram.counts), histogram.sum
        histogram.observe(value)
        counts[bucket] += 1
        assert (histogram.counts, histogram.sum) == (counts, total + value)


def test_requests_are_counted_by_kind_and_by_pattern():
    requests = Durations(BOUNDS)
    requests["/a", "GET", 200].observe(0.1)
    requests["/a", "GET", 200].observe(5.0)
    requests["/a", "HEAD", 200].observe(1.5)
    requests["/b", "GET", 404].observe(0.7)
    assert {kind: seconds.counts for kind, seconds in requests.items()} == {
        ("/a", "GET", 200): [1, 0, 0, 1],
        ("/a", "HEAD", 200): [0, 0, 1, 0],
        ("/b", "GET", 404): [0, 1, 0, 0],
    }
    by_pattern = requests.by_pattern()
    assert {pattern: seconds.counts for pattern, seconds in by_pattern.items()} == {
        "/a": [1, 0, 1, 1],
        "/b": [0, 1, 0, 0],
    }
    assert by_pattern["/a"].sum == pytest.approx(6.6)


async def test_lag_of_a_blocked_loop_is_measured():
    seconds = RequestMetrics().loop_lag
    lag = Lag(seconds)
    deadline_s = time.monotonic() + 20
    while not sum(seconds.counts):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    before = seconds.sum
    time.sleep(PAUSE_S + 0.5)  # noqa: ASYNC251 (a bug would block the loop like this)
    while seconds.sum - before < 0.4:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    assert sum(seconds.counts[8:]) >= 1  # more than 0.2 s
    lag.stop()
    total = sum(seconds.counts)
    await asyncio.sleep(2 * PAUSE_S)
    assert sum(seconds.counts) == total
