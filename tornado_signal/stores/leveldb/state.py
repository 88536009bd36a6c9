"""What the engine keeps in memory beside the database: as it is committed, never ahead of it. No I/O."""

import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

from ...session import Reason, Session, Side
from ..watches import Watches
from . import layout
from .changes import Removal
from .layout import StoreCounters
from .records import Loaded, SessionAuth
from .topic_index import TopicIndex

ACCESSES_KEPT = 10_000  # sessions
NEWEST_KEPT = 10_000  # topics whose newest serial is kept

T = TypeVar("T")


def _bound(kept: dict[bytes, T], most: int, busy: Callable[[bytes], bool] = lambda key: False) -> None:
    """When they are too many, forget the older half, but for what is busy."""
    if len(kept) > most:
        for old in [key for key in itertools.islice(kept, most // 2) if not busy(key)]:
            del kept[old]


class StoreState:
    """Counts, positions and what requests ask for again and again; loaded anew whenever the database is opened.

    Args:
        busy: says of a session's key whether it has changes on their way to the disk; its access is not forgotten then.

    Attributes:
        watches: what waits for a session or for a topic, by its key.
        identity: the store's, in hexadecimal.
        index: the unanswered sessions of each topic.
        accesses: what requests for a session need of it, of some, by their keys.
        created_ms: the latest time that the store has seen; no session is newer.
        serial: of the newest event.
        listed: how many sessions are unanswered, expired ones included until they are settled.
        newest: of some listings, by their prefix, the serial of the newest that came or was taken from it.
        forgotten: departures up to this serial need not be looked for.
        leases: those of the sessions that are held, by their keys.
        unswept: no expiry entry comes before this key: what has been deleted is not passed over again and again.
        unsettled: none of a session that is listed comes before this one.
    """

    def __init__(self, watches: Watches, busy: Callable[[bytes], bool]) -> None:
        self.watches = watches
        self._busy = busy
        self.load(Loaded("", TopicIndex(), StoreCounters(0, 0, 0), {}))

    def load(self, loaded: Loaded) -> None:
        """Begin with what was read from the database."""
        self.accesses: dict[bytes, SessionAuth] = {}
        self.index = loaded.topics
        self.leases = loaded.leases
        self.identity = loaded.identity
        self.created_ms, self.serial, self.listed = loaded.counters
        self.forgotten = 0
        self.unswept = self.unsettled = layout.EXPIRY
        self.newest: dict[bytes, int] = {}

    def advance_time(self, now_ms: int) -> int:
        """Let the store's time not go back behind this one (contract B11); returns what it is."""
        self.created_ms = max(self.created_ms, now_ms)
        return self.created_ms

    def next_serial(self) -> int:
        """The place of one more event."""
        self.serial += 1
        return self.serial

    def newest_serial(self, prefix: bytes, read: Callable[[], int]) -> int:
        """The serial of the newest session that came to, or was taken from, a listing; `read` finds it on the disk."""
        serial = self.newest.get(prefix)
        if serial is None:
            serial = self.newest[prefix] = read()
            _bound(self.newest, NEWEST_KEPT)
        return serial

    def keep_access(self, key: bytes, access: SessionAuth) -> None:
        """Keep what requests need of one more session."""
        self.accesses[key] = access
        _bound(self.accesses, ACCESSES_KEPT, self._busy)

    # What follows from a committed change

    def on_created(self, origin: str, session: Session, offer: str) -> None:
        """A session is published."""
        self.index.add(origin, session.topic, session.expires_ms)
        self._on_listing_changed(origin, session.topic, session.serial)
        key = layout.pack_session_prefix(origin, session.code)
        numbers, sizes = {Side.OFFERER: 1, Side.ANSWERER: 0}, {Side.OFFERER: len(offer.encode()), Side.ANSWERER: 0}
        access = SessionAuth(session.expires_ms, session.serial, session.secret_hash, numbers=numbers, sizes=sizes)
        self.keep_access(key, access)
        # For what still waits for the one before it, whose code is the same because its content is.
        self.watches.changed(key)

    def on_removed(self, origin: str, session: Session, leaving: Removal | None) -> None:
        """A session has left its listing, if it was there, or is deleted."""
        if leaving is not None:  # else it has been counted out before, and would take another one with it
            self.leases.pop(layout.pack_session_prefix(origin, session.code), None)
            self.index.remove(origin, session.topic, session.expires_ms)
            # Expiry alone does not count: a listing is known to be another one by how many are live.
            serial = 0 if leaving.reason is Reason.EXPIRED else leaving.serial
            self._on_listing_changed(origin, session.topic, serial)
        self.watches.changed(layout.pack_session_prefix(origin, session.code))

    def on_expiry_changed(self, origin: str, before: Session, after: Session) -> None:
        """A listed session has got another expiry."""
        self.index.remove(origin, before.topic, before.expires_ms)
        self.index.add(origin, after.topic, after.expires_ms)

    def on_expiries(self, keys: Iterable[bytes]) -> None:
        """The database has more expiry entries."""
        for key in keys:
            self.unswept = min(self.unswept, key)
            self.unsettled = min(self.unsettled, key)

    def _on_listing_changed(self, origin: str, topic: str, serial: int) -> None:
        prefix = layout.pack_listing_prefix(origin, topic)
        if prefix in self.newest:
            self.newest[prefix] = max(self.newest[prefix], serial)
        self.watches.changed(prefix)
