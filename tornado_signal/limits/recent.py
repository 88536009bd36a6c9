"""Requests of the last minutes by client, origin or reason, in bounded memory. No I/O."""

import heapq
import ipaddress
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

SLICE_S = 10.0  # the time of a slice
SLICES = 30  # complete slices: five minutes
MINUTE = 6  # slices of the last minute
MAX_NAMES = 500  # in the current slice
KEPT = 100  # in a complete slice
OTHERS = "others"
SHOWN_NETWORK = 3  # a network with at least this many clients is also shown as one

Name = TypeVar("Name", bound=Hashable)


class Counts(NamedTuple):
    """Numbers of requests: all, refused (4xx) and failed (5xx) ones."""

    requests: int
    refused: int
    failed: int


class RecentCounts(Generic[Name]):
    """Counts by name. `rotate` must be called every `SLICE_S`.

    If there are too many names, those with the fewest requests are merged into groups. An adversary with very many
    names appears as its group, and replaces nobody with more requests. `group` returns the group of a name, which is a
    name as well. `others` is the name of those without a group.
    """

    def __init__(self, group: Callable[[Name], Name], others: Name) -> None:
        self._group = group
        self._others = others
        self._current: dict[Name, list[int]] = {}
        self._complete: deque[dict[Name, list[int]]] = deque(maxlen=SLICES)

    def count(self, name: Name, status: int, number: int = 1) -> None:
        counts = self._current.get(name)
        if counts is None:
            if len(self._current) >= MAX_NAMES:
                self._current = self._merged(MAX_NAMES // 2)
            counts = self._current.setdefault(name, [0, 0, 0])
        counts[0] += number
        if status >= 400:
            counts[1 if status < 500 else 2] += number

    def rotate(self) -> None:
        """Begin the next slice, and forget the oldest."""
        self._complete.append(self._merged(KEPT))
        self._current = {}

    def totals(self) -> dict[Name, tuple[Counts, Counts]]:
        """Return the counts of the last five minutes and of the last minute by name."""
        slices = [self._current, *reversed(self._complete)]
        everything, minute = _sum(slices), _sum(slices[: MINUTE + 1])
        return {name: (Counts(*counts), Counts(*minute.get(name, (0, 0, 0)))) for name, counts in everything.items()}

    def _merged(self, most: int) -> dict[Name, list[int]]:
        """Return the `most` largest entries, and at most half as many groups of the others."""
        merged = dict(heapq.nlargest(most, self._current.items(), key=_size))
        groups: dict[Name, list[int]] = {}
        for name, counts in self._current.items():
            if name not in merged:
                _add(groups, self._group(name), counts)
        largest = heapq.nlargest(most // 2, groups.items(), key=_size)
        for name, counts in largest:
            _add(merged, name, counts)
            del groups[name]
        for counts in groups.values():
            _add(merged, self._others, counts)
        return merged


def _size(entry: tuple[object, list[int]]) -> int:
    return entry[1][0]


def _add(target: dict[Name, list[int]], name: Name, counts: list[int]) -> None:
    earlier = target.get(name)
    target[name] = list(counts) if earlier is None else [a + b for a, b in zip(earlier, counts, strict=True)]


def _sum(slices: list[dict[Name, list[int]]]) -> dict[Name, list[int]]:
    total: dict[Name, list[int]] = {}
    for part in slices:
        for name, counts in part.items():
            _add(total, name, counts)
    return total


def network_of(name: str) -> str:
    """Return the /48 or /24 of a client, or `OTHERS` for such a network and for a Unix socket."""
    try:
        network = ipaddress.ip_network(name)
    except ValueError:
        return OTHERS
    longest = 24 if network.version == 4 else 48
    return str(network.supernet(new_prefix=longest)) if network.prefixlen > longest else OTHERS


def with_networks(totals: dict[str, tuple[Counts, Counts]]) -> dict[str, tuple[Counts, Counts]]:
    """Return the counts of clients, and of networks with several of them."""
    members: dict[str, list[str]] = {}
    for name in totals:
        network = network_of(name)
        members.setdefault(name if network == OTHERS else network, []).append(name)
    result = dict(totals)
    for network, names in members.items():
        if network in totals or len(names) >= SHOWN_NETWORK:
            parts = [totals[name] for name in names]
            result[network] = _total(all_ for all_, _ in parts), _total(minute for _, minute in parts)
    return result


def _total(parts: Iterable[Counts]) -> Counts:
    return Counts(*map(sum, zip(*parts, strict=True)))
