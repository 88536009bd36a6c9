"""How a change gets to the disk, and what follows from it in memory. `Store` decides which changes there are."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from . import changes, layout, records
from .changes import Change, Leaving
from .errors import SessionNotFound, TooMany
from .gates import Gate
from .layout import Mark
from .quotas import Quotas, Rooms
from .reader import Reader
from .records import Loaded
from .session import Reason, Session, Side


class Writer(Reader):
    """The common parts of all changes."""

    def __init__(self, path: Path, *, sync: bool, timeout_ms: int, quotas: Quotas, start_empty: bool = False) -> None:
        super().__init__(path, sync=sync, start_empty=start_empty)
        self._quotas = quotas
        self._rooms = Rooms(quotas)
        self._timeout_ms = timeout_ms

    def _loaded(self, loaded: Loaded) -> None:
        super()._loaded(loaded)
        # No expiry entry comes before this key: the sweep need not pass over all that it has deleted before.
        self._unswept = layout.EXPIRY

    async def close(self) -> None:
        """Commit what was asked for and close the database."""
        await self._db.close()

    async def _turn(
        self, origin: str, code: bytes, side: Side, secret_hash: bytes, now_ms: int
    ) -> tuple[bytes, Session, Gate]:
        """Wait until a session may be changed by one of its sides; it must be before the next `await`.

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not that side's.
        """
        key = layout.pack_session_prefix(origin, code)
        await self._turns.mine(key)
        gate = self._admit(key, side, secret_hash, now_ms)
        return key, self._must_find(key, code), gate

    def _must_find(self, key: bytes, code: bytes) -> Session:
        session = records.find(self._db.view, key, code)
        if session is None:
            raise SessionNotFound
        return session

    def _new_session(
        self, code: bytes, topic: str, info: str, timeout_ms: int, secret_hash: bytes, now_ms: int
    ) -> Session:
        self._created_ms = created_ms = max(now_ms, self._created_ms)
        expires_ms = created_ms + timeout_ms
        return Session(code, topic, info, created_ms, expires_ms, timeout_ms, self._next_serial(), secret_hash)

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def _take_numbers(self, key: bytes, gate: Gate, side: Side, count: int) -> int:
        """The first of the next numbers of a side, also while earlier ones are on their way to the disk.

        Raises:
            TooMany: they would be more than the quota, with one for the description.
        """
        last = gate.numbers.get(side)
        if last is None:
            last = records.last_number(self._db.view, key, side)
        if last + count > self._quotas.candidates + 1:
            raise TooMany("candidates of a session", self._timeout_ms // 1000 or 1)
        gate.numbers[side] = last + count
        return last + 1

    def _is_listed(self, origin: str, session: Session) -> bool:
        return self._db.view.get(layout.pack_listing_key(origin, session)) is not None

    def _removal(
        self, origin: str, key: bytes, session: Session, reason: Reason, now_ms: int, most: int | None = None
    ) -> Change:
        """The end of a session; if it has too many parts, of some of them.

        Head and offer stay then: by the head it is found again, with the offer whoever still reads it finds it sound.
        """
        parts = records.part_keys(self._db.view, key, most)
        if len(parts) == most:
            return Change([], parts[2:])
        change = changes.removed(key, session, parts)
        if self._is_listed(origin, session):
            leaving = Leaving(self._next_serial(), reason, now_ms + self._timeout_ms)
            change = changes.together(change, changes.left(origin, session, leaving))
        return change

    async def _move(self, origin: str, key: bytes, before: Session, expires_ms: int) -> None:
        after = before._replace(expires_ms=expires_ms)
        listed = self._is_listed(origin, before)

        def moved() -> None:
            if listed:
                self._index.remove(origin, before.topic, before.expires_ms)
                self._index.add(origin, after.topic, after.expires_ms)

        await self._commit([key], changes.refreshed(origin, before, after, listed=listed), moved)

    # What is brought up to date once a change is committed

    def _came(self, origin: str, session: Session) -> None:
        self.metrics.created += 1
        self._index.add(origin, session.topic, session.expires_ms)
        self.watches.changed(layout.pack_listing_prefix(origin, session.topic))
        key = layout.pack_session_prefix(origin, session.code)
        numbers = {Side.OFFERER: 1, Side.ANSWERER: 0}
        self._gates.keep(key, Gate(session.expires_ms, session.serial, session.secret_hash, numbers=numbers))
        # Who still waits for the one before it, whose code is the same because its content is.
        self.watches.changed(key)

    def _went(self, origin: str, session: Session, *, listed: bool = True) -> None:
        if listed:  # what is not has been counted out before, and would take another one with it
            self._index.remove(origin, session.topic, session.expires_ms)
            self.watches.changed(layout.pack_listing_prefix(origin, session.topic))
        self.watches.changed(layout.pack_session_prefix(origin, session.code))

    def _commit(
        self,
        keys: list[bytes],
        change: Change,
        apply: Callable[[], None],
        *,
        appends: bool = False,
        marked: bool = False,
    ) -> "asyncio.Future[None]":
        """Commit a change and hold the turns of the sessions with these keys until it is settled.

        Args:
            keys: sessions whose turn it must be; none for a session that nobody else can know of yet.
            change: what to write.
            apply: brings what is kept in memory up to date once it is committed.
            appends: whether it only appends candidates.
            marked: whether it moves the store's clock, its order of events or the number of those that are listed.

        Returns:
            A future that is done once it is committed, or fails with Unavailable.
        """
        if marked:
            self._listed += change.listed
            mark = Mark(self._created_ms, self._serial, self._listed)
            change.puts.append((layout.MARK_KEY, layout.pack_mark(mark)))
        self._turns.take(keys, appends=appends)

        def settled(committed: bool) -> None:
            self._turns.release(keys)
            if committed:
                if not appends:  # candidates have no expiry of their own, and change nothing for others
                    for key in keys:
                        self._gates.pop(key, None)
                    expiries = [put for put, _ in change.puts if put.startswith(layout.EXPIRY)]
                    self._unswept = min([self._unswept, *expiries])
                apply()

        return self._db.commit(change, settled)
