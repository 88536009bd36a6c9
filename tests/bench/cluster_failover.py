"""The longest time without writes on a shard whose primary is killed, and on the others."""

import asyncio
import itertools
import time
from functools import partial

import uvloop

from tornado_signal.stores.redis.partitions import Partitions

from ..support.redis_servers import RedisCluster
from . import client, messages
from .cluster_nodes import SHARDS, on_redis, redis_cluster
from .figures import Bench
from .processes import BenchError, Server

PART = "cluster: a primary is killed"
REPLICAS = 2
WRITERS = 4  # for each shard
PAUSE_S = 0.02
BEFORE_S, AFTER_S = 0.5, 1.0
BOUND_S = 60
LOST_S, OTHERS_S = 5, 0.1


class Writers:
    """Peers that publish offers one after the other, each on one of the shards."""

    def __init__(self, server: Server, shards: int) -> None:
        self._base = server.base
        partitions = Partitions("tornado-signal:", 16)
        self._requests: list[list[bytes]] = [[] for _ in range(shards)]
        for number in range(100):
            topic = f"written-{number}"
            at = partitions.of_topic(messages.ORIGIN, topic).slot * shards // 16384
            self._requests[at].append(messages.offer(self._base, topic))
        self.written_s: list[list[float]] = [[] for _ in range(shards)]

    async def start(self) -> None:
        connections = await client.connect(self._base, WRITERS * len(self._requests))
        writing = [self._write(at // WRITERS, each, at % WRITERS) for at, each in enumerate(connections)]
        self._tasks = [asyncio.create_task(each) for each in writing]

    async def _write(self, shard: int, connection: client.Connection, first: int) -> None:
        requests = self._requests[shard]
        for number in itertools.count(first):
            status, _ = await connection.answered(requests[number % len(requests)])
            if status == 200:
                self.written_s[shard].append(time.perf_counter())
            elif status != 503:
                raise BenchError(f"an offer was answered with {status or 'the end of the connection'}")
            await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def longest_s(self, shard: int, since_s: float) -> float:
        times = [since_s, *(at_s for at_s in self.written_s[shard] if at_s > since_s), time.perf_counter()]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


def failover(bench: Bench) -> None:
    losses = bench.size.cluster_losses
    with redis_cluster(SHARDS, REPLICAS) as cluster, on_redis(bench, cluster) as server:
        longest_s = [uvloop.run(_lose(cluster, server, shard)) for shard in range(losses)]
    note = (
        f"{SHARDS} shards with {REPLICAS} replicas each, cluster-node-timeout 2000, cluster-require-full-coverage no; "
        f"the longest of {losses}; {WRITERS} peers publish on each shard by way of one server"
    )
    add = partial(bench.add, PART, judged=bench.whole, note=note)
    lost_s, others_s = map(max, zip(*longest_s, strict=True))
    add("longest time without writes on its shard", lost_s, "s", most=LOST_S)
    add("longest time without writes on the others", others_s, "s", most=OTHERS_S)


async def _lose(cluster: RedisCluster, server: Server, lost: int) -> tuple[float, float]:
    """Kill a shard's primary and restart it. Return the longest time without writes on that shard and on another."""
    writers = Writers(server, SHARDS)
    await writers.start()
    await asyncio.sleep(BEFORE_S)
    async with asyncio.timeout(BOUND_S):
        while not all(writers.written_s):  # noqa: ASYNC110 (a busy machine takes longer)
            await asyncio.sleep(0.05)
    killed_s = time.perf_counter()
    cluster.primaries[lost].kill()
    while writers.longest_s(lost, killed_s) < AFTER_S or writers.written_s[lost][-1] < time.perf_counter() - 0.5:
        if time.perf_counter() > killed_s + BOUND_S:
            raise BenchError(f"nothing can be written {BOUND_S} s after a primary was killed")
        await asyncio.sleep(0.05)
    await asyncio.sleep(AFTER_S)
    longest_s = [writers.longest_s(shard, killed_s) for shard in range(SHARDS)]
    await writers.stop()
    cluster.primaries[lost].start()
    return longest_s.pop(lost), max(longest_s)
