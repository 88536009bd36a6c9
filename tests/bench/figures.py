"""What all parts share: how much is measured, the servers, the figures so far."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from . import fill, processes
from .processes import Server, Target
from .report import Figure

FILLED_MS = 1_800_000  # the lifetime of filled sessions; half of what a server here gives to those that it makes
TOPICS = 100  # among which offers are spread


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: how often the servers take turns; figures are medians.
        run_s: how long one run of wrk takes.
        flows: brokered connections in one round.
        rate: requests a second under the steady load.
        steady_s: how long that lasts, and how long before the million expires.
        connections: idle ones.
        waiting: requests that wait at once.
        sockets: WebSockets that hold an offer.
        watchers: WebSockets that watch one topic.
        sessions: the many.
        few: the few that they are compared with.
        mixed: sessions among which the steady load spreads.
        sweep_s: the longest time to wait for the sweep of the many.
        rooms: how often ten pages are opened at once.
        away_s: how long the network of a page is away.
        life_s: how long browser-like peers come.
        life_rate: how many pairs of them a second, in a server's turn.
        cluster_waiting: requests that wait at one server for what is sent to another.
        cluster_sessions: the many sessions on Redis.
        cluster_kept: sessions, and pairs, whose memory is measured.
        cluster_losses: how many primaries are lost, one after the other.
    """

    rounds: int
    run_s: float
    flows: int
    rate: int
    steady_s: float
    connections: int
    waiting: int
    sockets: int
    watchers: int
    sessions: int
    few: int = 1000
    mixed: int = 1000
    sweep_s: float
    rooms: int
    away_s: float = 10
    life_s: float
    life_rate: float = 80
    cluster_waiting: int = 5000
    cluster_sessions: int = 100_000
    cluster_kept: int = 10_000
    cluster_losses: int = 3


FULL = Size(
    rounds=7,
    run_s=1,
    flows=800,
    rate=1000,
    steady_s=6,
    connections=8000,
    waiting=18_000,
    sockets=15_000,
    watchers=5000,
    sessions=1_000_000,
    sweep_s=60,
    rooms=20,
    life_s=120,
)
QUICK = Size(
    rounds=1,
    run_s=0.5,
    flows=300,
    rate=1000,
    steady_s=2,
    connections=1000,
    waiting=2000,
    sockets=2000,
    watchers=1000,
    sessions=20_000,
    sweep_s=8,
    rooms=4,
    life_s=12,
    cluster_waiting=1000,
    cluster_sessions=10_000,
    cluster_kept=2000,
    cluster_losses=1,
)
SMOKE = Size(
    rounds=1,
    run_s=0.1,
    flows=20,
    rate=200,
    steady_s=0.5,
    connections=50,
    waiting=100,
    sockets=100,
    watchers=100,
    sessions=2000,
    few=100,
    mixed=50,
    sweep_s=1,
    rooms=1,
    away_s=1,
    life_s=2,
    cluster_waiting=20,
    cluster_sessions=300,
    cluster_kept=100,
    cluster_losses=1,
)


@dataclass(frozen=True)
class Filled:
    """A directory that was filled.

    Attributes:
        path: the directory.
        expires_ms: when all the sessions expire (Unix ms).
        codes: a hundredth of them.
    """

    path: Path
    expires_ms: int
    codes: list[str]


@dataclass
class Bench:
    """What the parts share.

    Attributes:
        size: how much is measured.
        where: a directory for databases and logs.
        given: another server, measured in the place of this package's.
        others: commands of other servers of this kind, which `life` measures, too.
        figures: what was measured so far.
    """

    size: Size
    where: Path
    given: Target | None = None
    others: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    _filled: Filled | None = None
    _made: int = 0

    def directory(self) -> Path:
        """A fresh place for a database."""
        self._made += 1
        return self.where / f"db-{self._made}"

    @contextmanager
    def server(self, durability: str = "os") -> Iterator[Target]:
        """The server to measure."""
        if self.given:
            yield self.given
        else:
            with processes.tornado_signal(self.directory(), durability=durability) as server:
                yield server

    @contextmanager
    def ceiling(self, durability: str = "os") -> Iterator[Server]:
        """The bare ceiling server."""
        with processes.ceiling(self.directory(), durability=durability) as server:
            yield server

    def fill(self, sessions: int, a_topic: int) -> Filled:
        """A directory with so many sessions."""
        now_ms = time.time_ns() // 1_000_000
        expires_ms = now_ms + FILLED_MS
        path = self.directory()
        return Filled(path, expires_ms, fill.fill(path, sessions, a_topic, now_ms, expires_ms))

    def fill_once(self) -> Filled:
        """The directory with the many sessions, ten a topic; the same one each time."""
        if self._filled is None:
            self._filled = self.fill(self.size.sessions, 10)
        return self._filled

    def add(self, part: str, name: str, value: float | None, unit: str, **rest: object) -> None:
        """Keep a figure, unless there is no value."""
        if value is not None:
            self.figures.append(Figure(part, name, value, unit, **rest))  # type: ignore[arg-type]

    @property
    def whole(self) -> bool:
        """Whether the many are a million, as the targets say."""
        return self.size.sessions == FULL.sessions


def median(values: list[float | None]) -> float | None:
    """The median, or None where nothing was measured."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(values: list[float | None], others: list[float | None]) -> float | None:
    """The median of the ratios within each round."""
    pairs = zip(values, others, strict=True)
    return median([value / other for value, other in pairs if value is not None and other])


def offer_topics() -> list[str]:
    """The topics among which offers are spread; as long as the one in a template."""
    return [f"topic-{number:04}" for number in range(TOPICS)]
