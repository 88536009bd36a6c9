"""Soak test of several servers that share a Redis cluster, with peers of all protocols.

The first server is never restarted. Its memory, descriptors and tasks are judged. The others are killed and drained in
turns, and so are primaries of the cluster.
"""

import argparse
import asyncio
import contextlib
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
from support.processes import cpu_s
from support.redis_servers import RedisCluster, RedisServer

from . import protocols
from .peers import World
from .servers import RestartedServer
from .tally import Outages, Tally

SERVERS, PRIMARIES = 3, 3
KINDS = ("kill", "failover", "primary killed", "drain")  # in this order, so that Redis is available at the end
OUTAGES = 60  # in a run, but not more often than every `MIN_PAUSE_S`
MIN_PAUSE_S = 1.0
MIN_DOWN_S, MAX_DOWN_S = 0.5, 4.0  # how long a server or a node is down, but not longer than the pause
FAILOVER_S = 6.0  # a replica gives up a requested failover after five seconds
SETTLED_S = 15.0  # after an outage of Redis: leases that a new primary lacks are renewed every eight seconds
REDIS_TIMEOUT_MS = 5000  # a busy machine can stall a node for a second, which is not a failure
SAMPLES = 1200
TASKS = re.compile(r"^tornado_signal_tasks (\S+)$", re.MULTILINE)


class SharedWorld(World):
    """HTTP and JSON-RPC peers of several servers."""

    def __init__(self, soak: "ClusterSoak", peers: int) -> None:
        super().__init__(soak.tally, peers, soak.timeout_ms, soak.grace_ms, soak.pause)
        self._soak = soak

    def tally_of(self, number: int) -> Tally:
        return self._soak.tally_of(number)


class ClusterSoak:
    """One run, with the command-line options and a directory for logs."""

    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        self.duration_s, self.pause, self.timeout_ms = options.minutes * 60, options.pause, options.session_timeout_ms
        self.grace_ms = self.timeout_ms // 5
        self.where = where
        self.samples: list[dict] = []
        self.restarts: list[tuple[float, str]] = []
        self.cluster: RedisCluster | None = None
        self._kind, self._replicas = options.cluster, options.replicas
        self._cpu_s: dict[str, dict[int, float]] = {"servers": {}, "Redis": {}}  # of each process so far
        self._rng = random.Random(0)
        self._printed = 0, 0.0  # failures, and the minute of the last sample
        outages = [Outages() for _ in range(SERVERS)]
        self.tally = Tally(0)
        self.tally.outages = Outages(*outages)
        tallies = [self.tally.of(0, each) for each in outages]
        self.servers = [RestartedServer(tally, self._maker(number)) for number, tally in enumerate(tallies)]
        counts = {kind: round(options.peers * share) for kind, share in protocols.KINDS.items()}
        self.world = SharedWorld(self, options.peers - sum(counts.values()))
        self.crowd = protocols.Crowd(self.tally_of, self.world.done, self.pause)
        for kind, count in counts.items():
            self.crowd.add(kind, count)
        self.peers = {"HTTP and JSON-RPC": options.peers - sum(counts.values())}
        self.peers |= {kind.protocol: count for kind, count in counts.items()}

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
        self.cluster = await asyncio.to_thread(RedisCluster, self._kind, PRIMARIES, self._replicas, *OPTIONS)
        await asyncio.gather(*(server.start() for server in self.servers))
        self.tally.port = self.servers[0].tally.port
        self.began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (self.world.live(), self.crowd.live(), self._record())]
            await self._cause_outages()
            for task in tasks:
                task.cancel()
        self.world.done["found at the end"] = await self.world.find_all()
        await self._check()
        for server in self.servers:
            await server.end(signal.SIGTERM)

    def close(self) -> None:
        for server in self.servers:
            server.close()
        if self.cluster is not None:
            self.cluster.kill()

    def _now_s(self) -> float:
        return time.monotonic() - self.began_s

    # Outages

    async def _cause_outages(self) -> None:
        """Cause one outage after the other until the run ends, and of each kind the same number."""
        pause_s = max(MIN_PAUSE_S, self.duration_s / OUTAGES)
        self._down_s = MIN_DOWN_S, min(MAX_DOWN_S, pause_s)
        for turn in itertools.count():
            left_s = self.duration_s - self._now_s()
            if turn and turn % len(KINDS) == 0 and left_s < len(KINDS) * pause_s:
                await asyncio.sleep(max(0, left_s))
                break
            await asyncio.sleep(pause_s)
            kind = KINDS[turn % len(KINDS)]
            self.restarts.append((self._now_s(), kind))
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
        """Check the integrity of the data on Redis."""
        command = [sys.executable, "-m", "tornado_signal", "check", "--store", "redis"]
        command += ["--redis-nodes", self.cluster.address]
        done = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, check=False)
        self.tally.must(done.returncode == 0, f"the data on Redis is damaged: {done.stdout}{done.stderr}")
        self.world.done["data checked"] += 1

    # Samples

    async def _record(self) -> None:
        pause_s = max(1.0, self.duration_s / SAMPLES)
        first, at_s, before = self.servers[0].process, time.monotonic(), Counter()
        while True:
            await asyncio.sleep(pause_s)
            self.world.forget()
            self.tally.latencies_s.clear()
            seen, metrics = look(first.pid, self.where), await asyncio.to_thread(first.metrics)
            totals = Counter({"requests": sum(self.tally.answers.values())})
            totals["messages"] = sum(self.crowd.messages.values())
            totals.update(self._used_s())
            passed_s, at_s = time.monotonic() - at_s, time.monotonic()
            rates = {name: (totals[name] - before[name]) / passed_s for name in totals}
            before = totals
            sample = {"at_s": self._now_s(), "memory_mib": seen.memory_mib, "descriptors": seen.descriptors}
            sample |= {"tasks": int(float(TASKS.search(metrics)[1])), "keys": await self._count_keys()}
            sample |= {"requests_per_s": rates["requests"], "messages_per_s": rates["messages"]}
            sample |= {f"cpu of {name}": 100 * rates[name] for name in ("servers", "Redis", "peers")}
            sample |= {"open": self.crowd.open, "failed": len(self.tally.wrong)}
            self.samples.append(sample)
            self._print_progress(sample)

    def _print_progress(self, sample: dict) -> None:
        """Print new failures immediately, and the latest sample once a minute."""
        minute = sample["at_s"] // 60
        for sentence in self.tally.wrong[self._printed[0] :]:
            print(f"{sample['at_s']:.0f} s: {sentence}", file=sys.stderr, flush=True)
        if minute > self._printed[1]:
            text = ", ".join(f"{name} {value:.6g}" for name, value in sample.items())
            print(f"{text}; {self.restarts[-1:]}", file=sys.stderr, flush=True)
        self._printed = len(self.tally.wrong), minute

    def _used_s(self) -> dict[str, float]:
        """Return the CPU time of the servers, the nodes and the peers so far."""
        current = {
            "servers": [server.process.pid for server in self.servers if server.process is not None],
            "Redis": [node.process.pid for node in self.cluster.servers],
        }
        for name, pids in current.items():
            for pid in pids:
                with contextlib.suppress(OSError):  # killed a moment ago
                    self._cpu_s[name][pid] = cpu_s(pid)
        return {name: sum(used_s.values()) for name, used_s in self._cpu_s.items()} | {"peers": time.process_time()}

    async def _count_keys(self) -> int:
        """Return the number of keys of all primaries that respond."""
        return sum(await asyncio.gather(*(asyncio.to_thread(_keys, node) for node in self.cluster.servers)))


def _keys(node: RedisServer) -> int:
    try:
        return node.ask("DBSIZE") if node.ask("INFO", "replication")["role"] == "master" else 0
    except redis.RedisError:  # the node is down
        return 0
