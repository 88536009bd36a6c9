"""Figures of the last hour, a point every ten seconds, in bounded memory. No I/O."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import sub
from typing import Any, Final, NamedTuple

from ..limits.recent import SLICE_S
from ..metrics import Histogram

HISTORY_S: Final = 3600
MAX_POINTS: Final = round(HISTORY_S / SLICE_S)
SLICE_MS: Final = round(SLICE_S * 1000)


class Totals(NamedTuple):
    """Figures of a process: counts since its start, and its state now."""

    counts: tuple[int, ...]  # the fields of a `Point` from `requests` to `relayed`
    histograms: tuple[Histogram, Histogram, Histogram]  # those of `wake_up_s`, `lag_s` and `connect_s`
    used: float
    down: bool
    full: bool


class Point(NamedTuple):
    """Figures of ten seconds."""

    time: int  # their begin in Unix milliseconds
    requests: int  # numbers of events
    pairs: int
    refused: int  # without those of `NOT_REFUSED`
    failed: int
    defects: int
    connected: int  # numbers of reports
    unconnected: int
    relayed: int
    wake_up_s: float | None  # the time below which 99 % were, or None without observations
    lag_s: float | None
    connect_s: float | None  # the same for half of the connected peers
    used: float  # the largest share of a limit, from 0 to 1
    down: int  # 1 if the store was not available
    full: int  # 1 if a resource was full
    troubles: tuple[str, ...] = ()  # the names of the rules of the verdict that applied


class History:
    """The points of a process. `rotate` must be called every `SLICE_S`.

    `find_troubles` returns the rules of the verdict that apply at the last of the points: the value by name.
    """

    def __init__(
        self,
        read_totals: Callable[[], Totals],
        now_ms: Callable[[], int],
        find_troubles: Callable[[Sequence[Point]], dict[str, float]],
    ) -> None:
        self._read_totals = read_totals
        self._now_ms = now_ms
        self._find_troubles = find_troubles
        self._complete: deque[Point] = deque(maxlen=MAX_POINTS)
        self._begin()

    def _begin(self) -> None:
        before = self._read_totals()
        self._began_ms = self._now_ms()
        self._before = before.counts, [list(each.counts) for each in before.histograms]

    def rotate(self) -> None:
        """Begin the next point, and forget the oldest one."""
        self._complete.append(self._current()[0])
        self._begin()

    def points(self) -> list[Point]:
        """Return all points. The last one is not complete."""
        return [*self._complete, self._current()[0]]

    def troubles(self) -> list[list[Any]]:
        """Return the rules that apply now: name, begin in Unix milliseconds, and value."""
        current, values = self._current()
        found = []
        for name, value in values.items():
            since_ms = current.time
            for point in reversed(self._complete):
                if name not in point.troubles:
                    break
                since_ms = point.time
            found.append([name, since_ms, round(value, 4)])
        return found

    def _current(self) -> tuple[Point, dict[str, float]]:
        now, (counts, histograms) = self._read_totals(), self._before
        numbers = map(sub, now.counts, counts)
        bounds = map(highest, now.histograms, histograms, (0.99, 0.99, 0.5))
        point = Point._make((self._began_ms, *numbers, *bounds, round(now.used, 4), int(now.down), int(now.full), ()))
        values = self._find_troubles([*self._complete, point])
        return point._replace(troubles=tuple(values)), values


def highest(histogram: Histogram, before: Sequence[int], share: float) -> float | None:
    """Return the upper bound of a share of the values that were observed since `before`, or the highest bound."""
    below = list(accumulate(map(sub, histogram.counts, before)))
    if not below[-1]:
        return None
    return histogram.bounds[min(bisect_left(below, share * below[-1]), len(histogram.bounds) - 1)]


def summarize(points: Sequence[Point]) -> dict[str, Any]:
    """Return what clients have reported: numbers of connections, and the median of their times in seconds."""
    times = sorted((point.connect_s, point.connected) for point in points if point.connect_s is not None)
    below = list(accumulate(number for _, number in times))
    median_s = times[bisect_left(below, below[-1] / 2)][0] if times else None
    names = ("connected", "unconnected", "relayed")
    return {**{name: sum(getattr(point, name) for point in points) for name in names}, "median_s": median_s}


def merge(histories: Iterable[Sequence[Sequence[Any]]]) -> list[list[Any]]:
    """Return the points of several processes as one, by time."""
    merged: dict[int, Point] = {}
    for history in histories:
        for values in history:
            point = Point(*values)
            slot = point.time // SLICE_MS * SLICE_MS
            merged[slot] = _add(merged[slot], point) if slot in merged else point._replace(time=slot)
    return [list(merged[slot]) for slot in sorted(merged)[-MAX_POINTS - 1 :]]


def _add(one: Point, other: Point) -> Point:
    def largest(name: str) -> Any:
        return max((value for each in (one, other) if (value := getattr(each, name)) is not None), default=None)

    numbers = {name: getattr(one, name) + getattr(other, name) for name in Point._fields[1:9]}
    numbers |= {name: largest(name) for name in Point._fields[9:15]}
    return Point(one.time, **numbers, troubles=tuple(dict.fromkeys((*one.troubles, *other.troubles))))
