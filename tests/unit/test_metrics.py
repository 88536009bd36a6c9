"""The numbers: histograms, requests that are counted later, and how late the loop is."""

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.metrics import Histogram, Metrics, Requests, Writes
from tornado_signal.system.lag import PAUSE_S, Lag

BOUNDS = (0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        (0.0, [1, 0, 0, 0]),
        (0.5, [1, 0, 0, 0]),
        (0.6, [0, 1, 0, 0]),
        (1, [0, 1, 0, 0]),
        (2.0, [0, 0, 1, 0]),
        (2.1, [0, 0, 0, 1]),
    ],
)
def test_an_end_belongs_to_its_range(value, counts):
    """A value that is an upper end is not more than it (Prometheus: less or equal)."""
    histogram = Histogram(BOUNDS)
    histogram.observe(value)
    assert (histogram.counts, histogram.sum) == (counts, value)


@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0]))))
def test_many_at_a_time(lists):
    """Values that are counted together are counted like one after the other, and forgotten."""
    together, each = Histogram(BOUNDS), Histogram(BOUNDS)
    for values in lists:
        for value in values:
            each.observe(value)
        together.observe_all(values)
        assert values == []
        assert together.counts == each.counts
        assert together.sum == pytest.approx(each.sum)


def test_requests_are_counted_once():
    """What has come is counted when somebody says so, once, by kind and by handler."""
    requests = Requests(BOUNDS)
    requests[int, "GET", 200].append(0.1)
    requests[int, "GET", 200].append(5.0)
    requests[int, "HEAD", 200].append(1.5)
    requests[str, "GET", 404].append(0.7)
    assert requests.by_handler()[int].counts == [0, 0, 0, 0]
    for _ in range(2):
        requests.count()
        assert {kind: seconds.counts for kind, seconds in requests.seconds.items()} == {
            (int, "GET", 200): [1, 0, 0, 1],
            (int, "HEAD", 200): [0, 0, 1, 0],
            (str, "GET", 404): [0, 1, 0, 0],
        }
        by_handler = requests.by_handler()
        assert {handler: seconds.counts for handler, seconds in by_handler.items()} == {
            int: [1, 0, 1, 1],
            str: [0, 1, 0, 0],
        }
        assert by_handler[int].sum == pytest.approx(6.6)
    requests[int, "GET", 200].append(0.2)
    requests.count()
    assert requests.seconds[int, "GET", 200].counts == [2, 0, 0, 1]
    assert sum(map(len, requests.values())) == 0


async def test_a_loop_that_is_held_up():
    """The time that somebody keeps the loop for himself is seen, and requests are counted meanwhile."""
    metrics = Metrics(Writes())
    metrics.requests[int, "GET", 200].append(0.1)
    metrics.waits[int, "GET", 200].append(0.1)
    lag = Lag(metrics)
    deadline_s = time.monotonic() + 20
    while not sum(metrics.loop_lag.counts):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    before = metrics.loop_lag.sum
    time.sleep(PAUSE_S + 0.5)  # noqa: ASYNC251 (it is what a defect would do)
    while metrics.loop_lag.sum - before < 0.4:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    assert sum(metrics.loop_lag.counts[8:]) >= 1  # more than 0.2 s
    assert metrics.requests.seconds[int, "GET", 200].counts[-1] == 0
    assert sum(metrics.requests.seconds[int, "GET", 200].counts) == 1
    assert sum(metrics.waits.seconds[int, "GET", 200].counts) == 1
    lag.stop()
    seen = sum(metrics.loop_lag.counts)
    await asyncio.sleep(2 * PAUSE_S)
    assert sum(metrics.loop_lag.counts) == seen
