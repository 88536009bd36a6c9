"""What a damaged database still holds: whole sessions, taken over into a new one. Half ones are left behind."""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..session import Reason, Session, Side
from ..stores.leveldb import layout
from ..stores.leveldb.layout import StoreCounters

FILL_BYTES = 1 << 20


class Filler:
    """Puts entries into a new database, many at once. They are on the disk after `sync_all` alone."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._entries: list[tuple[bytes, bytes]] = []
        self._bytes = 0

    def put(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Put them now or later."""
        for key, value in entries:
            self._entries.append((key, value))
            self._bytes += len(key) + len(value)
        if self._bytes >= FILL_BYTES:
            self.flush()

    def flush(self) -> None:
        """Put what has not been put yet."""
        with self._db.write_batch(transaction=True) as batch:
            for key, value in self._entries:
                batch.put(key, value)
        self._entries.clear()
        self._bytes = 0


class Saved(NamedTuple):
    """What became of a damaged database.

    Attributes:
        sessions: how many were taken over.
        halves: how many were not, because a part of them is missing.
    """

    sessions: int
    halves: int


def salvage(damaged: Any, new: Any) -> Saved:
    """Take over every whole session and the departures of late; listings, expiries and counters are made anew.

    Args:
        damaged: a database of ours in which entries may be missing, or be there again although they were deleted.
        new: an empty one.
    """
    writer = Filler(new)
    counters = layout.unpack_counters(damaged.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))
    created_ms, serial, listed = counters.created_ms, counters.serial, 0
    left: set[tuple[bytes, int]] = set()
    with damaged.iterator(prefix=layout.EXPIRY, include_value=False, verify_checksums=True) as entries:
        for entry in entries:
            key = layout.unpack_expiry_key(entry)[1]
            value = damaged.get(key) if key.startswith(layout.DEPARTURES) else None
            if value is not None:
                code, came, reason = layout.unpack_departure_value(value)
                if reason is not Reason.EXPIRED:
                    left.add((code, came))
                serial = max(serial, layout.unpack_number(key[-8:]))
                writer.put([(key, value), (entry, b"")])
    saved = halves = 0
    with damaged.iterator(prefix=layout.SESSIONS, verify_checksums=True) as entries:
        unpacked = ((*layout.unpack_session_key(key), value) for key, value in entries)
        for (origin, code), group in itertools.groupby(unpacked, key=lambda part: part[:2]):
            parts = {part: value for _, _, part, value in group}
            session = _whole(code, parts)
            # One that has left its listing without an answer was withdrawn, or has lost the answer.
            if session is None or (layout.ANSWER not in parts and (code, session.serial) in left):
                halves += 1
                continue
            saved += 1
            created_ms, serial = max(created_ms, session.created_ms), max(serial, session.serial)
            key = layout.pack_session_prefix(origin, code)
            writer.put((key + part, value) for part, value in parts.items())
            writer.put([(layout.pack_expiry_key(session.expires_ms, key), b"")])
            if layout.ANSWER not in parts:
                listed += 1
                writer.put([(layout.pack_listing_key(origin, session), layout.pack_listing_value(session))])
    writer.put([(layout.COUNTERS_KEY, layout.pack_counters(StoreCounters(created_ms, serial, listed)))])
    writer.flush()
    return Saved(saved, halves)


def _whole(code: bytes, parts: dict[bytes, bytes]) -> Session | None:
    """The head of a session; None if it lacks the head or the offer, or has parts of another one with its code."""
    if layout.HEAD not in parts or layout.OFFER not in parts:
        return None
    numbers = []
    for part, value in parts.items():
        if part == layout.ANSWER:
            numbers.append((Side.ANSWERER, layout.unpack_answer(value).number))
        elif part not in (layout.HEAD, layout.OFFER):
            side = Side.OFFERER if part.startswith(layout.OFFER_CANDIDATE) else Side.ANSWERER
            numbers.append((side, layout.unpack_number(part[1:])))
    return layout.unpack_head(code, parts[layout.HEAD]) if len(numbers) == len(set(numbers)) else None
