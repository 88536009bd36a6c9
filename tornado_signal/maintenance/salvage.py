"""What a damaged database still holds: whole sessions. Incomplete ones are left out."""

import itertools
from collections.abc import Iterator
from typing import Any

from ..session import Reason, Session
from ..stores.leveldb import layout
from ..stores.leveldb.layout import StoreCounters
from .backup import Entry


class Salvage:
    """The entries of a new database, taken from a damaged one. Iterate over it once.

    Every whole session is in it, and what left the listings lately; listings, expiries and counters are made anew.

    Args:
        damaged: a database of ours in which entries may be missing, or be there again although they were deleted.

    Attributes:
        sessions: how many were taken over.
        incomplete: how many were not, because a part of them is missing.
    """

    def __init__(self, damaged: Any) -> None:
        self._damaged = damaged
        self.sessions = self.incomplete = 0

    def __iter__(self) -> Iterator[Entry]:
        damaged = self._damaged
        counters = layout.unpack_counters(damaged.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))
        created_ms, serial, listed = counters.created_ms, counters.serial, 0
        departed: set[tuple[bytes, int]] = set()
        with damaged.iterator(prefix=layout.EXPIRY, include_value=False, verify_checksums=True) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                value = damaged.get(key) if key.startswith(layout.DEPARTURES) else None
                if value is not None:
                    code, session_serial, reason = layout.unpack_departure_value(value)
                    if reason is not Reason.EXPIRED:
                        departed.add((code, session_serial))
                    serial = max(serial, layout.unpack_number(key[-8:]))
                    yield from [(key, value), (entry, b"")]
        with damaged.iterator(prefix=layout.SESSIONS, verify_checksums=True) as entries:
            unpacked = ((*layout.unpack_session_key(key), value) for key, value in entries)
            for (origin, code), group in itertools.groupby(unpacked, key=lambda part: part[:2]):
                parts = {part: value for _, _, part, value in group}
                session = _whole(code, parts)
                # A session that has left its listing without an answer was withdrawn, or has lost the answer.
                if session is None or (layout.ANSWER not in parts and (code, session.serial) in departed):
                    self.incomplete += 1
                    continue
                self.sessions += 1
                created_ms, serial = max(created_ms, session.created_ms), max(serial, session.serial)
                key = layout.pack_session_prefix(origin, code)
                yield from ((key + part, value) for part, value in parts.items())
                yield layout.pack_expiry_key(session.expires_ms, key), b""
                if layout.ANSWER not in parts:
                    listed += 1
                    yield layout.pack_listing_key(origin, session), layout.pack_listing_value(session)
        yield layout.COUNTERS_KEY, layout.pack_counters(StoreCounters(created_ms, serial, listed))


def _whole(code: bytes, parts: dict[bytes, bytes]) -> Session | None:
    """The head of a session; None if it lacks the head or the offer, or has parts of another one with its code."""
    if layout.HEAD not in parts or layout.OFFER not in parts:
        return None
    numbers = [
        layout.unpack_part(part, value) for part, value in parts.items() if part not in (layout.HEAD, layout.OFFER)
    ]
    return layout.unpack_head(code, parts[layout.HEAD]) if len(numbers) == len(set(numbers)) else None
