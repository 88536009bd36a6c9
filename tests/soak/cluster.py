"""Soak test of several servers that share a Redis cluster, with peers of all protocols.

The first server is never restarted. Its memory, descriptors and tasks are judged. The others are killed and drained in
turns, and so are primaries of the cluster.
"""

import argparse
import asyncio
import itertools
import random
import re
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import redis
from bench.processes import ROOT, Server
from faults.trials import OPTIONS
from support.redis_servers import RedisCluster, RedisServer
from support.waiting import run_command

from . import protocols, verdict
from .peers import World
from .servers import RestartedServer, Soak
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


class ClusterSoak(Soak):
    rules = verdict.CLUSTER

    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        super().__init__(options, where)
        self.cluster: RedisCluster | None = None
        self._rng = random.Random(0)
        outages = [Outages() for _ in range(SERVERS)]
        self.tally.outages = Outages(*outages)
        self.servers = [RestartedServer(self.tally.of(0, each), self.maker(at)) for at, each in enumerate(outages)]
        counts = {kind: round(options.peers * share) for kind, share in protocols.KINDS.items()}
        self.world = World(self, options.peers - sum(counts.values()))
        self.crowd = protocols.Crowd(self, counts)

    def maker(self, number: int) -> Callable[..., Server]:
        """Return the function that makes processes of the server with a number."""
        options = {"store": "redis", "durability": "replicated", "admin-port": 0, "redis-timeout-ms": REDIS_TIMEOUT_MS}

        def make(port: int, **more: object) -> Server:
            return self.make(port, f"server-{number}", **options | {"redis-nodes": self.cluster.address} | more)

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
        kind = self.options.cluster
        self.cluster = await asyncio.to_thread(RedisCluster, kind, PRIMARIES, REPLICAS, *OPTIONS)
        await super().run()
        command = [sys.executable, "-m", "tornado_signal", "check", "--store", "redis"]
        done = await asyncio.to_thread(run_command, *command, "--redis-nodes", self.cluster.address, cwd=ROOT)
        self.tally.must(done.returncode == 0, f"the data on Redis is damaged: {done.stdout}{done.stderr}")
        self.world.done["data checked"] += 1

    def live(self) -> list[Coroutine]:
        return [*super().live(), self.crowd.live()]

    async def sample(self, process: Server) -> dict:
        metrics = await asyncio.to_thread(process.metrics)
        keys = sum(await asyncio.gather(*(asyncio.to_thread(_keys, node) for node in self.cluster.servers)))
        return await super().sample(process) | {"tasks": int(float(TASKS.search(metrics)[1])), "keys": keys}

    def judged(self) -> list[dict]:
        return self.samples

    def close(self) -> None:
        super().close()
        if self.cluster is not None:
            self.cluster.kill()

    async def cause_outages(self) -> None:
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
            self.outages.append((self.now_s(), kind))
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


def _keys(node: RedisServer) -> int:
    try:
        return node.ask("DBSIZE") if node.ask("INFO", "replication")["role"] == "master" else 0
    except redis.RedisError:  # the node is down
        return 0
