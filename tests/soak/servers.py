"""A server that is killed, stopped and started again at the same port."""

import asyncio
import os
import re
import signal
from collections.abc import Callable

from bench.processes import Server

from .tally import Tally

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
