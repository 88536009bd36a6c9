"""Counting what is on Redis takes a small share of the time, however many origins there are."""

from support.redis_servers import RedisServer

from tornado_signal.stores.latest_counts import LatestCounts
from tornado_signal.stores.redis import origins
from tornado_signal.stores.redis.nodes import Acknowledgement
from tornado_signal.stores.redis.origins import COUNTS_STEP
from tornado_signal.stores.redis.store import RedisStore


async def test_long_count_pauses_and_keeps_the_previous_counts(under, monkeypatch):
    redis = RedisServer("redis")
    store = RedisStore([(redis.host, redis.port)], acknowledgement=Acknowledgement("os"), timeout_ms=60_000)
    await store.open()
    try:
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
    finally:
        await store.close()
        redis.kill()
