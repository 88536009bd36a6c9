"""Helpers of all parts: amounts, servers and the figures so far."""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from . import processes
from .processes import Server
from .report import Figure

SIZES = ("full", "quick")
AMOUNTS = {
    "connections": (2000, 2000),  # connections whose memory is measured
    "sockets": (15_000, 2000),  # WebSockets that hold an offer
    "watchers": (5000, 1000),  # WebSockets that watch one topic
    "life_s": (120, 12),  # how long browser-like peers arrive
    "life_rate": (80, 80),  # pairs of them per second, while a server is measured
    "counted": (200, 40),  # repetitions of an operation whose instructions are counted
    "idle": (10_000, 1000),  # idle connections of another library's clients
    "protocol_turns": (10, 3),  # turns of each server of such clients
}


def amounts(size: str) -> SimpleNamespace:
    values = {name: values[SIZES.index(size)] for name, values in AMOUNTS.items()}
    return SimpleNamespace(**values, whole=size == SIZES[0])


@dataclass
class Bench:
    size: SimpleNamespace  # the amounts, see `AMOUNTS`
    where: Path  # directory for databases and logs
    others: list[Path] = field(default_factory=list)  # other checkouts, whose servers are also measured
    figures: list[Figure] = field(default_factory=list)
    _made: int = 0

    def directory(self) -> Path:
        self._made += 1
        return self.where / f"db-{self._made}"

    def server(self, **options: object) -> Server:
        return processes.tornado_signal(self.directory(), **options)

    def add(self, part: str, name: str, value: float, unit: str, *, most=None, judged=True, **rest) -> None:
        """Record a figure. `most` is its target, if this run can be judged by it."""
        if rest.get("reference"):
            rest["ratio"] = value / rest["reference"]
        if most is not None:
            rest |= {"target": f"<= {most:g} {unit}".rstrip(), "reached": value <= most}
        if not judged:
            rest["reached"] = None
        self.figures.append(Figure(part, name, value, unit, **rest))

    @property
    def whole(self) -> bool:
        return self.size.whole


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
