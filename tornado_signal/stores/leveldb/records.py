"""What can be read from the store: sessions and listings, out of one view (a LevelDB database or snapshot of it)."""

import contextlib
import heapq
import itertools
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import DamagedListing
from ...session import Answer, ListedSession, Reason, Session, SessionUpdate, Side
from . import layout
from .layout import StoreCounters
from .topic_index import TopicIndex

# How much is read in one turn of the event loop: a millisecond or two.
LISTING_STEP = 50  # sessions
LISTING_STEP_BYTES = 256 * 1024  # of them; the last one may go beyond
PASSING_STEP = 2000  # expired entries passed over
DEPARTURES_STEP = 1000
ENTRIES_STEP = 500  # entries of any kind
ENTRIES_STEP_BYTES = 64 * 1024


@dataclass(slots=True)
class SessionAuth:
    """What access to a session depends on, as it is committed.

    Attributes:
        expires_ms: when the session ends.
        serial: the session's own.
        offer_hash: of the secret that the offerer must show; empty if it need not.
        answer_hash: the same of the answerer.
        answer_number: that of the answer among what its side has sent; 0 while there is none.
        numbers: the last number that each side has got, also for what is on its way to the disk; of a side that
            was not asked about there may be none.
        sizes: the bytes of what each side has sent; as `numbers`.
    """

    expires_ms: int
    serial: int
    offer_hash: bytes
    answer_hash: bytes = b""
    answer_number: int = 0
    numbers: dict[Side, int] = field(default_factory=dict, compare=False)
    sizes: dict[Side, int] = field(default_factory=dict, compare=False)

    def secret_hash(self, side: Side) -> bytes:
        """Of the secret that a side must show; empty if it need not."""
        return self.answer_hash if side is Side.ANSWERER else self.offer_hash


def span(view: Any, start: bytes, stop: bytes, most: int | None = None) -> list[tuple[bytes, bytes]]:
    """Every key and value from one key to before another; by a raw iterator, which costs half of a bounded one.

    `most` is how many there are, where that is known: to look for one more is to pass over all that was deleted behind.
    """
    entries: list[tuple[bytes, bytes]] = []
    if most == 0:
        return entries
    raw = view.raw_iterator()
    try:
        raw.seek(start)
        while raw.valid():
            entry = raw.item()
            if entry[0] >= stop:
                break
            entries.append(entry)
            if len(entries) == most:
                break
            raw.next()
    finally:
        raw.close()
    return entries


def find(view: Any, key: bytes, code: bytes) -> Session | None:
    """The head of a session, expired or not, by its key; None where there is none."""
    head = view.get(key + layout.HEAD)
    return None if head is None else layout.unpack_head(code, head)


def find_access(view: Any, key: bytes) -> SessionAuth | None:
    """What access to a session depends on, expired or not, by its key; None where there is none."""
    head = view.get(key + layout.HEAD)
    if head is None:
        return None
    answer = view.get(key + layout.ANSWER)
    return SessionAuth(*layout.unpack_head_access(head), *(layout.unpack_answer_access(answer) if answer else ()))


def find_answer(view: Any, key: bytes) -> Answer | None:
    """The answer of a session, if it has one."""
    value = view.get(key + layout.ANSWER)
    return None if value is None else layout.unpack_answer(value)


def is_listed(view: Any, origin: str, session: Session) -> bool:
    """Whether a session stands in its topic's listing."""
    return view.get(layout.pack_listing_key(origin, session)) is not None


def part_keys(view: Any, key: bytes, access: SessionAuth | None, most: int | None = None) -> list[bytes]:
    """The keys of a session's parts, the head first, at most so many; not looked for where its access tells them."""
    if access is not None and len(access.numbers) == len(Side):
        return list(itertools.islice(layout.pack_part_keys(key, access.numbers, access.answer_number), most))
    with view.iterator(start=key, stop=key + layout.AFTER_SESSION, include_value=False) as parts:
        return list(itertools.islice(parts, most))


def news(view: Any, key: bytes, access: SessionAuth, side: Side, since: int) -> SessionUpdate:
    """What one side of a session has sent, of its candidates only those with a number after `since`.

    No more is looked for than the session's access says that there is.
    """
    description_key = key + layout.DESCRIPTION[side]
    start = key + layout.CANDIDATE[side] + layout.pack_number(since + 1) if since else description_key
    description = view.get(description_key) if since else None
    last = access.numbers.get(side)
    parts = span(view, start, key + layout.AFTER_SIDE[side], None if last is None else last - since)
    if parts and parts[0][0] == description_key:
        description = parts.pop(0)[1]
    candidates = [(layout.unpack_number(part_key[-8:]), value.decode()) for part_key, value in parts]
    if description is None:
        return SessionUpdate(None, 0, candidates, access.expires_ms, access.serial)
    if side is Side.OFFERER:
        return SessionUpdate(description.decode(), 1, candidates, access.expires_ms, access.serial)
    answer = layout.unpack_answer(description)
    return SessionUpdate(answer.text, answer.number, candidates, access.expires_ms, access.serial)


def sent(view: Any, key: bytes, side: Side) -> tuple[int, int]:
    """What one side of a session has sent: the number of the newest (0 for nothing), and the bytes of all."""
    description_key = key + layout.DESCRIPTION[side]
    last = size = 0
    for part_key, value in span(view, description_key, key + layout.AFTER_SIDE[side]):
        part = part_key[len(key) :]
        last = max(last, layout.unpack_part(part, value)[1])
        size += len(layout.unpack_answer(value).text.encode() if part == layout.ANSWER else value)
    return last, size


def listing_step(
    view: Any,
    origin: str,
    start: bytes,
    stop: bytes,
    now_ms: int,
    most: int,
    accesses: Mapping[bytes, SessionAuth],
    *,
    oldest_first: bool = False,
) -> tuple[list[ListedSession], bytes | None]:
    """Read some of a topic's listing.

    Args:
        view: where to read.
        origin: whose listing it is.
        start: the listing key (or the topic's prefix) behind which to begin; oldest first, before which to end.
        stop: the key before which the listing ends; oldest first, before which to begin.
        now_ms: what has expired by now is passed over.
        most: how many sessions.
        accesses: what is known of some sessions.
        oldest_first: whether to read it against its order.

    Returns:
        The sessions, and the key from which to go on; None at the end of the listing.
    """
    step: list[ListedSession] = []
    size = passed = 0
    with view.iterator(start=start, include_start=False, stop=stop, reverse=oldest_first) as entries:
        for entry, value in entries:
            code, expires_ms = layout.unpack_listing_value(value)
            if now_ms < expires_ms:
                key = layout.pack_session_prefix(origin, code)
                step.append(listed(view, key, code, accesses.get(key)))
                size += len(step[-1].offer) + sum(map(len, step[-1].candidates))
            else:
                passed += 1
            if len(step) == most or passed == PASSING_STEP or size >= LISTING_STEP_BYTES:
                return step, entry
    return step, None


def listed(view: Any, key: bytes, code: bytes, access: SessionAuth | None) -> ListedSession:
    """A session as its topic's listing shows it."""
    last = None if access is None else access.numbers.get(Side.OFFERER)
    parts = span(view, key, key + layout.AFTER_OFFERER, None if last is None else 1 + last)
    head, offer, *candidates = (value for _, value in parts)
    return ListedSession(layout.unpack_head(code, head), offer.decode(), [text.decode() for text in candidates])


def newest_serial(view: Any, origin: str, topic: str) -> int:
    """The serial of the newest that came to, or was taken from, a topic's listing; expiry alone does not count."""
    came = layout.pack_listing_prefix(origin, topic)
    with view.iterator(prefix=came, include_value=False) as entries:
        newest = next(entries, None)
    taken = layout.pack_departure_prefix(origin, topic, expired=False)
    with view.iterator(prefix=taken, include_value=False, reverse=True) as entries:
        last = next(entries, None)
    return max(
        0 if newest is None else layout.unpack_listing_key(newest)[3],
        0 if last is None else layout.unpack_number(last[-8:]),
    )


def counters(view: Any) -> StoreCounters:
    """Where the store has come to."""
    return layout.unpack_counters(view.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))


def listing_position(view: Any, start: bytes, stop: bytes, serial: int) -> tuple[bytes, bool]:
    """Look for the newest of a topic's sessions, between two listing keys, that is not newer than a serial.

    Returns:
        Its listing key (`stop` if there is none) and True; or the key from which to go on looking and False.
    """
    with view.iterator(start=start, include_start=False, stop=stop, include_value=False) as entries:
        for entry in itertools.islice(entries, PASSING_STEP):
            if layout.unpack_listing_key(entry)[3] <= serial:
                return entry, True
            start = entry
        return (start, False) if next(entries, None) else (stop, True)


def departures(
    view: Any, origin: str, topic: str, since: int
) -> tuple[list[tuple[int, tuple[bytes, int, Reason]]], bool]:
    """What has left a topic's listing after a serial, in the order of leaving, and whether there is more.

    Each with its place in the store's order of events, and what `layout.unpack_departure_value` tells.
    """
    with contextlib.ExitStack() as open_iterators:
        some = []
        for expired in (False, True):
            prefix = layout.pack_departure_prefix(origin, topic, expired=expired)
            start, stop = prefix + layout.pack_number(since), prefix + layout.AFTER_NUMBERS
            some.append(open_iterators.enter_context(view.iterator(start=start, include_start=False, stop=stop)))
        removed = [
            (layout.unpack_number(key[-8:]), layout.unpack_departure_value(value))
            for key, value in itertools.islice(heapq.merge(*some, key=lambda entry: entry[0][-8:]), DEPARTURES_STEP + 1)
        ]
    return removed[:DEPARTURES_STEP], len(removed) > DEPARTURES_STEP


def entries_step(view: Any, after: bytes) -> list[tuple[bytes, bytes]]:
    """Some of all entries, in the order of their keys, beginning behind a key; none at the end."""
    step, size = [], 0
    with view.iterator(start=after, include_start=False, fill_cache=False) as entries:
        for key, value in entries:
            step.append((key, value))
            size += len(key) + len(value)
            if len(step) == ENTRIES_STEP or size >= ENTRIES_STEP_BYTES:
                break
    return step


def read_all(db: Any) -> None:
    """Have LevelDB verify every block of every table.

    Without that it hands out what a damaged block says, or passes over the block. A scan says so where it goes on
    behind the block; at both ends only a raw iterator does.
    """
    with db.raw_iterator(verify_checksums=True, fill_cache=False) as ends:
        ends.seek_to_first()
        ends.seek_to_last()
    with db.iterator(include_value=False, verify_checksums=True, fill_cache=False) as keys:
        deque(keys, maxlen=0)


class Loaded(NamedTuple):
    """What is kept in memory beside the database.

    Attributes:
        identity: the store's, in hexadecimal.
        topics: the unanswered sessions of each topic.
        counters: where the store's own clock and order of events have come to, and how many sessions are listed.
        leases: those of the sessions that are held, by their keys.
    """

    identity: str
    topics: TopicIndex
    counters: StoreCounters
    leases: dict[bytes, bytes]


def load(db: Any) -> Loaded:
    """Read what is kept in memory, once, when the database is opened.

    Raises:
        plyvel.CorruptionError: a part of it cannot be read.
        DamagedListing: it does not hold as many sessions as were listed.
    """
    read_all(db)
    listed = 0

    def topics() -> Iterator[tuple[str, str, "array[int]"]]:
        nonlocal listed
        with db.iterator(prefix=layout.LISTING) as entries:
            for prefix, group in itertools.groupby(entries, key=lambda entry: layout.listing_prefix(entry[0])):
                expiries = array("Q", (layout.unpack_listing_value(value)[1] for _, value in group))
                listed += len(expiries)
                yield (*layout.unpack_listing_prefix(prefix), expiries)

    index = TopicIndex()
    index.fill(topics())
    found = layout.unpack_counters(db.get(layout.COUNTERS_KEY, layout.NO_COUNTERS, verify_checksums=True))
    if listed != found.listed:
        raise DamagedListing(listed, found.listed)
    return Loaded(db.get(layout.IDENTITY_KEY, verify_checksums=True).hex(), index, found, leases(db))


def leases(view: Any) -> dict[bytes, bytes]:
    """Return the leases of all sessions that are held, by the sessions' keys."""
    with view.iterator(prefix=layout.LEASES) as entries:
        return {key[len(layout.LEASES) :]: value for key, value in entries}
