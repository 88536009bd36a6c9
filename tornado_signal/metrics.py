"""What the server counts while it works: plain numbers, cheap to keep. `admin/exposition` shows them. No I/O.

Nothing here is told apart by topic, code or address, nor by origins but those that the operator has listed: numbers are
kept for ever, and read by many.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

WORK_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0, 20.0)
_REQUEST_S: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_WAIT_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_OFFER_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 900.0, 3600.0)
_LAG_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Histogram:
    """How many values were in each of some ranges.

    Args:
        bounds: the upper ends of the ranges, ascending; an end belongs to its range. One more range has none.

    Attributes:
        counts: the number of values in each range.
        sum: of all values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Family(NamedTuple):
    """A family of metrics, as an engine describes it.

    Attributes:
        kind: of its values.
        name: without the prefix of the package.
        meaning: a sentence for `HELP`.
        values: one value, or one for each combination of values of the labels.
        labels: names of the labels.
    """

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    meaning: str
    values: float | Histogram | Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


Kind = tuple[str, str, int]
"""Requests of one kind: the pattern of their path, their method and the status of their response."""


class Durations(dict[Kind, Histogram]):
    """How long requests took, in seconds, by kind."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, kind: Kind) -> Histogram:
        """The first of its kind."""
        self[kind] = Histogram(self._bounds)
        return self[kind]

    def by_pattern(self) -> dict[str, Histogram]:
        """Those of a path together, whatever their methods and statuses."""
        found: dict[str, Histogram] = {}
        for (pattern, _, _), seconds in self.items():
            together = found.setdefault(pattern, Histogram(self._bounds))
            together.counts = [mine + its for mine, its in zip(together.counts, seconds.counts, strict=True)]
            together.sum += seconds.sum
        return found


class SessionMetrics:
    """What has become of sessions.

    Attributes:
        created: how many were published.
        withdrawn: how many were taken back.
        swept: how many expired and were deleted.
        offers_waited: for how many seconds offers that were answered had waited for it.
    """

    def __init__(self) -> None:
        self.created = 0
        self.withdrawn = 0
        self.swept = 0
        self.offers_waited = Histogram(_OFFER_S)


class RequestMetrics:
    """What has become of requests, and how promptly the process serves them.

    Attributes:
        requests: those that were answered as soon as could be.
        waits: those that waited for news, streams among them.
        waiting: how many wait now, by the pattern of their path.
        refusals: by status and reason.
        by_origin: requests by the entry of the allow-list for their origin, the pattern of their path and status.
        defects: requests that failed through no fault of theirs.
        held: offers that are held by WebSockets now.
        loop_lag: seconds by which the event loop was late.
    """

    def __init__(self) -> None:
        self.requests = Durations(_REQUEST_S)
        self.waits = Durations(_WAIT_S)
        self.waiting: Counter[str] = Counter()
        self.refusals: Counter[tuple[int, str]] = Counter()
        self.by_origin: Counter[tuple[str, str, int]] = Counter()
        self.defects = 0
        self.held = 0
        self.loop_lag = Histogram(_LAG_S)
