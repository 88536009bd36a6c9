"""Counters of the connections that clients report (docs/turn.md#reports-of-connections). No I/O."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from ..metrics import Family, Histogram

OUTCOMES: Final = ("connected", "failed")
KINDS: Final = ("host", "srflx", "prflx", "relay")
"""The types of ICE candidates (RFC 8445). A pair has the later one of its two."""
TRANSPORTS: Final = ("udp", "tcp", "tls")
MAX_MS: Final = 3_600_000

WINDOW_MS: Final = 1_800_000  # an address counts for at most `SHARE` of the reports of this time and the time before it
SHARE: Final = 10
MAX_ADDRESSES: Final = 10_000  # in a window

_CONNECT_S: Final = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)


class ConnectionReports:
    """The reports of a process. They contain nothing about the peers, and no more than one in ten is of one address."""

    def __init__(self) -> None:
        self.numbers: Counter[tuple[str, ...]] = Counter()  # by outcome, kind and transport
        self.seconds = Histogram(_CONNECT_S)  # until the connections were made
        self.ignored = 0  # the number of reports beyond the share of their address
        self._windows: tuple[Counter[str], Counter[str]] = Counter(), Counter()  # reports by address: now, and before
        self._totals = [0, 0]  # of the windows
        self._ends_ms = 0

    def add(
        self, address: str | None, outcome: str, local: str, remote: str, transport: str, ms: int, now_ms: int
    ) -> None:
        """Count a report. `address` is None for an address that no limits apply to. Unknown texts are empty."""
        if address is not None and not self._may_count(address, now_ms):
            self.ignored += 1
        elif outcome == "connected":
            self.numbers[outcome, max(local, remote, key=("", *KINDS).index), transport] += 1
            self.seconds.observe(ms / 1000)
        else:
            self.numbers[outcome, "", ""] += 1

    def _may_count(self, address: str, now_ms: int) -> bool:
        """Count an address, and return whether its share allows that. The first report always counts."""
        current, before = self._windows
        if now_ms >= self._ends_ms or len(current) >= MAX_ADDRESSES:
            recent = now_ms < self._ends_ms + WINDOW_MS
            self._windows = current, before = Counter(), current if recent else Counter()
            self._totals = [0, self._totals[0] if recent else 0]
            self._ends_ms = now_ms + WINDOW_MS
        own = current[address] + before[address] + 1
        if own > max(1, (sum(self._totals) + 1) / SHARE):
            return False
        current[address] += 1
        self._totals[0] += 1
        return True

    def count(self, outcome: str, kind: str | None = None) -> int:
        """Return the number of reports with an outcome, or also with a kind."""
        return sum(
            number
            for (reported, way, *_), number in self.numbers.items()
            if reported == outcome and kind in (None, way)
        )

    def families(self) -> Iterator[Family]:
        """Yield all metrics. They have at most 40 series."""
        numbers: Mapping[tuple[str, ...], float] = dict(self.numbers)
        meaning = "Attempts to connect two peers that clients have reported."
        yield Family("counter", "reported_connections", meaning, numbers, ("outcome", "kind", "transport"))
        yield Family("histogram", "reported_connect_seconds", "Time until two peers were connected.", self.seconds)
        meaning = "Reports of addresses with more than a tenth of all."
        yield Family("counter", "reports_ignored", meaning, self.ignored)
