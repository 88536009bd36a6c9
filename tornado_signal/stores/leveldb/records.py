"""Reads of sessions and listings from one view, which is a LevelDB database or a snapshot of it."""

import contextlib
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...errors import DamagedListing
from ...session import Answer, ListedSession, Reason, Session, SessionUpdate, Side
from . import layout
from .layout import StoreCounters
from .topic_index import TopicIndex

# Bounds of the reads in one event-loop iteration, for a millisecond or two.
LISTING_STEP = 50  # sessions, expired ones included
LISTING_STEP_BYTES = 256 * 1024  # of sessions; the last one can exceed it
REMOVALS_STEP = 1000


@dataclass(slots=True)
class SessionAuth:
    """The committed access data of a session."""

    expires_ms: int
    serial: int
    offer_hash: bytes  # hash of the offerer's secret, empty without a secret
    answer_hash: bytes = b""  # hash of the answerer's secret, empty without a secret
    answer_number: int = 0  # the number of the answer among its side's messages, 0 without an answer
    # The last number assigned to each side, uncommitted messages included. A side can be missing.
    numbers: dict[Side, int] = field(default_factory=dict, compare=False)
    # The bytes of each side's messages. A side can be missing.
    sizes: dict[Side, int] = field(default_factory=dict, compare=False)

    def secret_hash(self, side: Side) -> bytes:
        """Return the hash of a side's secret, empty without a secret."""
        return self.answer_hash if side is Side.ANSWERER else self.offer_hash


def span(view: Any, start: bytes, stop: bytes, max_items: int | None = None) -> list[tuple[bytes, bytes]]:
    """Return the keys and values in [start, stop). A raw iterator costs half as much as a bounded one.

    `max_items` is the number of entries if it is known. Searching for another one would skip all later deleted entries.
    """
    entries: list[tuple[bytes, bytes]] = []
    if max_items == 0:
        return entries
    raw = view.raw_iterator()
    try:
        raw.seek(start)
        while raw.valid():
            entry = raw.item()
            if entry[0] >= stop:
                break
            entries.append(entry)
            if len(entries) == max_items:
                break
            raw.next()
    finally:
        raw.close()
    return entries


def find(view: Any, key: bytes, code: bytes) -> Session | None:
    """Return a session by its key, expired or not, None if it does not exist."""
    head = view.get(key + layout.HEAD)
    return None if head is None else layout.unpack_head(code, head)


def find_access(view: Any, key: bytes) -> SessionAuth | None:
    """Return the access data of a session by its key, expired or not, None if it does not exist."""
    head = view.get(key + layout.HEAD)
    if head is None:
        return None
    answer = view.get(key + layout.ANSWER)
    return SessionAuth(*layout.unpack_head_access(head), *(layout.unpack_answer_access(answer) if answer else ()))


def find_answer(view: Any, key: bytes) -> Answer | None:
    """Return the answer of a session, if any."""
    value = view.get(key + layout.ANSWER)
    return None if value is None else layout.unpack_answer(value)


def is_listed(view: Any, origin: str, session: Session) -> bool:
    """Return whether a session is in its topic's listing."""
    return view.get(layout.pack_listing_key(origin, session)) is not None


def part_keys(view: Any, key: bytes, access: SessionAuth | None, max_items: int | None = None) -> list[bytes]:
    """Return at most `max_items` keys of a session's parts, the head first. Known access data avoids the search."""
    if access is not None and len(access.numbers) == len(Side):
        return list(itertools.islice(layout.pack_part_keys(key, access.numbers, access.answer_number), max_items))
    with view.iterator(start=key, stop=key + layout.AFTER_SESSION, include_value=False) as parts:
        return list(itertools.islice(parts, max_items))


def news(view: Any, key: bytes, access: SessionAuth, side: Side, since: int) -> SessionUpdate:
    """Return the messages of one side of a session, with the candidates after the number `since`.

    The access data bounds the read.
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
    """Return the number of the newest message of one side (0 for none), and the size of all its messages."""
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
    entries: Iterable[tuple[int, bytes]],
    now_ms: int,
    max_items: int,
    accesses: Mapping[bytes, SessionAuth],
) -> tuple[list[ListedSession], int | None]:
    """Read some sessions of a topic's listing. Those that have expired by `now_ms` are skipped.

    The entries are serial and code of each session, in order. Return the sessions, and the serial of the last entry. It
    is None after all entries.
    """
    step: list[ListedSession] = []
    size = count = last = 0
    for serial, code in entries:
        if count == LISTING_STEP or len(step) == max_items or size >= LISTING_STEP_BYTES:
            return step, last
        key = layout.pack_session_prefix(origin, code)
        found = listed(view, key, code, accesses.get(key))
        if found.session.live(now_ms):
            step.append(found)
            size += found.size
        count, last = count + 1, serial
    return step, None


def listed(view: Any, key: bytes, code: bytes, access: SessionAuth | None) -> ListedSession:
    """Return a session as its topic's listing shows it."""
    last = None if access is None else access.numbers.get(Side.OFFERER)
    parts = span(view, key, key + layout.AFTER_OFFERER, None if last is None else 1 + last)
    head, offer, *candidates = (value for _, value in parts)
    return ListedSession(layout.unpack_head(code, head), offer.decode(), [text.decode() for text in candidates])


def counters(view: Any) -> StoreCounters:
    """Return the counters of the store."""
    return layout.unpack_counters(view.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))


def removals(
    view: Any, origin: str, topic: str, since: int, newest: Callable[[bytes], tuple[int, bool]]
) -> tuple[list[tuple[int, tuple[bytes, int, Reason | None]]], bool]:
    """Return the removals and refreshes of a topic after a serial, in their order, and whether there are more.

    `newest` returns the bound of the removals with a prefix, see `StoreState.newest_removal`. Searching beyond it would
    skip all deleted entries of other topics. Each removal has its serial and the result of
    `layout.unpack_removal_value`.
    """
    with contextlib.ExitStack() as open_iterators:
        some = []
        for kind in layout.KINDS:
            prefix = layout.pack_removal_prefix(origin, topic, kind)
            last, exact = newest(prefix)
            if last > since:
                entries = _removals(view, prefix, since, last if exact else None)
                some.append(open_iterators.enter_context(contextlib.closing(entries)))
        removed = list(itertools.islice(heapq.merge(*some), REMOVALS_STEP + 1))
    unpacked = [(serial, layout.unpack_removal_value(value)) for serial, value in removed[:REMOVALS_STEP]]
    return unpacked, len(removed) > REMOVALS_STEP


def _removals(view: Any, prefix: bytes, since: int, last: int | None) -> Generator[tuple[int, bytes], None, None]:
    start, stop = prefix + layout.pack_number(since), prefix + layout.AFTER_NUMBERS
    with view.iterator(start=start, include_start=False, stop=stop) as entries:
        for key, value in entries:
            serial = layout.unpack_number(key[-8:])
            yield serial, value
            if serial == last:
                return


def read_all(db: Any) -> None:
    """Verify the checksum of every block of every table.

    Otherwise LevelDB returns the content of a damaged block, or skips the block. A scan reports a block that it passes.
    For the first and the last block only a raw iterator does.
    """
    with db.raw_iterator(verify_checksums=True, fill_cache=False) as ends:
        ends.seek_to_first()
        ends.seek_to_last()
    with db.iterator(include_value=False, verify_checksums=True, fill_cache=False) as keys:
        deque(keys, maxlen=0)


class Loaded(NamedTuple):
    """The initial content of the state in memory."""

    identity: str  # the identity of the store, in hexadecimal
    topics: TopicIndex  # the unanswered sessions of each topic
    counters: StoreCounters  # the store's latest time and serial, and the number of listed sessions
    leases: dict[bytes, bytes]  # the leases of held sessions, by key
    secret: bytes  # the secret of the store
    forgotten: int  # no removal up to this serial is stored


def load(db: Any) -> Loaded:
    """Read the content of the state in memory, when the database is opened.

    Raises:
        plyvel.CorruptionError: a part of the database cannot be read.
        DamagedListing: the listings do not hold the number of sessions that the counters say.
    """
    read_all(db)
    listed = 0

    def topics() -> Iterator[tuple[str, str, list[tuple[int, int, bytes]]]]:
        nonlocal listed
        with db.iterator(prefix=layout.LISTING) as entries:
            for prefix, group in itertools.groupby(entries, key=lambda entry: layout.listing_prefix(entry[0])):
                sessions = [layout.unpack_listed(key, value) for key, value in group]
                listed += len(sessions)
                yield (*layout.unpack_listing_prefix(prefix), sessions)

    index = TopicIndex()
    index.fill(topics())
    counters = layout.unpack_counters(db.get(layout.COUNTERS_KEY, layout.NO_COUNTERS, verify_checksums=True))
    if listed != counters.listed:
        raise DamagedListing(listed, counters.listed)
    identity = db.get(layout.IDENTITY_KEY, verify_checksums=True)
    size = layout.IDENTITY_BYTES
    forgotten = layout.unpack_number(db.get(layout.FORGOTTEN_KEY, layout.pack_number(0), verify_checksums=True))
    return Loaded(identity[:size].hex(), index, counters, leases(db), identity[size:], forgotten)


def leases(view: Any) -> dict[bytes, bytes]:
    """Return the leases of all held sessions, by key."""
    with view.iterator(prefix=layout.LEASES) as entries:
        return {key[len(layout.LEASES) :]: value for key, value in entries}
