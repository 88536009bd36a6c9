"""Sessions on Redis: their cost for servers and nodes compared with LevelDB, and effects of lost nodes and expiries.

On few processors CPU time shows how the cost grows. Throughput does not.
"""

from contextlib import ExitStack
from functools import partial

import uvloop

from ..support.redis_servers import RedisCluster
from . import client, cluster_failover, cluster_pairs, cluster_sessions, processes
from .cluster_nodes import SHARDS, empty, on_redis, redis_cluster, used_bytes
from .figures import Bench
from .processes import Server, many_files
from .waits import Waiting, some

LIFETIME_MS = 60_000  # short enough for LevelDB to sweep, as in production

ANSWERED = 500
MORE_MS = {"p50": (0.5, 0.5), "p99": (0.99, 3.0)}  # share of requests, and how many ms longer they may take
MOST_MB = 2


def cluster(bench: Bench) -> None:
    if bench.external:
        return
    options = {"session-timeout-ms": LIFETIME_MS, "unlimited-addresses": "127.0.0.1"}  # the peers have no limits
    with ExitStack() as stack:
        leveldb = stack.enter_context(processes.tornado_signal(bench.directory(), durability="fsync", **options))
        shards = stack.enter_context(redis_cluster(SHARDS))
        shared = [stack.enter_context(on_redis(bench, shards, **options)) for _ in range(SHARDS)]
        with ExitStack() as others:
            shard = [others.enter_context(redis_cluster(1)) for _ in range(SHARDS)]
            alone = [others.enter_context(on_redis(bench, each, **options)) for each in shard]
            cluster_pairs.pairs(bench, leveldb, alone, shard, shared, shards)
        _waits(bench, leveldb, *shared[:2], shards)
        cluster_sessions.sessions(bench, shared[0], shards)
    cluster_sessions.memory(bench)
    cluster_failover.failover(bench)


def _waits(bench: Bench, leveldb: Server, one: Server, other: Server, shards: RedisCluster) -> None:
    empty(shards)
    alone, across = Waiting(leveldb, leveldb), Waiting(one, other)
    with many_files() as most:
        count = min(bench.size.cluster_waiting, most // 2)
        kept_bytes, late_s = uvloop.run(_measure(alone, across, shards, count))
    add = partial(bench.add, "cluster: requests that wait", judged=bench.whole and count == 5000)
    note = f"{count:,} waiting, {len(late_s)} of them answered; from the sending of the answer to the wait's end"
    for name, (share, most_ms) in MORE_MS.items():
        least, mine = (client.percentile(each, share) for each in zip(*late_s, strict=True))
        target = {"target": f"<= {most_ms} ms more", "reached": mine - least <= most_ms}
        name = f"answered at another server, {name}, to LevelDB"
        add(name, mine, "ms", ceiling=least, ratio=mine / least, note=note, **target)
    note = f"{count:,} waiting; all primaries, by their own account"
    add("memory of Redis for what waits", kept_bytes / 1e6, "MB", most=MOST_MB, note=note)


async def _measure(alone: Waiting, across: Waiting, shards: RedisCluster, count: int) -> tuple[int, list]:
    """Return the memory that Redis uses for waiting requests, and the delays of both, measured alternately."""
    for each in (alone, across):
        await each.create(count)
    await alone.wait()
    before = used_bytes(shards.primaries)
    await across.wait()
    kept_bytes = used_bytes(shards.primaries) - before
    with client.quiet():
        late_s = [((await alone.answer(each))[0], (await across.answer(each))[0]) for each in some(count, ANSWERED)]
    for each in (alone, across):
        each.close()
    return kept_bytes, late_s
