"""Sessions on Redis: what they cost servers and nodes, beside LevelDB, and what a lost node or many expiries do.

On few processors CPU says how it grows, throughput does not.
"""

from contextlib import ExitStack

from . import cluster_failover, cluster_pairs, cluster_sessions, cluster_waits
from .cluster_nodes import SHARDS, redis_cluster
from .figures import Bench


def cluster(bench: Bench) -> None:
    """Pairs, waits, many sessions, and the loss of a primary."""
    if bench.given:
        return
    with ExitStack() as stack:
        shards = stack.enter_context(redis_cluster(SHARDS))
        with redis_cluster(1) as shard:
            cluster_pairs.pairs(bench, shard, shards)
        cluster_waits.waits(bench, shards)
        cluster_sessions.sessions(bench, shards)
    cluster_sessions.memory(bench)
    cluster_failover.failover(bench)
