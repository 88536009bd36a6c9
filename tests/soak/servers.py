"""A run with its samples, and a server that is killed, stopped and started again at the same port."""

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path

from bench.client import percentile
from bench.processes import Server, tornado_signal
from hostile.watcher import look

from . import verdict
from .peers import World
from .tally import Tally

SAMPLES = 1200  # maximum number, at intervals of one second or more
CHURN_SHARE, STRETCH_SHARE = 0.4, 0.5
RESTART_PAUSE_S = (4, 15)  # between two restarts

# The errors in a log, each with its traceback. Each line that begins a record begins with a time.
COMPLAINTS = re.compile(r"^(?:\d\S+ )?((?:ERROR|CRITICAL|Traceback).*(?:\n(?!\d{4}-).*)*)", re.MULTILINE)


class RestartedServer:
    """The processes of a server, one after the other. `process` is the current one, or None during a restart.

    The tally has the results of its clients, its port and its outages. `make` returns the next process for a port.
    """

    def __init__(self, tally: Tally, make: Callable[[int], Server]) -> None:
        self.tally = tally
        self.process: Server | None = None
        self._make = make

    async def start(self) -> None:
        process = self._make(self.tally.port)
        await asyncio.to_thread(process.__enter__)
        self.tally.port = int(process.base.rpartition(":")[2])
        self.process = process

    async def restart(self, kind: str, pause_s: float = 0) -> None:
        """End the process, with SIGKILL if the kind is `kill`, else with SIGTERM. Start another one after a pause."""
        self.tally.outages.begin()
        await self.end(signal.SIGKILL if kind == "kill" else signal.SIGTERM)
        await asyncio.sleep(pause_s)
        await self.start()
        self.tally.outages.end()

    async def end(self, number: signal.Signals) -> None:
        """End the process with a signal, and check its exit status and its log."""
        process, self.process = self.process, None
        if number == signal.SIGKILL:
            os.kill(process.pid, number)
        await asyncio.to_thread(process.__exit__)  # sends SIGTERM, once
        if process.status != (0 if number == signal.SIGTERM else -number):
            self.tally.wrong.append(f"the server ended with {process.status}")
        self.tally.wrong += [f"its log says: {line}" for line in COMPLAINTS.findall(process.log())]

    def close(self) -> None:
        """End the process, if there is one, without any check."""
        if self.process is not None:
            self.process.__exit__()


class Soak:
    """A run of one server. `outages` are their times in seconds since the beginning, with their kinds."""

    rules = verdict.ALONE

    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        self.options, self.where, self.pause = options, where, options.pause
        self.duration_s, self.timeout_ms = options.minutes * 60, options.session_timeout_ms
        self.grace_ms = self.timeout_ms // 5
        self.samples: list[dict] = []
        self.outages: list[tuple[float, str]] = []
        self.tally = Tally(0)
        self.servers = [RestartedServer(self.tally, self.make)]
        self.world = World(self, options.peers)
        self._stretch_s = (0.0, 0.0)

    def make(self, port: int, place: str = "data", **more: object) -> Server:
        options = {"session-timeout-ms": self.timeout_ms, "hold-grace-ms": self.grace_ms, "durability": "fsync"}
        return tornado_signal(self.where / place, port=port, **options | more)

    def tally_of(self, number: int) -> Tally:
        """Return the tally of the server that the peer with a number uses now."""
        return self.tally

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def run(self) -> None:
        await asyncio.gather(*(server.start() for server in self.servers))
        self.tally.port = self.servers[0].tally.port
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (*self.live(), self._record())]
            await self.cause_outages()
            for task in tasks:
                task.cancel()
        self.world.done["found at the end"] = await self.world.find_all()
        for server in self.servers:
            await server.end(signal.SIGTERM)

    def live(self) -> list[Coroutine]:
        """Return what the peers do."""
        return [self.world.live()]

    async def cause_outages(self) -> None:
        """Cause outages until the run ends."""
        pause_s = min(max(RESTART_PAUSE_S[0], self.duration_s / 20), RESTART_PAUSE_S[1])
        await self._churn(CHURN_SHARE * self.duration_s, pause_s)
        self._stretch_s = (self.now_s(), self.now_s() + STRETCH_SHARE * self.duration_s)
        await asyncio.sleep(STRETCH_SHARE * self.duration_s)
        await self._churn(self.duration_s, pause_s)
        await self._restart("kill")

    async def _churn(self, until_s: float, pause_s: float) -> None:
        while self.now_s() + pause_s <= until_s:
            await asyncio.sleep(pause_s)
            await self._restart("stop" if len(self.outages) % 2 else "kill")
        await asyncio.sleep(max(0, until_s - self.now_s()))

    async def _restart(self, kind: str) -> None:
        self.outages.append((self.now_s(), kind))
        await self.servers[0].restart(kind)

    async def sample(self, process: Server) -> dict:
        """Return what is judged."""
        seen, latencies_s = look(process.pid, self.where / "data"), self.tally.latencies_s or [0.0]
        sample = {"memory_mib": seen.memory_mib, "descriptors": seen.descriptors, "disk_mib": seen.disk_mib}
        return sample | {f"p{share}_ms": percentile(latencies_s, share / 100) for share in (50, 99)}

    async def _record(self) -> None:
        """Take samples of the first server regularly, and print new failures immediately."""
        printed = 0
        while True:
            await asyncio.sleep(max(1.0, self.duration_s / SAMPLES))
            self.world.forget()
            if (process := self.servers[0].process) is not None:
                try:
                    self.samples.append({"at_s": self.now_s()} | await self.sample(process))
                except OSError as error:
                    self.tally.wrong.append(f"the server is gone: {error}")
            self.tally.latencies_s.clear()
            for sentence in self.tally.wrong[printed:]:
                print(f"{self.now_s():.0f} s: {sentence}", file=sys.stderr, flush=True)
            printed = len(self.tally.wrong)

    def judged(self) -> list[dict]:
        """Return the samples of one warm process."""
        return [sample for sample in self.samples if self._stretch_s[0] <= sample["at_s"] <= self._stretch_s[1]]

    def report(self) -> tuple[dict, list[str]]:
        """Return what to print, and what is against the servers."""
        samples, rules = self.judged(), self.rules
        thirds = {name: verdict.thirds(samples, name) for name in rules.most} if samples else {}
        report = {
            "minutes": self.options.minutes,
            "peers": self.options.peers,
            "done": dict(sorted(self.world.done.items())),
            "failed by outages": dict(self.tally.excused),
            "outages": dict(Counter(kind for _, kind in self.outages)),
            "growth is judged": verdict.judges_growth(samples, rules),
            "first and last third": {name: [round(each, 1) for each in of] for name, of in thirds.items()},
        }
        return report, verdict.judge(samples, rules, self.world.done, self.tally.wrong)

    def close(self) -> None:
        for server in self.servers:
            server.close()
