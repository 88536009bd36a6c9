"""What can be read from the store: sessions and listings, out of one view (a LevelDB database or snapshot of it)."""

import itertools
from array import array
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import layout
from .errors import DamagedListing
from .gates import Gate
from .index import TopicIndex
from .layout import Mark
from .session import Answer, ListedSession, News, Session, Side, TopicEvent

# How much is read in one turn of the event loop: a millisecond or two.
LISTING_STEP = 50  # sessions
PASSING_STEP = 2000  # expired entries passed over
EVENTS_STEP = 1000  # who came or left
ENTRIES_STEP = 500  # entries of a backup
ENTRIES_STEP_BYTES = 64 * 1024


def span(view: Any, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
    """Every key and value from one key to before another; by a raw iterator, which costs half of a bounded one."""
    entries = []
    raw = view.raw_iterator()
    try:
        raw.seek(start)
        while raw.valid():
            entry = raw.item()
            if entry[0] >= stop:
                break
            entries.append(entry)
            raw.next()
    finally:
        raw.close()
    return entries


def find(view: Any, key: bytes, code: bytes) -> Session | None:
    """The head of a session, expired or not, by its key; None where there is none."""
    head = view.get(key + layout.HEAD)
    return None if head is None else layout.unpack_head(code, head)


def find_gate(view: Any, key: bytes) -> Gate | None:
    """Who may act in a session, expired or not, by its key; None where there is none."""
    head = view.get(key + layout.HEAD)
    if head is None:
        return None
    answer = view.get(key + layout.ANSWER)
    return Gate(*layout.unpack_head_gate(head), layout.unpack_answer_gate(answer) if answer else b"")


def find_answer(view: Any, key: bytes) -> Answer | None:
    """The answer of a session, if it has one."""
    value = view.get(key + layout.ANSWER)
    return None if value is None else layout.unpack_answer(value)


def part_keys(view: Any, key: bytes, most: int | None = None) -> list[bytes]:
    """The keys of a session's parts, the head first, at most so many."""
    with view.iterator(start=key, stop=key + layout.AFTER_SESSION, include_value=False) as parts:
        return list(itertools.islice(parts, most))


def news(view: Any, key: bytes, gate: Gate, side: Side, since: int) -> News:
    """What one side of a session has sent.

    Args:
        view: where to read.
        key: the session's.
        gate: the session's; if it says that there is nothing new, then that is not looked for.
        side: who has sent it.
        since: only candidates with a number after this one.
    """
    description_key = key + layout.DESCRIPTION[side]
    start = key + layout.CANDIDATE[side] + layout.pack_number(since + 1) if since else description_key
    description = view.get(description_key) if since else None
    parts = span(view, start, key + layout.AFTER_SIDE[side]) if gate.numbers.get(side) != since else []
    if parts and parts[0][0] == description_key:
        description = parts.pop(0)[1]
    candidates = [(layout.unpack_number(part_key[-8:]), value.decode()) for part_key, value in parts]
    if description is None:
        return News(None, 0, candidates, gate.expires_ms, gate.serial)
    if side is Side.OFFERER:
        return News(description.decode(), 1, candidates, gate.expires_ms, gate.serial)
    answer = layout.unpack_answer(description)
    return News(answer.text, answer.number, candidates, gate.expires_ms, gate.serial)


def last_number(view: Any, key: bytes, side: Side) -> int:
    """The number of the newest of all that a side has sent; 0 for nothing."""
    raw = view.raw_iterator()
    try:
        raw.seek(key + layout.AFTER_SIDE[side])
        if raw.valid():
            raw.prev()
        else:
            raw.seek_to_last()
        newest = raw.key()  # at least the session's head comes before
    finally:
        raw.close()
    candidate = layout.unpack_number(newest[-8:]) if newest.startswith(key + layout.CANDIDATE[side]) else 0
    if side is Side.OFFERER:
        return max(candidate, 1)
    answer = find_answer(view, key)
    return max(candidate, answer.number if answer else 0)


def listing_step(
    view: Any,
    origin: str,
    start: bytes,
    stop: bytes,
    now_ms: int,
    most: int = LISTING_STEP,
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
        oldest_first: whether to read it against its order.

    Returns:
        The sessions, and the key from which to go on; None at the end of the listing.
    """
    step: list[ListedSession] = []
    passed = 0
    with view.iterator(start=start, include_start=False, stop=stop, reverse=oldest_first) as entries:
        for entry, value in entries:
            code, expires_ms = layout.unpack_listing_value(value)
            if now_ms < expires_ms:
                step.append(listed(view, layout.pack_session_prefix(origin, code), code))
            else:
                passed += 1
            if len(step) == most or passed == PASSING_STEP:
                return step, entry
    return step, None


def listed(view: Any, key: bytes, code: bytes) -> ListedSession:
    """A session as its topic's listing shows it."""
    head, offer, *candidates = (value for _, value in span(view, key, key + layout.AFTER_OFFERER))
    return ListedSession(layout.unpack_head(code, head), offer.decode(), [text.decode() for text in candidates])


def newest_serial(view: Any, origin: str, topic: str) -> int:
    """The serial of the newest that came to, or was taken from, a topic's listing; expiry alone does not count."""
    came = layout.pack_listing_prefix(origin, topic)
    with view.iterator(prefix=came, include_value=False) as entries:
        newest = next(entries, None)
    taken = layout.pack_gone_prefix(origin, topic, expired=False)
    with view.iterator(prefix=taken, include_value=False, reverse=True) as entries:
        last = next(entries, None)
    return max(
        0 if newest is None else layout.unpack_listing_key(newest)[3],
        0 if last is None else layout.unpack_number(last[-8:]),
    )


def last_serial(view: Any) -> int:
    """The serial of the newest event that is committed."""
    return layout.unpack_mark(view.get(layout.MARK_KEY, layout.NO_MARK)).serial


def arrivals_step(
    view: Any, start: bytes, stop: bytes, since: int, now_ms: int
) -> tuple[list[TopicEvent], bytes | None]:
    """Read some of those who came to a topic's listing after a serial and have not expired, the newest first.

    Args:
        view: where to read.
        start: the listing key (or the topic's prefix) behind which to begin.
        stop: the key before which the listing ends.
        since: the serial.
        now_ms: what has expired by now is passed over.

    Returns:
        Who came, and the key from which to go on; None when there are no more.
    """
    step: list[TopicEvent] = []
    with view.iterator(start=start, include_start=False, stop=stop) as entries:
        for entry, value in itertools.islice(entries, EVENTS_STEP):
            serial = layout.unpack_listing_key(entry)[3]
            if serial <= since:
                return step, None
            code, expires_ms = layout.unpack_listing_value(value)
            if now_ms < expires_ms:
                step.append(TopicEvent(serial, code, None))
            last = entry
        more = next(entries, None) is not None
    return step, last if more else None


def leavers_step(view: Any, start: bytes, stop: bytes, since: int) -> tuple[list[TopicEvent], bytes | None]:
    """Read some of those who left a topic's listing, and had come by a serial, in the order of their leaving.

    Args:
        view: where to read.
        start: the key behind which to begin.
        stop: the key before which to end.
        since: the serial; who came and left after it is not mentioned.

    Returns:
        Who left, and the key from which to go on; None when there are no more.
    """
    step = []
    with view.iterator(start=start, include_start=False, stop=stop) as entries:
        for entry, value in itertools.islice(entries, EVENTS_STEP):
            code, came, reason = layout.unpack_gone_value(value)
            if came <= since:
                step.append(TopicEvent(layout.unpack_number(entry[-8:]), code, reason))
            last = entry
        more = next(entries, None) is not None
    return step, last if more else None


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
        counts: those of unanswered sessions.
        mark: where the store's own clock and order of events have come to, and how many sessions are listed.
    """

    counts: TopicIndex
    mark: Mark


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
    mark = layout.unpack_mark(db.get(layout.MARK_KEY, layout.NO_MARK, verify_checksums=True))
    if listed != mark.listed:
        raise DamagedListing(listed, mark.listed)
    return Loaded(index, mark)
