"""The numbers of unanswered sessions of topics at any instant, in memory and without scanning. No I/O.

An origin has its topics in alphabetical order, and for each topic the sorted expiries of its unanswered sessions. The
first expiries of all topics are also in order of time. Most topics have one session, so every byte counts there: one
byte string is both its expiry and its place in that order.
"""

import heapq
import itertools
import operator
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from sortedcontainers import SortedDict, SortedList

from ...errors import TooMany
from ...session import TopicRange
from ..quotas import Quotas

RETRY_AFTER_S = 10  # it is unknown when the next session will be answered or expire

Expiries: TypeAlias = "bytes | array[int]"
"""The expiries of one topic's sessions: the result of `_due` for one session, an array of 8-byte integers for more."""


def _sorted(expiries: Expiries) -> Sequence[int]:
    return (int.from_bytes(expiries[:8], "big"),) if isinstance(expiries, bytes) else expiries


def _without(expiries: Expiries, start: int, stop: int) -> Sequence[int]:
    """Return the expiries without a range. An array is changed in place."""
    if isinstance(expiries, bytes):
        return ()
    del expiries[start:stop]
    return expiries


def _due(expires_ms: int, name: bytes) -> bytes:
    """Return a topic's place in the order of time: the big-endian expiry, then the name."""
    return expires_ms.to_bytes(8, "big") + name


class _Origin:
    __slots__ = ("count", "due", "topics")

    def __init__(self) -> None:
        # Keys are UTF-8, which sorts by code point (docs/decisions.md#alphabetical-order).
        self.topics: SortedDict[bytes, Expiries] = SortedDict()
        self.due: SortedList[bytes] = SortedList()
        self.count = 0  # number of sessions

    def replace(self, name: bytes, first_ms: int | None, expiries: Sequence[int]) -> int:
        """Replace the expiries of a topic. `first_ms` was its first expiry, None for a new topic.

        Returns:
            The change in the number of topics: 1, 0 or -1.
        """
        due = _due(expiries[0], name) if expiries else b""
        if first_ms is None or not expiries or expiries[0] != first_ms:
            if first_ms is not None:
                self.due.remove(_due(first_ms, name))
            if expiries:
                self.due.add(due)
        if not expiries:
            del self.topics[name]
        elif len(expiries) == 1:
            self.topics[name] = due
        elif isinstance(expiries, array):
            self.topics[name] = expiries
        return bool(expiries) - (first_ms is not None)


class TopicIndex:
    """The counts and the alphabetical order behind `GET /topics`."""

    def __init__(self) -> None:
        self.topic_count = 0  # the number of topics of all origins, including expired ones that are not pruned yet
        self._origins: dict[str, _Origin] = {}

    def fill(self, topics: Iterable[tuple[str, str, "array[int]"]]) -> None:
        """Count the sessions of a whole store: origin, topic and expiries, grouped by origin."""
        for origin, group in itertools.groupby(topics, key=lambda topic: topic[0]):
            held = self._origins[origin] = _Origin()
            counted: dict[bytes, Expiries] = {}
            due = []
            for _, topic, expiries in group:
                name = topic.encode()
                first = _due(min(expiries), name)
                counted[name] = first if len(expiries) == 1 else array("Q", sorted(expiries))
                due.append(first)
                held.count += len(expiries)
            self.topic_count += len(counted)
            held.topics.update(counted)
            held.due.update(due)

    def add(self, origin: str, topic: str, expires_ms: int) -> None:
        """Count one unanswered session."""
        held = self._origins.get(origin)
        if held is None:
            held = self._origins[origin] = _Origin()
        held.count += 1
        name = topic.encode()
        expiries = held.topics.get(name)
        if expiries is None:
            self.topic_count += held.replace(name, None, (expires_ms,))
            return
        first_ms = _sorted(expiries)[0]
        if isinstance(expiries, bytes):
            expiries = array("Q", (first_ms,))
        insort(expiries, expires_ms)
        held.replace(name, first_ms, expiries)

    def remove(self, origin: str, topic: str, expires_ms: int) -> None:
        """Stop counting a session. Do nothing if its expiry has already removed it from the count."""
        held = self._origins.get(origin)
        name = topic.encode()
        expiries = held.topics.get(name) if held else None
        if held is None or expiries is None:
            return
        times = _sorted(expiries)
        at = bisect_left(times, expires_ms)
        if at < len(times) and times[at] == expires_ms:
            held.count -= 1
            self.topic_count += held.replace(name, times[0], _without(expiries, at, at + 1))
            self._tidy(origin, held)

    def prune(self, origin: str, now_ms: int, steps: int) -> bool:
        """Remove expired sessions from an origin's counts, for at most `steps` topics.

        Returns:
            Whether the counts are exact now. Otherwise call it again.
        """
        held = self._origins.get(origin)
        if held is None:
            return True
        begun = _due(now_ms + 1, b"")
        while held.due and held.due[0] < begun:
            if steps == 0:
                return False
            steps -= 1
            name = held.due[0][8:]
            expiries = held.topics[name]
            times = _sorted(expiries)
            expired = bisect_right(times, now_ms)
            held.count -= expired
            self.topic_count += held.replace(name, times[0], _without(expiries, 0, expired))
        self._tidy(origin, held)
        return True

    def page(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        """Return a page of an origin's topics, or of those in ranges. It is exact once `prune` has returned True.

        Returns:
            Pairs of topic and count, and the total number of topics.
        """
        held = self._origins.get(origin)
        if held is None:
            return [], 0
        names = held.topics.keys()
        ranks = [(0, len(names))]
        if ranges is not None:
            rank = held.topics.bisect_left
            ranks = [(rank(start), rank(end)) for start, end in (each.bounds for each in ranges)]
        page: list[bytes] = []
        total = 0
        for start, end in ranks:
            skipped = max(0, offset - total)
            page += names[start + skipped : min(end, start + skipped + limit - len(page))]
            total += end - start
        return [(name.decode(), len(_sorted(held.topics[name]))) for name in page], total

    def counted(self, origin: str, topic: str, now_ms: int) -> tuple[int, int | None]:
        """Return the number of live sessions of a topic and the earliest expiry, or None without sessions."""
        held = self._origins.get(origin)
        expiries = held.topics.get(topic.encode()) if held else None
        if expiries is None:
            return 0, None
        times = _sorted(expiries)
        live = bisect_right(times, now_ms)
        return len(times) - live, times[live] if live < len(times) else None

    def sizes(self, origin: str, topic: str) -> tuple[int, int, int]:
        """Return the numbers of sessions and topics of an origin and of sessions of one topic, pruned or not."""
        held = self._origins.get(origin)
        if held is None:
            return 0, 0, 0
        expiries = held.topics.get(topic.encode())
        return held.count, len(held.topics), 0 if expiries is None else len(_sorted(expiries))

    def origins(self) -> list[str]:
        """Return the origins with counted sessions."""
        return list(self._origins)

    def largest(self, origins: Iterable[str], max_items: int) -> list[tuple[str, int, int]]:
        """Return those of some origins with the most sessions: origin, number of sessions, and number of topics."""
        held = ((origin, self._origins[origin]) for origin in origins if origin in self._origins)
        counts = ((origin, its.count, len(its.topics)) for origin, its in held)
        return heapq.nlargest(max_items, counts, key=operator.itemgetter(1))

    def _tidy(self, origin: str, held: _Origin) -> None:
        if not held.topics:
            del self._origins[origin]


class Reservations:
    """Reserves quota for sessions that are being written."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self._reserved: dict[str, dict[str, int]] = {}  # reserved places by origin and topic
        self._counts: dict[str, int] = {}  # reserved places by origin

    def reserve(self, index: TopicIndex, origin: str, topic: str) -> None:
        """Reserve a place for one more session of a topic, until `release`.

        Raises:
            TooMany: a quota is used up.
        """
        quotas = self.quotas
        reserved = self._reserved.get(origin, {})
        count = self._counts.get(origin, 0)
        sessions, topics, in_topic = index.sizes(origin, topic)
        if sessions + count >= quotas.sessions_per_origin:
            raise TooMany("sessions of an origin", RETRY_AFTER_S)
        if in_topic + reserved.get(topic, 0) >= quotas.sessions_per_topic:
            raise TooMany("sessions of a topic", RETRY_AFTER_S)
        if not in_topic and topic not in reserved and topics + len(reserved) >= quotas.topics_per_origin:
            new = sum(not index.sizes(origin, name)[2] for name in reserved)
            if topics + new >= quotas.topics_per_origin:
                raise TooMany("topics of an origin", RETRY_AFTER_S)
        reserved[topic] = reserved.get(topic, 0) + 1
        self._reserved[origin] = reserved
        self._counts[origin] = count + 1

    def release(self, origin: str, topic: str) -> None:
        """Release a reserved place: the session is listed, or publishing has failed."""
        reserved = self._reserved[origin]
        reserved[topic] -= 1
        self._counts[origin] -= 1
        if not reserved[topic]:
            del reserved[topic]
            if not reserved:
                del self._reserved[origin], self._counts[origin]
