"""A run with its samples, and a server that is killed, stopped and started again at the same port."""

import argparse
import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path

from bench.processes import Server

from .peers import World
from .tally import Tally

SAMPLES = 1200  # maximum number, at intervals of one second or more

# The errors in a log, each with its traceback. Each line that begins a record begins with a time.
COMPLAINTS = re.compile(r"^(?:\d\S+ )?((?:ERROR|CRITICAL|Traceback).*(?:\n(?!\d{4}-).*)*)", re.MULTILINE)


class RestartedServer:
    """The processes of a server, one after the other.

    Args:
        tally: the results of its clients, with its port and its outages.
        make: returns the next process, given the port.

    Attributes:
        tally: as given.
        process: the current process, or None during a restart.
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


class Run:
    world: World

    def __init__(self, options: argparse.Namespace, where: Path) -> None:
        self.duration_s, self.timeout_ms = options.minutes * 60, options.session_timeout_ms
        self.grace_ms = self.timeout_ms // 5
        self.where = where
        self.samples: list[dict] = []
        self.restarts: list[tuple[float, str]] = []
        self.tally = Tally(0)

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def sample(self) -> dict | None:
        """Return what is judged, or None if there is no server now."""
        raise NotImplementedError

    async def live(self, outages: Awaitable[None], *peers: Coroutine) -> None:
        self._began_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (*peers, self.world.live(), self._record())]
            await outages
            for task in tasks:
                task.cancel()

    async def _record(self) -> None:
        """Take samples regularly, and print new failures immediately."""
        printed = 0
        while True:
            await asyncio.sleep(max(1.0, self.duration_s / SAMPLES))
            self.world.forget()
            if (sample := await self.sample()) is not None:
                self.samples.append({"at_s": self.now_s()} | sample)
            self.tally.latencies_s.clear()
            for sentence in self.tally.wrong[printed:]:
                print(f"{self.now_s():.0f} s: {sentence}", file=sys.stderr, flush=True)
            printed = len(self.tally.wrong)
