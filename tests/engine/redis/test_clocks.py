"""Clocks of nodes that do not agree."""

import asyncio

from support.redis_servers import RedisCluster, fixture
from support.service import ORIGIN
from support.stores import opened_on

from tornado_signal.errors import SessionNotFound
from tornado_signal.service.waiting import next_read_s
from tornado_signal.session import Side
from tornado_signal.stores.redis.checks import check_clocks

cluster = fixture(RedisCluster, "redis")


async def wait_for_the_end(store, code):
    """Read a session until it has expired, as a waiting poll does. Return the number of reads."""
    loop = asyncio.get_running_loop()
    reads = 0
    with store.watch_session(ORIGIN, code) as watch:
        await watch.opened()
        while True:
            try:
                news = await store.read(ORIGIN, code, Side.OFFERER)
            except SessionNotFound:
                return reads
            reads += 1
            await watch.wait(next_read_s(store, watch, loop.time() + 30, news.expires_ms))


async def test_node_with_a_fast_clock_causes_no_busy_waits_and_is_reported(cluster, under, caplog):
    async with opened_on(*cluster.servers, session_timeout_ms=2500) as store:
        one = under(store, ORIGIN)
        topics = [str(number) for number in range(20)]
        codes = [await one.create(topic) for topic in topics]
        ahead, *others = store.topology.primaries
        store.client._clock_reading.cancel()  # it would read the clocks again
        assert "clock" not in caplog.text
        ahead.clock_ahead_s += 2
        check_clocks(store.topology.primaries)
        assert "the clock of Redis at {}:{} is 2.0 s ahead".format(*ahead.address) in caplog.text
        mine = [code for code in codes if store.topology.node(store.partitions.of_code(ORIGIN, code).slot) in others]
        assert mine
        reads = await asyncio.gather(*(wait_for_the_end(store, code) for code in mine))
        assert max(reads) < 10
