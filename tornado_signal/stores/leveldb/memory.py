"""The sessions in memory, without their texts: what requests decide by, in the order of listings and of expiries.

The memory follows committed changes. It is never ahead of the database, except for serials, `latest_ms`, and the
numbers and bytes of messages, which include uncommitted ones. It is filled from the database when that is opened. Only
removals from listings are nowhere else. No I/O.
"""

import itertools
import operator
import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sortedcontainers import SortedDict, SortedKeyList

from ...session import ANSWERER, OFFERER, Reason, Side, TopicRange
from . import layout

ANY_SERIAL: Final = 2**64  # greater than every serial
SESSION_BYTES: Final = 1000  # upper bound of the memory of a session, without the lengths of origin and topic
REMOVAL_BYTES: Final = 600  # the same for a removal that is the only one of its topic
MAX_REMOVALS: Final = 100_000  # of all topics
MAX_TOPIC_REMOVALS: Final = 10_000

SERIAL_BITS: Final = 49  # of `Record.order`, which then takes as much memory as a number of 61 bits

_serial = operator.attrgetter("serial")


class Record:
    """A session, without its texts."""

    __slots__ = (
        "answer_hash",
        "answer_number",
        "answerer_bytes",
        "answerer_last",
        "created_ms",
        "key",
        "leases",
        "offer_hash",
        "offerer_bytes",
        "offerer_last",
        "order",
        "topic",
    )

    def __init__(self, key: bytes, created_ms: int, expires_ms: int, serial: int, offer_hash: bytes) -> None:
        self.key = key  # the prefix of its keys
        self.created_ms = created_ms
        self.order = expires_ms << SERIAL_BITS | serial  # orders sessions by expiry; changed by `Memory.refresh`
        self.topic: Topic | None = None  # the topic that lists it, if any
        self.leases = b""
        self.offer_hash = offer_hash  # hash of the offerer's secret, empty without a secret
        self.answer_hash = b""  # the same of the answerer
        self.answer_number = 0  # the number of the answer among its side's messages, 0 without an answer
        # The last number and the bytes of each side's messages. Those of uncommitted messages are included.
        self.offerer_last = self.offerer_bytes = self.answerer_last = self.answerer_bytes = 0

    @property
    def expires_ms(self) -> int:
        return self.order >> SERIAL_BITS

    @property
    def serial(self) -> int:
        return self.order & (1 << SERIAL_BITS) - 1

    @property
    def code(self) -> bytes:
        return self.key[-layout.CODE_BYTES :]

    def secret_hash(self, side: Side) -> bytes:
        return self.answer_hash if side is ANSWERER else self.offer_hash

    def sent(self, side: Side) -> tuple[int, int]:
        """Return the last number and the bytes of a side's messages."""
        if side is ANSWERER:
            return self.answerer_last, self.answerer_bytes
        return self.offerer_last, self.offerer_bytes

    def set_sent(self, side: Side, last: int, size: int) -> None:
        """Set both when a change is decided, before its commit."""
        if side is ANSWERER:
            self.answerer_last, self.answerer_bytes = last, size
        else:
            self.offerer_last, self.offerer_bytes = last, size

    def keys(self) -> Iterator[bytes]:
        """Yield the keys of its parts. The last ones are the offer and the head, by which it can be read."""
        key = self.key
        yield from layout.pack_candidate_keys(key, OFFERER, self.offerer_last, 1)
        yield from layout.pack_candidate_keys(key, ANSWERER, self.answerer_last, self.answer_number)
        if self.answer_number:
            yield key + layout.ANSWER
        if self.leases:
            yield key + layout.LEASES
        yield key + layout.OFFER
        yield key + layout.HEAD


class Topic:
    """The unanswered sessions of a topic. They can have expired since the last call of `Memory.due`."""

    __slots__ = ("name", "origin", "sessions")

    def __init__(self, origin: "Origin", name: bytes, record: Record) -> None:
        self.origin = origin
        self.name = name  # UTF-8
        self.sessions = [record]  # oldest first, which is in the order of their serials

    @property
    def prefix(self) -> bytes:
        return layout.pack_listing_prefix(self.origin.name, self.name.decode())

    def key_of(self, record: Record) -> bytes:
        return layout.pack_listing_key(self.origin.name, self.name.decode(), record.created_ms, record.serial)

    def remove(self, record: Record) -> None:
        del self.sessions[bisect_left(self.sessions, record.serial, key=_serial)]


class Origin:
    """The topics of an origin that have unanswered sessions."""

    __slots__ = ("count", "name", "topics")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0  # number of unanswered sessions
        # Keys are UTF-8, which sorts by code point (docs/decisions.md#alphabetical-order).
        self.topics: SortedDict[bytes, Topic] = SortedDict()


class Removal(NamedTuple):
    """The removal of a session from its topic's listing, or its refresh."""

    number: int  # the number of this event
    code: bytes
    serial: int  # the serial of the session
    reason: Reason | None  # None for a refresh: the session stays listed


class _TopicRemovals:
    __slots__ = ("forgotten", "latest_ms", "removals")

    def __init__(self, forgotten: int) -> None:
        self.forgotten = forgotten  # the topic's removals after this number are remembered
        self.latest_ms = 0  # the time of the last removal
        self.removals: list[Removal] = []


class Removals:
    """The latest removals and refreshes of all topics, numbered in their order, by the prefix of each topic."""

    def __init__(self) -> None:
        self.last = 0  # the number of the last event
        self.count = 0  # the number of those that are remembered
        self._forgotten = 0  # the removals of a topic without an entry are not after this number
        self._topics: OrderedDict[bytes, _TopicRemovals] = OrderedDict()  # in the order of their last removals

    def add(self, prefix: bytes, record: Record, reason: Reason | None, now_ms: int) -> None:
        """Remember an event. The oldest ones are forgotten if there are too many."""
        topic = self._topics.get(prefix)
        if topic is None:
            topic = self._topics[prefix] = _TopicRemovals(self._forgotten)
        else:
            self._topics.move_to_end(prefix)
        self.last += 1
        self.count += 1
        topic.latest_ms = now_ms
        topic.removals.append(Removal(self.last, record.code, record.serial, reason))
        if len(topic.removals) > MAX_TOPIC_REMOVALS:
            forgotten = topic.removals[: 1 + MAX_TOPIC_REMOVALS // 10]
            del topic.removals[: len(forgotten)]
            topic.forgotten = forgotten[-1].number
            self.count -= len(forgotten)
        while self.count > MAX_REMOVALS:
            self._forget_first()

    def forget(self, before_ms: int) -> None:
        """Forget the removals of topics without one after a time."""
        while self._topics and next(iter(self._topics.values())).latest_ms <= before_ms:
            self._forget_first()

    def _forget_first(self) -> None:
        _, topic = self._topics.popitem(last=False)
        self.count -= len(topic.removals)
        self._forgotten = max(self._forgotten, topic.removals[-1].number)

    def remembers(self, prefix: bytes, number: int) -> bool:
        """Return whether all events of a topic after a number are remembered."""
        topic = self._topics.get(prefix)
        return (topic.forgotten if topic else self._forgotten) <= number <= self.last

    def after(self, prefix: bytes, number: int, max_items: int) -> list[Removal]:
        """Return the events of a topic after a number, in their order."""
        topic = self._topics.get(prefix)
        if topic is None:
            return []
        start = bisect_right(topic.removals, number, key=operator.itemgetter(0))
        return topic.removals[start : start + max_items]


class Memory:
    """All sessions of a store.

    Attributes:
        identity: the identity of the store, in hexadecimal.
        secret: the secret of the store.
        generation: the random identity of this memory, in hexadecimal. Numbers of removals start over with each.
        latest_ms: the latest time that the store has seen. No session is newer.
        serial: the serial of the newest session, uncommitted ones included.
        newest: the serial of the newest committed session.
        listed: the number of unanswered sessions.
        topic_count: the number of their topics.
        size_bytes: an upper bound of the memory of all sessions.
        expired: the sessions to delete, each with its keys that are left.
    """

    def __init__(self, identity: bytes = b"", latest_ms: int = 0, serial: int = 0) -> None:
        self.identity = identity[: layout.IDENTITY_BYTES].hex()
        self.secret = identity[layout.IDENTITY_BYTES :]
        self.generation = os.urandom(layout.IDENTITY_BYTES).hex()
        self.latest_ms = latest_ms
        self.serial = self.newest = serial
        self.sessions: dict[bytes, Record] = {}
        self.origins: dict[str, Origin] = {}
        self.removals = Removals()
        self.expired: OrderedDict[Record, Iterator[bytes]] = OrderedDict()
        self.listed = self.topic_count = 0
        self._session_bytes = 0
        self._expiries: SortedKeyList[Record, int] = SortedKeyList(key=operator.attrgetter("order"))

    @property
    def size_bytes(self) -> int:
        return self._session_bytes + REMOVAL_BYTES * self.removals.count

    # Changes

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def fill(self, sessions: dict[bytes, Record]) -> None:
        """Add the sessions of a whole store. `enlist` adds them to their listings."""
        self.sessions = sessions
        self._session_bytes = sum(SESSION_BYTES + len(key) for key in sessions)
        self._expiries.update(sessions.values())

    def add(self, record: Record, origin: str, topic: str) -> None:
        self.sessions[record.key] = record
        self._session_bytes += SESSION_BYTES + len(record.key)
        self._expiries.add(record)
        self.newest = record.serial
        self.enlist(record, origin, topic)

    def enlist(self, record: Record, origin: str, topic: str) -> None:
        its = self.origins.get(origin)
        if its is None:
            its = self.origins[origin] = Origin(origin)
        name = topic.encode()
        listing = its.topics.get(name)
        if listing is None:
            listing = its.topics[name] = Topic(its, name, record)
            self.topic_count += 1
            self._session_bytes += len(name)
        else:
            listing.sessions.append(record)
        record.topic = listing
        its.count += 1
        self.listed += 1

    def delist(self, record: Record, topic: Topic, reason: Reason, now_ms: int) -> None:
        """Remove a session from its listing, and remember that."""
        self.removals.add(topic.prefix, record, reason, now_ms)
        record.topic = None
        topic.remove(record)
        origin = topic.origin
        origin.count -= 1
        self.listed -= 1
        if not topic.sessions:
            del origin.topics[topic.name]
            self.topic_count -= 1
            self._session_bytes -= len(topic.name)
            if not origin.topics:
                del self.origins[origin.name]

    def refresh(self, record: Record, expires_ms: int) -> None:
        self._expiries.remove(record)
        record.order = expires_ms << SERIAL_BITS | record.serial
        self._expiries.add(record)

    def due(self, now_ms: int, after: int = 0) -> Record | None:
        """Return the session that expired first by `now_ms`, if any. `expire` and `remove` end that it is due.

        With `after`, the `order` of a session, it is the first one after that.
        """
        if after:
            first: Record | None = next(self._expiries.irange_key(after, inclusive=(False, True)), None)
        else:
            first = self._expiries[0] if self._expiries else None
        return first if first is not None and first.expires_ms <= now_ms else None

    def is_due(self, record: Record, now_ms: int) -> bool:
        return record.expires_ms <= now_ms and record in self._expiries

    def expire(self, record: Record, now_ms: int) -> None:
        """Delist a session that is due. From now on it can be deleted."""
        self._expiries.remove(record)
        keys, topic = record.keys(), record.topic
        if topic is not None:
            keys = itertools.chain((topic.key_of(record),), keys)
            self.delist(record, topic, Reason.EXPIRED, now_ms)
        self.expired[record] = keys

    def remove(self, record: Record) -> None:
        if self.sessions.get(record.key) is record:
            del self.sessions[record.key]
            self._session_bytes -= SESSION_BYTES + len(record.key)
            self._expiries.discard(record)

    # Listings, which are exact once no session is due

    def topic(self, origin: str, topic: str) -> Topic | None:
        its = self.origins.get(origin)
        return its.topics.get(topic.encode()) if its else None

    def listing(
        self, origin: str, topic: str, after: int, before: int, *, oldest_first: bool = False
    ) -> Iterator[Record]:
        """Yield the listed sessions between two serials, newest first by default.

        The listing must not change during the iteration.
        """
        found = self.topic(origin, topic)
        if found is not None:
            sessions = found.sessions
            places = range(bisect_right(sessions, after, key=_serial), bisect_left(sessions, before, key=_serial))
            for at in places if oldest_first else reversed(places):
                yield sessions[at]

    def page(
        self, origin: str, offset: int, limit: int, ranges: Sequence[TopicRange] | None = None
    ) -> tuple[list[tuple[str, int]], int]:
        """Return a page of an origin's topics, or of those in ranges: topics with counts, and the number of topics."""
        its = self.origins.get(origin)
        if its is None:
            return [], 0
        names = its.topics.keys()
        ranks = [(0, len(names))]
        if ranges is not None:
            rank = its.topics.bisect_left
            ranks = [(rank(start), rank(end)) for start, end in (each.bounds for each in ranges)]
        page: list[bytes] = []
        total = 0
        for start, end in ranks:
            skipped = max(0, offset - total)
            page += names[start + skipped : min(end, start + skipped + limit - len(page))]
            total += end - start
        return [(name.decode(), len(its.topics[name].sessions)) for name in page], total
