"""The CPU of a brokered pair: a server on LevelDB, one on one shard of Redis, three on three; and that of the nodes."""

import asyncio
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field

import uvloop

from ..support.redis_servers import RedisCluster
from . import client, peers, processes
from .cluster_nodes import SHARDS, on_redis, processes_of
from .figures import Bench, ratio
from .life import Polled
from .processes import Server, Target, apart

PART = "cluster: CPU of one brokered pair (13 requests)"
LIFETIME_MS = 20_000  # so that LevelDB sweeps, as it does where it is in use
AT_ONCE = 32  # pairs at each server
PATIENCE_S = 120
TO_LEVELDB, TO_ONE, NODES_MS = 1.3, 1.35, 0.6


@dataclass
class Contestant:
    """Servers that broker pairs, with the nodes that they need.

    Attributes:
        servers: the servers.
        nodes: those of Redis.
        used_ms: CPU of the servers for a pair, in each round.
        nodes_ms: the same of the nodes.
    """

    servers: list[Server]
    nodes: list[Target] = field(default_factory=list)
    used_ms: list[float] = field(default_factory=list)
    nodes_ms: list[float] = field(default_factory=list)

    def broker(self, first: int, count: int, at_once: int) -> tuple[float, float]:
        """Broker pairs: at each server so many offerers, whose answerers ask the next one.

        Returns:
            CPU of the servers and of the nodes for a pair, in ms.
        """
        bases = [server.base for server in self.servers]
        count *= len(bases)
        ways = iter(
            [
                Polled(bases[number % len(bases)], peers.pair(number), bases[(number + 1) % len(bases)])
                for number in range(first, first + count)
            ]
        )

        async def work() -> None:
            for way in ways:
                await way.broker()

        async def run() -> None:
            workers = (work() for _ in range(at_once * len(bases)))
            await asyncio.wait_for(asyncio.gather(*workers), PATIENCE_S)

        before_s = _used_s(self.servers), _used_s(self.nodes)
        with client.quiet():
            uvloop.run(run())
        after_s = _used_s(self.servers), _used_s(self.nodes)
        used, by_nodes = ((after - before) / count * 1e3 for before, after in zip(before_s, after_s, strict=True))
        return used, by_nodes


def _used_s(targets: list[Server] | list[Target]) -> float:
    return sum(target.cpu_s() or 0.0 for target in targets)


def pairs(bench: Bench, shard: RedisCluster, shards: RedisCluster) -> None:
    """Rounds of pairs, in turns.

    Args:
        bench: what is measured.
        shard: a cluster of one shard.
        shards: a cluster of several.
    """
    options = {"session-timeout-ms": LIFETIME_MS, "unlimited-addresses": "none"}
    with ExitStack() as stack:

        def start(cluster: RedisCluster, count: int) -> Contestant:
            servers = [stack.enter_context(on_redis(bench, cluster, **options)) for _ in range(count)]
            return Contestant(servers, processes_of(cluster))

        leveldb = Contestant(
            [stack.enter_context(processes.tornado_signal(bench.directory(), durability="fsync", **options))]
        )
        contestants = leveldb, one, three = leveldb, start(shard, 1), start(shards, SHARDS)
        servers = [server for each in contestants for server in each.servers]
        stack.enter_context(apart(*servers, beside=[node for each in contestants for node in each.nodes]))
        flows, at_once, rounds = bench.size.flows, min(AT_ONCE, bench.size.flows), bench.size.rounds
        for each in contestants:  # nothing is measured of what is cold
            each.broker(0, flows // 4, at_once)
        for turn in range(rounds):
            for each in contestants[turn % 3 :] + contestants[: turn % 3]:
                used, by_nodes = each.broker(turn * SHARDS * flows, flows, at_once)
                each.used_ms.append(used)
                each.nodes_ms.append(by_nodes)
    note = (
        f"{rounds} rounds of {flows:,} pairs for each server, {at_once} at once at each; peers as in `life`, where "
        "there are several servers each pair's at two of them; replicated to one replica; append-only files; servers "
        "on one processor, the load and the nodes of Redis on the others. The ceiling is what it is compared with"
    )
    bench.add(PART, "LevelDB, fsync", statistics.median(leveldb.used_ms), "ms", note=note)
    for name, mine, other, most in (
        ("one server on one shard, to LevelDB", one, leveldb, TO_LEVELDB),
        ("three servers on three shards, to one on one", three, one, TO_ONE),
    ):
        times = ratio(list(mine.used_ms), list(other.used_ms))
        bench.add(
            PART,
            name,
            statistics.median(mine.used_ms),
            "ms",
            ceiling=statistics.median(other.used_ms),
            ratio=times,
            target=f"<= {most} times",
            reached=times <= most if bench.whole and times is not None else None,
        )
    used_ms = statistics.median(one.nodes_ms)
    verdict = used_ms <= NODES_MS if bench.whole else None
    bench.add(PART, "all nodes of Redis, one shard", used_ms, "ms", target=f"<= {NODES_MS} ms", reached=verdict)
    bench.add(PART, "all nodes of Redis, three shards", statistics.median(three.nodes_ms), "ms")
