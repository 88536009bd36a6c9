"""Helpers of all parts: amounts, servers, the figures so far, and what more than one part measures."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

from . import processes
from .processes import ROOT, Server
from .report import Figure

AMOUNTS = {  # of a whole run, and of a quick one
    "sockets": (15_000, 2000),  # WebSockets that hold an offer
    "watchers": (5000, 1000),  # WebSockets that watch one topic
    "life_s": (120, 12),  # how long browser-like peers arrive
    "counted": (200, 40),  # repetitions of an operation whose instructions are counted
    "idle": (10_000, 1000),  # idle connections of another library's clients
    "protocol_turns": (10, 3),  # turns of each server of such clients
}


class Bench:
    """A run: its amounts, its folder for databases and logs, the checkouts that it measures, and its figures."""

    def __init__(self, where: Path, other: Path | None, *, whole: bool) -> None:
        self.where, self.whole = where, whole
        self.checkouts = [ROOT, other] if other else [ROOT]
        self.size = SimpleNamespace(**{name: values[not whole] for name, values in AMOUNTS.items()})
        self.figures: list[Figure] = []
        self._numbers = itertools.count(1)

    def server(self, **options: object) -> Server:
        return processes.tornado_signal(self.where / f"db-{next(self._numbers)}", **options)

    def add(self, part: str, name: str, value: float, unit: str, *, most=None, judged=True, **rest) -> None:
        """Record a figure. `most` is its target, if this run can be judged by it."""
        if most is not None:
            rest |= {"target": f"<= {most:g} {unit}".rstrip(), "reached": value <= most if judged else None}
        self.figures.append(Figure(part, name, value, unit, **rest))


def ratio(values: list[float], others: list[float]) -> float:
    """Return the median of the ratios."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


async def settled(server: Server) -> None:
    """Wait until the server has processed everything and is nearly idle, for a limited time."""
    for _ in range(60):
        if await busy_share(server, 0.5) < 0.04:
            return


async def busy_share(server: Server, seconds: float) -> float:
    """Return the share of a processor that a server uses for a time."""
    used_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (server.cpu_s() - used_s) / (time.perf_counter() - began_s)


async def alternate(turns: dict[Server, Callable[[], Awaitable[None]]], count: int) -> dict[Server, list[float]]:
    """Run turns of each server in alternation. Return the CPU time of each turn in seconds."""
    used_s: dict[Server, list[float]] = {server: [] for server in turns}
    order = [*turns.items()]
    for _ in range(count):
        for server, turn in order:
            before_s = server.cpu_s()
            await turn()
            used_s[server].append(server.cpu_s() - before_s)
        order.append(order.pop(0))  # so that none always follows the same one
    return used_s


async def connections_kib(server: Server, connect: Callable[[], Awaitable[list]]) -> tuple[list, float]:
    """Return the connections that a function opens, and the private resident memory of the server for each."""
    await settled(server)
    before_bytes = server.memory_bytes()
    opened = await connect()
    await settled(server)
    return opened, (server.memory_bytes() - before_bytes) / len(opened) / 1024
