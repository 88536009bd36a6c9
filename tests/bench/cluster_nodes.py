"""Nodes of Redis and Valkey for the benchmarks, servers that use them, and stores in this process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from tornado_signal.stores.redis.connections import Credentials
from tornado_signal.stores.redis.nodes import Acknowledgement
from tornado_signal.stores.redis.store import RedisStore

from ..support.redis_servers import RedisCluster, RedisServer
from . import processes
from .figures import Bench
from .processes import Server, Target

SHARDS = 3
TIMEOUT_MS = 3_600_000
PATIENCE_S = 30
BATCH = 500  # concurrent calls of a store in this process
OPTIONS = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0", "--cluster-require-full-coverage", "no")


@contextmanager
def redis_cluster(primaries: int, replicas: int = 1) -> Iterator[RedisCluster]:
    cluster = RedisCluster("redis", primaries, replicas, *OPTIONS)
    try:
        yield cluster
    finally:
        cluster.kill()


def on_redis(bench: Bench, cluster: RedisCluster, **options: object) -> Server:
    options = {"durability": "replicated", "store": "redis", "redis-nodes": cluster.address} | options
    return processes.tornado_signal(bench.directory(), **options)


def processes_of(*clusters: RedisCluster) -> list[Target]:
    return [Target("", server.process.pid) for cluster in clusters for server in cluster.servers]


def empty(cluster: RedisCluster) -> None:
    for server in cluster.primaries:
        server.ask("FLUSHALL")


def used_bytes(nodes: Iterable[RedisServer]) -> int:
    """Return the memory that nodes report."""
    return sum(node.ask("INFO", "memory")["used_memory"] for node in nodes)


@asynccontextmanager
async def open_store(nodes: Iterable[RedisServer]) -> AsyncIterator[RedisStore]:
    """Open the store on some nodes. Its writes are acknowledged immediately."""
    addresses = [("127.0.0.1", node.port) for node in nodes]
    access = Credentials(timeout_s=PATIENCE_S)
    store = RedisStore(addresses, access=access, acknowledgement=Acknowledgement("os"), timeout_ms=TIMEOUT_MS)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def in_batches(calls: Iterable[Awaitable[object]]) -> None:
    """Run calls in batches."""
    batch: list[Awaitable[object]] = []
    for call in calls:
        batch.append(call)
        if len(batch) == BATCH:
            await asyncio.gather(*batch)
            batch = []
    await asyncio.gather(*batch)
