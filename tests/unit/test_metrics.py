"""Metrics: histograms, requests by kind, and the lag of the event loop."""

import asyncio
import os
import time

from prometheus_client.parser import text_string_to_metric_families

from tornado_signal.metrics import Histogram, RequestMetrics
from tornado_signal.operator.workers import MergedMetrics
from tornado_signal.system import usage
from tornado_signal.system.loop import LAG_PAUSE_S, Lag

BOUNDS = (0.5, 1.0, 2.0)


def test_bucket_includes_its_upper_bound():
    histogram = Histogram(BOUNDS)
    for value, bucket in [(0.0, 0), (0.5, 0), (0.6, 1), (1, 1), (2.0, 2), (2.1, 3)]:
        counts, total = list(histogram.counts), histogram.sum
        histogram.observe(value)
        counts[bucket] += 1
        assert (histogram.counts, histogram.sum) == (counts, total + value)


async def test_lag_of_a_blocked_loop_is_measured():
    seconds = RequestMetrics().loop_lag
    lag = Lag(seconds.observe)
    deadline_s = time.monotonic() + 60
    while not sum(seconds.counts):
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    before = seconds.sum
    time.sleep(LAG_PAUSE_S + 0.5)  # noqa: ASYNC251 (a bug would block the loop like this)
    while seconds.sum - before < 0.4:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.01)
    assert sum(seconds.counts[8:]) >= 1  # more than 0.2 s
    lag.stop()
    total = sum(seconds.counts)
    await asyncio.sleep(2 * LAG_PAUSE_S)
    assert sum(seconds.counts) == total


def test_metrics_of_workers_are_merged_by_family():
    one = (
        "# HELP ready Whether it serves.\n# TYPE ready gauge\nready 1.0\n"
        "# HELP asked_total Requests.\n# TYPE asked_total counter\n"
        'asked_total{path="/a b} c",reason="\\"x\\"\\n# HELP y"} 2.0\n'
    )
    other = "# HELP ready Another meaning.\n# TYPE ready gauge\nready 0.0\n"
    merged = MergedMetrics()
    merged.add("# HELP ready Whether it serves.\n# TYPE ready gauge\nready 7.0\n")
    merged.add(one, 1)
    merged.add(other, 2)
    families = [*text_string_to_metric_families("".join(merged.texts()))]
    assert [[(each.name, each.labels, each.value) for each in family.samples] for family in families] == [
        [("ready", {}, 7), ("ready", {"worker": "1"}, 1), ("ready", {"worker": "2"}, 0)],
        [("asked_total", {"path": "/a b} c", "reason": '"x"\n# HELP y', "worker": "1"}, 2)],
    ]


async def test_descriptors_are_counted_a_few_per_iteration(monkeypatch):
    monkeypatch.setattr(usage, "COUNT_STEP", 2)
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    counting, iterations = asyncio.ensure_future(usage.count_descriptors()), 0
    while not counting.done():
        iterations += 1
        await asyncio.sleep(0)
    assert await counting == len(os.listdir("/proc/self/fd")) - 1
    assert iterations > len(opened) / 2
    for descriptor in opened:
        os.close(descriptor)
