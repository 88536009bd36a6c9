"""Counting what is on Redis takes a small share of the time, however many origins there are."""

import asyncio
import contextlib

import pytest
from support.redis_servers import RedisServer

from tornado_signal.stores.latest_counts import LatestCounts
from tornado_signal.stores.redis import origins
from tornado_signal.stores.redis.nodes import Acknowledgement
from tornado_signal.stores.redis.origins import COUNTS_STEP
from tornado_signal.stores.redis.store import RedisStore


@pytest.fixture
def redis():
    with RedisServer("redis") as server:
        yield server


@contextlib.asynccontextmanager
async def opened(redis):
    store = RedisStore([(redis.host, redis.port)], acknowledgement=Acknowledgement("os"), timeout_ms=60_000)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def test_long_count_pauses_and_keeps_the_previous_counts(redis, under, monkeypatch):
    async with opened(redis) as store:
        for number in range(COUNTS_STEP):
            await under(store, f"https://{number}.example").create()
        counts = LatestCounts(store)
        while counts.value is None:  # a refresh waits for half a second at most
            await counts.refresh()
        assert counts.value == (COUNTS_STEP, COUNTS_STEP)
        monkeypatch.setattr(origins, "COUNTS_WORK_S", 0)  # as if a step took long
        monkeypatch.setattr(origins, "COUNTS_PAUSES", 1e9)
        for number in range(COUNTS_STEP, 10 * COUNTS_STEP):
            await under(store, f"https://{number}.example").create()
        calls = sum(store.redis_metrics.seconds.counts)
        for _ in range(2):
            await counts.refresh()
        assert counts.value == (COUNTS_STEP, COUNTS_STEP)
        # The registry of origins, and at most one step.
        assert sum(store.redis_metrics.seconds.counts) - calls <= (COUNTS_STEP + 1) * store.partitions.count
        counts.close()


async def test_processes_take_turns_in_counting_many_origins(redis, under, monkeypatch):
    monkeypatch.setattr(origins, "COUNTED_ALONE", 39)
    monkeypatch.setattr(origins, "COUNTS_KEPT_MS", 60_000)

    def calls():
        return redis.ask("INFO", "commandstats").get("cmdstat_hget", {"calls": 0})["calls"]

    async with opened(redis) as one, opened(redis) as two, opened(redis) as three:
        for number in range(40):
            await under(one, f"https://{number}.example").create()
        before = calls()
        assert await asyncio.gather(one.counts(), two.counts(), three.counts()) == [(40, 40)] * 3
        assert calls() - before == 40 * one.partitions.count + 40
        assert not redis.ask("EXISTS", "tornado-signal:claim:counts")
        await under(two, "https://0.example").create()
        redis.ask("DEL", "tornado-signal:counts")  # as if its time had passed
        assert await three.counts() == (41, 40)
