"""The listings of topics, and their numbers of unanswered sessions at any instant, in memory and without scanning.

An origin has its topics in alphabetical order, and for each topic the sorted expiries of its unanswered sessions and
their codes, oldest first. The first expiries of all topics are also in order of time. Most topics have one session, so
every byte counts there: one byte string is both the session and its topic's place in that order. No I/O.
"""

import heapq
import itertools
import operator
import struct
from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sortedcontainers import SortedDict, SortedList

from ...errors import TooMany
from ...session import TopicRange
from ..quotas import Quotas
from .layout import CODE_BYTES

ANY_SERIAL: Final = 2**64  # greater than every serial
RETRY_AFTER_S = 10  # it is unknown when the next session will be answered or expire

_PLACE: Final = struct.Struct(f">QQ{CODE_BYTES}s")  # expires_ms, serial, code


class _Sessions:
    """The unanswered sessions of a topic with several. Expired ones stay in the listing until they are removed."""

    __slots__ = ("codes", "expiries", "serials")

    def __init__(self) -> None:
        self.expiries = array("Q")  # sorted, without those that were pruned
        self.serials = array("Q")  # of the listing, ascending
        self.codes = bytearray()  # of the listing, in the order of their serials

    def add(self, expires_ms: int, serial: int, code: bytes) -> None:
        insort(self.expiries, expires_ms)
        at = bisect_left(self.serials, serial)
        self.serials.insert(at, serial)
        self.codes[CODE_BYTES * at : CODE_BYTES * at] = code

    def remove(self, expires_ms: int, serial: int) -> bool:
        """Remove a session, and return whether it was still counted."""
        at = bisect_left(self.serials, serial)
        if at < len(self.serials) and self.serials[at] == serial:
            del self.serials[at]
            del self.codes[CODE_BYTES * at : CODE_BYTES * (at + 1)]
            at = bisect_left(self.expiries, expires_ms)
            if at < len(self.expiries) and self.expiries[at] == expires_ms:
                del self.expiries[at]
                return True
        return False


Topic = bytes | _Sessions
"""The sessions of a topic: for one session `_PLACE` and the topic's name."""


def _place(name: bytes, topic: Topic) -> bytes:
    """Return a topic's place in the order of time. It ends with the name."""
    return topic if isinstance(topic, bytes) else _PLACE.pack(topic.expiries[0], 0, b"") + name


def _sessions(topic: Topic) -> _Sessions:
    if isinstance(topic, _Sessions):
        return topic
    sessions = _Sessions()
    sessions.add(*_PLACE.unpack_from(topic))
    return sessions


def _packed(name: bytes, sessions: _Sessions) -> Topic | None:
    """Return the sessions in their shortest form, or None if all have expired or are removed."""
    if not sessions.expiries:
        return None
    if len(sessions.serials) > 1:
        return sessions
    return _PLACE.pack(sessions.expiries[0], sessions.serials[0], bytes(sessions.codes)) + name


def _expiries(topic: Topic) -> "tuple[int] | array[int]":
    return topic.expiries if isinstance(topic, _Sessions) else (_PLACE.unpack_from(topic)[0],)


class _Origin:
    __slots__ = ("count", "due", "topics")

    def __init__(self) -> None:
        # Keys are UTF-8, which sorts by code point (docs/decisions.md#alphabetical-order).
        self.topics: SortedDict[bytes, Topic] = SortedDict()
        self.due: SortedList[bytes] = SortedList()
        self.count = 0  # number of counted sessions

    def replace(self, name: bytes, place: bytes | None, topic: Topic | None) -> int:
        """Replace the sessions of a topic. `place` was its place in the order of time, None for a new topic.

        Return the change in the number of topics: 1, 0 or -1.
        """
        new = None if topic is None else _place(name, topic)
        if new != place:
            if place is not None:
                self.due.remove(place)
            if new is not None:
                self.due.add(new)
        if topic is None:
            del self.topics[name]
        else:
            self.topics[name] = topic
        return (new is not None) - (place is not None)


class TopicIndex:
    """The listings of topics, and the counts and the alphabetical order behind `GET /topics`."""

    def __init__(self) -> None:
        self.topic_count = 0  # the number of topics of all origins, including expired ones that are not pruned yet
        self._origins: dict[str, _Origin] = {}

    def fill(self, topics: Iterable[tuple[str, str, list[tuple[int, int, bytes]]]]) -> None:
        """Add the sessions of a whole store: origin, topic, and expiry, serial and code of each, grouped by origin."""
        for origin, group in itertools.groupby(topics, key=lambda topic: topic[0]):
            held = self._origins[origin] = _Origin()
            packed: dict[bytes, Topic] = {}
            for _, topic, sessions in group:
                name = topic.encode()
                if len(sessions) == 1:
                    packed[name] = _PLACE.pack(*sessions[0]) + name
                else:
                    packed[name] = several = _Sessions()
                    several.expiries = array("Q", sorted(expires_ms for expires_ms, _, _ in sessions))
                    by_serial = sorted(sessions, key=operator.itemgetter(1))
                    several.serials = array("Q", (serial for _, serial, _ in by_serial))
                    several.codes = bytearray().join(code for _, _, code in by_serial)
                held.count += len(sessions)
            self.topic_count += len(packed)
            held.topics.update(packed)
            held.due.update(_place(name, value) for name, value in packed.items())

    def add(self, origin: str, topic: str, expires_ms: int, serial: int, code: bytes) -> None:
        """Add one unanswered session."""
        held = self._origins.get(origin)
        if held is None:
            held = self._origins[origin] = _Origin()
        held.count += 1
        name = topic.encode()
        before = held.topics.get(name)
        if before is None:
            self.topic_count += held.replace(name, None, _PLACE.pack(expires_ms, serial, code) + name)
            return
        place, sessions = _place(name, before), _sessions(before)
        sessions.add(expires_ms, serial, code)
        held.replace(name, place, sessions)

    def remove(self, origin: str, topic: str, expires_ms: int, serial: int) -> None:
        """Remove a session. Its expiry may have removed it from the count, or with its whole topic, before."""
        held = self._origins.get(origin)
        name = topic.encode()
        before = held.topics.get(name) if held else None
        if held is None or before is None:
            return
        place, sessions = _place(name, before), _sessions(before)
        held.count -= sessions.remove(expires_ms, serial)
        self.topic_count += held.replace(name, place, _packed(name, sessions))
        self._tidy(origin, held)

    def listing(
        self, origin: str, topic: str, after: int, before: int, *, oldest_first: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Yield serial and code of the listed sessions between two serials, newest first by default.

        Some may have expired. The index must not change during the iteration.
        """
        held = self._origins.get(origin)
        found = held.topics.get(topic.encode()) if held else None
        if isinstance(found, bytes):
            _, serial, code = _PLACE.unpack_from(found)
            if after < serial < before:
                yield serial, code
        elif found is not None:
            places = range(bisect_right(found.serials, after), bisect_left(found.serials, before))
            for at in places if oldest_first else reversed(places):
                yield found.serials[at], bytes(found.codes[CODE_BYTES * at : CODE_BYTES * (at + 1)])

    def newest_serial(self, origin: str, topic: str) -> int:
        """Return the serial of the newest listed session of a topic, 0 without one."""
        return next((serial for serial, _ in self.listing(origin, topic, 0, ANY_SERIAL)), 0)

    def prune(self, origin: str, now_ms: int, steps: int) -> bool:
        """Remove expired sessions from an origin's counts, for at most `steps` topics.

        Return whether the counts are exact now. Otherwise call it again.
        """
        held = self._origins.get(origin)
        if held is None:
            return True
        begun = _PLACE.pack(now_ms + 1, 0, b"")
        while held.due and held.due[0] < begun:
            if steps == 0:
                return False
            steps -= 1
            place = held.due[0]
            name = place[_PLACE.size :]
            sessions = _sessions(held.topics[name])
            expired = bisect_right(sessions.expiries, now_ms)
            del sessions.expiries[:expired]
            held.count -= expired
            self.topic_count += held.replace(name, place, _packed(name, sessions))
        self._tidy(origin, held)
        return True

    def page(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        """Return a page of an origin's topics, or of those in ranges. It is exact once `prune` has returned True.

        Return pairs of topic and count, and the total number of topics.
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
        return [(name.decode(), len(_expiries(held.topics[name]))) for name in page], total

    def counted(self, origin: str, topic: str, now_ms: int) -> tuple[int, int | None]:
        """Return the number of live sessions of a topic, and the earliest of their expiries or None."""
        held = self._origins.get(origin)
        found = held.topics.get(topic.encode()) if held else None
        if found is None:
            return 0, None
        times = _expiries(found)
        live = bisect_right(times, now_ms)
        return len(times) - live, times[live] if live < len(times) else None

    def sizes(self, origin: str, topic: str) -> tuple[int, int, int]:
        """Return the numbers of sessions and topics of an origin and of sessions of one topic, pruned or not."""
        held = self._origins.get(origin)
        if held is None:
            return 0, 0, 0
        found = held.topics.get(topic.encode())
        return held.count, len(held.topics), 0 if found is None else len(_expiries(found))

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
        """Reserve a place for one more session of a topic, until `release`. Raise TooMany if a quota is used up."""
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
