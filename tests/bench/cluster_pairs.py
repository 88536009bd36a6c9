"""CPU time of a brokered pair on LevelDB, on one Redis shard and on three, for servers and nodes."""

import asyncio
import statistics
from dataclasses import dataclass, field
from functools import partial

import uvloop

from . import client, peers
from .cluster_nodes import SHARDS, processes_of
from .figures import Bench, ratio, within
from .life import Polled
from .processes import Server, Target, apart

PART = "cluster: CPU of one brokered pair (13 requests)"
AT_ONCE = 32  # concurrent pairs at each server
PATIENCE_S = 120
TO_LEVELDB, TO_ONE, NODES_MS = 1.3, 1.35, 0.6


@dataclass
class Contestant:
    servers: list[Server]
    nodes: list[Target] = field(default_factory=list)
    across: bool = False  # whether the peers of a pair are at two servers
    used_ms: list[float] = field(default_factory=list)  # CPU time of the servers for a pair, in each round
    nodes_ms: list[float] = field(default_factory=list)  # CPU time of the nodes for a pair, in each round

    def broker(self, first: int, count: int, at_once: int) -> tuple[float, float]:
        """Broker pairs at each server. Return the CPU time of servers and nodes for a pair, in ms."""
        bases = [server.base for server in self.servers]
        count *= len(bases)
        places = [(bases[number % len(bases)], bases[(number + self.across) % len(bases)]) for number in range(count)]
        ways = iter([Polled(one, peers.pair(at), other) for at, (one, other) in enumerate(places, first)])

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


def pairs(bench: Bench, leveldb: Server, alone: list[Server], shard: list, shared: list[Server], shards) -> None:
    """Run alternating rounds of pairs: on LevelDB, alone on one shard each, and on shared shards."""
    contestants = embedded, one, thrice, three = [
        Contestant([leveldb]),
        Contestant(alone[:1], processes_of(shard[0])),
        Contestant(alone, processes_of(*shard)),
        Contestant(shared, processes_of(shards), across=True),
    ]
    flows, rounds = bench.size.flows // 2, bench.size.rounds
    at_once = min(AT_ONCE, flows)
    with apart(leveldb, *alone, *shared, beside=processes_of(*shard, shards)):
        for contestant in contestants:  # warm up before measuring
            contestant.broker(0, flows // 4, at_once)
        for turn in range(rounds):
            shift = turn % len(contestants)
            for each in contestants[shift:] + contestants[:shift]:
                used_ms, nodes_ms = each.broker(turn * SHARDS * flows, flows, at_once)
                each.used_ms.append(used_ms)
                each.nodes_ms.append(nodes_ms)
    note = (
        f"{rounds} rounds in turns, {flows:,} pairs and {at_once} at once for each server; peers as in `life`; "
        "replicated to one replica; append-only files; servers on one processor, the load and the nodes of Redis on "
        "the others. The ceiling is what it is compared with"
    )
    add = partial(bench.add, PART)
    median = statistics.median
    add("LevelDB, fsync", median(embedded.used_ms), "ms", note=note)
    together = (
        "the ceiling is three servers at the same time, on a shard and sessions of its own each: what so many "
        "processes cost each other on one processor is in both. On shared shards a pair's peers are at two servers"
    )
    for name, mine, other, most, words in (
        ("one server on one shard, to LevelDB", one, embedded, TO_LEVELDB, note),
        ("three servers on three shards, to one on one", three, thrice, TO_ONE, together),
    ):
        times = ratio(list(mine.used_ms), list(other.used_ms))
        compared = {"ceiling": median(other.used_ms), "ratio": times, "note": words}
        target = {"target": f"<= {most} times", "reached": within(times, most), "judged": bench.whole}
        add(name, median(mine.used_ms), "ms", **compared, **target)
    add("all nodes of Redis, one shard", median(one.nodes_ms), "ms", most=NODES_MS, judged=bench.whole)
    add("all nodes of Redis, three shards", median(three.nodes_ms), "ms")
