"""Helpers of all parts: amounts, servers and the figures so far."""

import functools
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from . import fill, processes
from .processes import Server, Target
from .report import Figure

FILLED_MS = 1_800_000  # the lifetime of filled sessions, half of that of sessions that a server creates here
TOPICS = 100  # topics among which offers are spread
SIZES = ("full", "quick", "smoke")
MILLION = 1_000_000
AMOUNTS = {
    "rounds": (7, 1, 1),  # how often the servers alternate. Figures are medians
    "run_s": (1, 0.5, 0.1),  # duration of one run of wrk
    "flows": (800, 300, 20),  # brokered connections in one round
    "rate": (1000, 1000, 200),  # requests per second under the steady load
    "steady_s": (6, 2, 0.5),  # duration of the steady load, also before the many sessions expire
    "connections": (8000, 1000, 50),  # idle connections
    "waiting": (18_000, 2000, 100),  # concurrent waiting requests
    "sockets": (15_000, 2000, 100),  # WebSockets that hold an offer
    "watchers": (5000, 1000, 100),  # WebSockets that watch one topic
    "sessions": (MILLION, 20_000, 2000),  # the many sessions
    "few": (1000, 1000, 100),  # the few sessions for comparison
    "mixed": (1000, 1000, 50),  # sessions among which the steady load is spread
    "sweep_s": (60, 8, 1),  # the longest time to wait for the sweep of the many sessions
    "rooms": (20, 4, 1),  # how often ten pages are opened at once
    "away_s": (10, 10, 1),  # how long the network of a page is unavailable
    "life_s": (120, 12, 2),  # how long browser-like peers arrive
    "life_rate": (80, 80, 80),  # pairs of them per second, while a server is measured
    "counted": (200, 40, 4),  # repetitions of an operation whose instructions are counted
    "idle": (10_000, 1000, 50),  # idle connections of another library's clients
    "protocol_turns": (10, 3, 1),  # turns of each server of such clients
    "cluster_waiting": (5000, 1000, 20),  # requests that wait at one server for messages sent to another
    "cluster_sessions": (100_000, 10_000, 300),  # the many sessions on Redis
    "cluster_kept": (10_000, 2000, 100),  # sessions and pairs whose memory is measured
    "cluster_losses": (3, 1, 1),  # how many primaries are killed, one after the other
}


def amounts(size: str, **changed: float) -> SimpleNamespace:
    """Return the amounts for a run of this size."""
    return SimpleNamespace(**{name: values[SIZES.index(size)] for name, values in AMOUNTS.items()} | changed)


@dataclass(frozen=True)
class Filled:
    """A filled directory with a hundredth of its codes. All sessions expire at once (`expires_ms`, Unix ms)."""

    path: Path
    expires_ms: int
    codes: list[str]


@dataclass
class Bench:
    size: SimpleNamespace  # the amounts, see `AMOUNTS`
    where: Path  # directory for databases and logs
    external: Target | None = None  # another server to measure instead of this package's
    others: list[Path] = field(default_factory=list)  # other checkouts, whose servers `life` also measures
    figures: list[Figure] = field(default_factory=list)
    _made: int = 0

    def directory(self) -> Path:
        self._made += 1
        return self.where / f"db-{self._made}"

    def server(self, durability: str = "os") -> AbstractContextManager[Target]:
        if self.external:
            return nullcontext(self.external)
        return processes.tornado_signal(self.directory(), durability=durability)

    def ceiling(self, durability: str = "os") -> Server:
        return processes.ceiling(self.directory(), durability=durability)

    def fill(self, sessions: int, a_topic: int) -> Filled:
        now_ms = time.time_ns() // 1_000_000
        expires_ms = now_ms + FILLED_MS
        path = self.directory()
        return Filled(path, expires_ms, fill.fill(path, sessions, a_topic, now_ms, expires_ms))

    @functools.cached_property
    def filled(self) -> Filled:
        """Return the directory with the many sessions, ten for each topic."""
        return self.fill(self.size.sessions, 10)

    def add(self, part: str, name: str, value: float | None, unit: str, *, most=None, judged=True, **rest) -> None:
        """Record a figure that has a value. `most` is its target, if this run can be judged by it."""
        if value is None:
            return
        if most is not None:
            rest |= {"target": f"<= {most:g} {unit}", "reached": value <= most}
        if not judged:
            rest["reached"] = None
        self.figures.append(Figure(part, name, value, unit, **rest))

    @property
    def whole(self) -> bool:
        return self.size.sessions == MILLION


def median(values: list[float | None]) -> float | None:
    available = [value for value in values if value is not None]
    return statistics.median(available) if available else None


def ratio(values: list[float | None], others: list[float | None]) -> float | None:
    pairs = zip(values, others, strict=True)
    return median([value / other for value, other in pairs if value is not None and other])


def within(value: float | None, most: float) -> bool | None:
    return None if value is None else value <= most


def offer_topics() -> list[str]:
    """Return the topics among which offers are spread, as long as the placeholder in a template."""
    return [f"topic-{number:04}" for number in range(TOPICS)]
