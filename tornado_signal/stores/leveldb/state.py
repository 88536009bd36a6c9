"""The engine's state in memory. It follows committed changes and is never ahead of the database. No I/O."""

import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from ...session import Session, Side
from ..watches import Watches
from . import layout
from .changes import Removal
from .layout import StoreCounters
from .records import Loaded, SessionAuth
from .topic_index import TopicIndex

ACCESSES_KEPT = 10_000  # sessions
REMOVALS_KEPT = 10_000  # topics

T = TypeVar("T")


def _bound(cache: dict[bytes, T], max_items: int, busy: Callable[[bytes], bool] = lambda key: False) -> None:
    """Drop the older half of a cache that is too large, except busy keys."""
    if len(cache) > max_items:
        for old in [key for key in itertools.islice(cache, max_items // 2) if not busy(key)]:
            del cache[old]


class StoreState:
    """Counts, positions and cached access data. It is reloaded whenever the database is opened.

    Args:
        busy: whether the session with this key has uncommitted changes, so that its access data must stay.

    Attributes:
        watches: the watches by the key of a session or the prefix of a listing.
        accesses: access data of sessions, cached for requests, by key.
        created_ms: the latest time that the store has seen. No session is newer.
        serial: the serial of the newest event.
        listed: the number of unanswered sessions, including expired ones that are still listed.
        forgotten: no removal up to this serial is stored.
        leases: the leases of held sessions, by key.
        unswept: no expiry entry is before this key, so that iterators skip what LevelDB has deleted.
        undelisted: no expiry entry of a listed session is before this key.
    """

    def __init__(self, watches: Watches, busy: Callable[[bytes], bool]) -> None:
        self.watches = watches
        self._busy = busy
        self.load(Loaded("", TopicIndex(), StoreCounters(0, 0, 0), {}, b"", 0))

    def load(self, loaded: Loaded) -> None:
        """Replace the state by what was read from the database."""
        self.accesses: dict[bytes, SessionAuth] = {}
        self.index = loaded.topics
        self.leases = loaded.leases
        self.identity = loaded.identity
        self.secret = loaded.secret
        self.created_ms, self.serial, self.listed = loaded.counters
        self.forgotten = loaded.forgotten
        self.unswept = self.undelisted = layout.EXPIRY
        # For some topics, by removal prefix, the serial of the last removal. That of others is not above `_unknown`.
        self._removed: dict[bytes, int] = {}
        self._unknown = self.serial

    def advance_time(self, now_ms: int) -> int:
        """Advance the store's time to at least `now_ms` and return it (docs/decisions.md#clock-changes)."""
        self.created_ms = max(self.created_ms, now_ms)
        return self.created_ms

    def next_serial(self) -> int:
        """Return the serial for one more event."""
        self.serial += 1
        return self.serial

    def newest_removal(self, prefix: bytes) -> tuple[int, bool]:
        """Return an upper bound of the serials of a topic's removals, and whether it is that of the last one."""
        serial = self._removed.get(prefix)
        return (self._unknown, False) if serial is None else (serial, True)

    def keep_access(self, key: bytes, access: SessionAuth) -> None:
        """Cache the access data of a session."""
        self.accesses[key] = access
        _bound(self.accesses, ACCESSES_KEPT, self._busy)

    # Called after a commit

    def on_created(self, origin: str, session: Session, offer: str) -> None:
        self.index.add(origin, session.topic, session.expires_ms, session.serial, session.code)
        self.watches.changed(layout.pack_listing_prefix(origin, session.topic))
        key = layout.pack_session_prefix(origin, session.code)
        numbers, sizes = {Side.OFFERER: 1, Side.ANSWERER: 0}, {Side.OFFERER: len(offer.encode()), Side.ANSWERER: 0}
        access = SessionAuth(session.expires_ms, session.serial, session.secret_hash, numbers=numbers, sizes=sizes)
        self.keep_access(key, access)
        # An earlier session can have had the same content-derived code, and watches can still wait for it.
        self.watches.changed(key)

    def on_removed(self, origin: str, session: Session, removal: Removal | None) -> None:
        """Update the state after a session was deleted, or delisted as `removal` says."""
        if removal is not None:  # otherwise it was removed from the count before
            self.leases.pop(layout.pack_session_prefix(origin, session.code), None)
            self.index.remove(origin, session.topic, session.expires_ms, session.serial)
            self._on_recorded(origin, session, removal)
        self.watches.changed(layout.pack_session_prefix(origin, session.code))

    def on_refreshed(self, origin: str, before: Session, after: Session, event: Removal | None) -> None:
        """Update the state after the expiry of a listed session has changed."""
        self.index.remove(origin, before.topic, before.expires_ms, before.serial)
        self.index.add(origin, after.topic, after.expires_ms, after.serial, after.code)
        if event is not None:
            self._on_recorded(origin, after, event)

    def on_expiries(self, keys: Iterable[bytes]) -> None:
        """Update the lower bounds after new expiry entries."""
        for key in keys:
            self.unswept = min(self.unswept, key)
            self.undelisted = min(self.undelisted, key)

    def _on_recorded(self, origin: str, session: Session, removal: Removal) -> None:
        prefix = layout.pack_removal_prefix(origin, session.topic, layout.KIND[removal.reason])
        self._keep_removal(prefix, removal.serial)
        self.watches.changed(layout.pack_listing_prefix(origin, session.topic))

    def _keep_removal(self, prefix: bytes, serial: int) -> None:
        self._removed.pop(prefix, None)  # the oldest are first
        self._removed[prefix] = serial
        if len(self._removed) > REMOVALS_KEPT:
            for old in list(itertools.islice(self._removed, REMOVALS_KEPT // 2)):
                self._unknown = max(self._unknown, self._removed.pop(old))
