"""Sessions on Redis: what they cost servers and nodes, beside LevelDB, and what a lost node or many expiries do.

On few processors CPU says how it grows, throughput does not.
"""

from contextlib import ExitStack

from . import cluster_failover, cluster_pairs, cluster_sessions, cluster_waits, processes
from .cluster_nodes import SHARDS, on_redis, redis_cluster
from .figures import Bench

LIFETIME_MS = 60_000  # so that LevelDB sweeps, as it does where it is in use


def cluster(bench: Bench) -> None:
    if bench.given:
        return
    options = {"session-timeout-ms": LIFETIME_MS, "unlimited-addresses": "127.0.0.1"}  # not those of the peers
    with ExitStack() as stack:
        leveldb = stack.enter_context(processes.tornado_signal(bench.directory(), durability="fsync", **options))
        shards = stack.enter_context(redis_cluster(SHARDS))
        shared = [stack.enter_context(on_redis(bench, shards, **options)) for _ in range(SHARDS)]
        with ExitStack() as others:
            shard = [others.enter_context(redis_cluster(1)) for _ in range(SHARDS)]
            alone = [others.enter_context(on_redis(bench, each, **options)) for each in shard]
            cluster_pairs.pairs(bench, leveldb, alone, shard, shared, shards)
        cluster_waits.waits(bench, leveldb, *shared[:2], shards)
        cluster_sessions.sessions(bench, shared[0], shards)
    cluster_sessions.memory(bench)
    cluster_failover.failover(bench)
