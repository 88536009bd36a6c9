"""Soak test of several servers that share a Redis cluster, with peers of all protocols.

The first server is never restarted. Its memory, descriptors and tasks are judged. The others are killed and drained in
turns, and so are primaries of the cluster.
"""

import argparse
import asyncio
import itertools
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import redis
from bench.processes import ROOT, Server, tornado_signal
from faults.trials import OPTIONS
from hostile.watcher import look
from support.redis_servers import RedisCluster, RedisServer

from . import protocols, verdict
from .peers import World
from .servers import RestartedServer, Run
from .tally import Outages, Tally

SERVERS, PRIMARIES, REPLICAS = 3, 3, 2
KINDS = ("kill", "failover", "primary killed", "drain")  # in this order, so that Redis is available at the end
OUTAGES = 60  # in a run, but not more often than every `MIN_PAUSE_S`
MIN_PAUSE_S = 1.0
MIN_DOWN_S, MAX_DOWN_S = 0.5, 4.0  # how long a server or a node is down, but not longer than the pause
FAILOVER_S = 6.0  # a replica gives up a requested failover after five seconds
SETTLED_S = 15.0  # after an outage of Redis: leases that a new primary lacks are renewed every eight seconds
REDIS_TIMEOUT_MS = 5000  # a busy machine can stall a node for a second, which is not a failure
TASKS = re.compile(r"^tornado_signal_tasks (\S+)$", re.MULTILINE)


class ClusterSoak(Run):
    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        super().__init__(options, where)
        self.pause = options.pause
        self.cluster: RedisCluster | None = None
        self._kind = options.cluster
        self._rng = random.Random(0)
        outages = [Outages() for _ in range(SERVERS)]
        self.tally.outages = Outages(*outages)
        tallies = [self.tally.of(0, each) for each in outages]
        self.servers = [RestartedServer(tally, self._maker(number)) for number, tally in enumerate(tallies)]
        counts = {kind: round(options.peers * share) for kind, share in protocols.KINDS.items()}
        peers = options.peers - sum(counts.values())
        self.world = World(self.tally, peers, self.timeout_ms, self.grace_ms, self.pause, self.tally_of)
        self.crowd = protocols.Crowd(self.tally_of, self.world.done, self.pause)
        for kind, count in counts.items():
            self.crowd.add(kind, count)

    def _maker(self, number: int) -> Callable[..., Server]:
        options = {"store": "redis", "durability": "replicated", "admin-port": 0}
        options |= {"session-timeout-ms": self.timeout_ms, "hold-grace-ms": self.grace_ms}
        options |= {"redis-timeout-ms": REDIS_TIMEOUT_MS}
        where = self.where / f"server-{number}"

        def make(port: int, **more: object) -> Server:
            return tornado_signal(where, port=port, **options, **{"redis-nodes": self.cluster.address}, **more)

        return make

    def tally_of(self, number: int) -> Tally:
        """Return the tally of the server that a peer uses now.

        A third of the peers stay with the first server, so that its load is level. The others move to each other's
        server while theirs is down.
        """
        first, *others = self.servers
        if number % SERVERS == 0:
            return first.tally
        preferred = others[number % SERVERS - 1]
        return next((each for each in (preferred, *others) if each.process is not None), preferred).tally

    async def run(self) -> None:
        self.cluster = await asyncio.to_thread(RedisCluster, self._kind, PRIMARIES, REPLICAS, *OPTIONS)
        await asyncio.gather(*(server.start() for server in self.servers))
        self.tally.port = self.servers[0].tally.port
        self._first = self.servers[0].process
        await self.live(self._cause_outages(), self.crowd.live())
        self.world.done["found at the end"] = await self.world.find_all()
        await self._check()
        for server in self.servers:
            await server.end(signal.SIGTERM)

    async def sample(self) -> dict:
        seen, metrics = look(self._first.pid, self.where), await asyncio.to_thread(self._first.metrics)
        keys = sum(await asyncio.gather(*(asyncio.to_thread(_keys, node) for node in self.cluster.servers)))
        tasks = int(float(TASKS.search(metrics)[1]))
        return {"memory_mib": seen.memory_mib, "descriptors": seen.descriptors, "tasks": tasks, "keys": keys}

    def report(self) -> tuple[dict, list[str]]:
        report = {
            "messages": dict(self.crowd.messages),
            "failed by outages": dict(self.tally.excused),
            "outages": dict(Counter(kind for _, kind in self.restarts)),
            "growth is judged": verdict.judges_growth(self.samples),
        }
        if self.samples:
            thirds = {name: verdict.thirds(self.samples, name) for name in verdict.GROWTH}
            report["first and last third"] = {name: [round(each, 1) for each in of] for name, of in thirds.items()}
        return report, verdict.judge_cluster(self.samples, self.world.done, self.tally.wrong)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.cluster is not None:
            self.cluster.kill()

    # Outages

    async def _cause_outages(self) -> None:
        """Cause one outage after the other until the run ends, and of each kind the same number."""
        pause_s = max(MIN_PAUSE_S, self.duration_s / OUTAGES)
        self._down_s = MIN_DOWN_S, min(MAX_DOWN_S, pause_s)
        for turn in itertools.count():
            left_s = self.duration_s - self.now_s()
            if turn and turn % len(KINDS) == 0 and left_s < len(KINDS) * pause_s:
                await asyncio.sleep(max(0, left_s))
                break
            await asyncio.sleep(pause_s)
            kind = KINDS[turn % len(KINDS)]
            self.restarts.append((self.now_s(), kind))
            if kind in ("kill", "drain"):
                server = self.servers[1 + turn // len(KINDS) % (SERVERS - 1)]
                await server.restart(kind, self._rng.uniform(*self._down_s))
            else:
                await self._replace(kill=kind == "primary killed")

    async def _replace(self, *, kill: bool) -> None:
        """Replace a primary by one of its replicas, and wait until the cluster has all nodes again."""
        primaries = await asyncio.to_thread(self.cluster.primaries_now)
        primary = self._rng.choice(primaries)
        other = next(each for each in primaries if each is not primary)
        replica = self.cluster.replicas_of(primary)[0]
        asked_s = float("-inf")

        def replaced() -> bool:
            nonlocal asked_s
            if not kill and time.monotonic() - asked_s > FAILOVER_S:
                replica.ask("CLUSTER", "FAILOVER")
                asked_s = time.monotonic()
            return self.cluster.replaced(primary)

        self.tally.node_outages.begin()
        if kill:
            await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(other.wait, replaced)
        if kill:
            await asyncio.sleep(self._rng.uniform(*self._down_s))
            await asyncio.to_thread(primary.start)
        await asyncio.to_thread(self.cluster.wait_until_whole)
        self.tally.node_outages.end(SETTLED_S)

    async def _check(self) -> None:
        command = [sys.executable, "-m", "tornado_signal", "check", "--store", "redis"]
        command += ["--redis-nodes", self.cluster.address]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        self.tally.must(done.returncode == 0, f"the data on Redis is damaged: {done.stdout}{done.stderr}")
        self.world.done["data checked"] += 1


def _keys(node: RedisServer) -> int:
    try:
        return node.ask("DBSIZE") if node.ask("INFO", "replication")["role"] == "master" else 0
    except redis.RedisError:  # the node is down
        return 0
