"""How a change gets to the disk, and what follows from it in memory. `Store` decides which changes there are."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from ...errors import SessionNotFound, TooMany
from ...session import Reason, Session, Side
from ..quotas import Quotas, Rooms
from . import changes, layout, records
from .access import Gate
from .changes import Change, Leaving
from .layout import Mark
from .reader import Reader
from .records import Loaded
from .space import Space


class Writer(Reader):
    """The common parts of all changes."""

    def __init__(
        self, path: Path, *, sync: bool, timeout_ms: int, quotas: Quotas, start_empty: bool, space: Space | None
    ) -> None:
        super().__init__(path, sync=sync, start_empty=start_empty, space=space)
        self._quotas = quotas
        self._rooms = Rooms(quotas)
        self._timeout_ms = timeout_ms

    def _loaded(self, loaded: Loaded) -> None:
        super()._loaded(loaded)
        # No expiry entry comes before this key, and none of a session that is listed before that one: what has been
        # deleted or has left its listing need not be passed over again and again.
        self._unswept = self._unsettled = layout.EXPIRY

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

    def _take_numbers(self, key: bytes, gate: Gate, side: Side, texts: Sequence[str], *, candidates: bool) -> int:
        """The first of the next numbers of a side, also while earlier ones are on their way to the disk.

        Raises:
            TooMany: candidates that would be more, or larger, than the quotas allow, with the description.
        """
        if side not in gate.numbers:
            gate.numbers[side], gate.sizes[side] = records.sent(self._db.view, key, side)
        last, size = gate.numbers[side] + len(texts), gate.sizes[side] + sum(len(text.encode()) for text in texts)
        if candidates:
            if last > self._quotas.candidates + 1:
                raise TooMany("candidates of a session", self._timeout_ms // 1000 or 1)
            if size > self._quotas.side_bytes:
                raise TooMany("bytes of a session", self._timeout_ms // 1000 or 1)
        gate.numbers[side], gate.sizes[side] = last, size
        return last - len(texts) + 1

    def _is_listed(self, origin: str, session: Session) -> bool:
        return self._db.view.get(layout.pack_listing_key(origin, session)) is not None

    def _removal(
        self, origin: str, key: bytes, session: Session, reason: Reason, now_ms: int
    ) -> tuple[Change, Leaving | None]:
        """The end of a session, and how it leaves its listing if it is there."""
        change = changes.removed(key, session, records.part_keys(self._db.view, key))
        if not self._is_listed(origin, session):
            return change, None
        leaving = Leaving(self._next_serial(), reason, now_ms + self._timeout_ms)
        return changes.together(change, changes.left(origin, session, leaving)), leaving

    async def _move(self, origin: str, key: bytes, before: Session, expires_ms: int) -> None:
        after = before._replace(expires_ms=expires_ms)
        listed = self._is_listed(origin, before)

        def moved() -> None:
            if listed:
                self._index.remove(origin, before.topic, before.expires_ms)
                self._index.add(origin, after.topic, after.expires_ms)

        await self._commit([key], changes.refreshed(origin, before, after, listed=listed), moved)

    # What is brought up to date once a change is committed

    def _came(self, origin: str, session: Session, offer: str) -> None:
        self.metrics.created += 1
        self._index.add(origin, session.topic, session.expires_ms)
        self._listing_changed(origin, session.topic, session.serial)
        key = layout.pack_session_prefix(origin, session.code)
        numbers, sizes = {Side.OFFERER: 1, Side.ANSWERER: 0}, {Side.OFFERER: len(offer.encode()), Side.ANSWERER: 0}
        self._gates.keep(key, Gate(session.expires_ms, session.serial, session.secret_hash, b"", numbers, sizes))
        # Who still waits for the one before it, whose code is the same because its content is.
        self.watches.changed(key)

    def _went(self, origin: str, session: Session, leaving: Leaving | None) -> None:
        if leaving is not None:  # else it has been counted out before, and would take another one with it
            self._index.remove(origin, session.topic, session.expires_ms)
            # Expiry alone does not count: a listing is known to be another one by how many are live.
            self._listing_changed(origin, session.topic, 0 if leaving.reason is Reason.EXPIRED else leaving.serial)
        self.watches.changed(layout.pack_session_prefix(origin, session.code))

    def _listing_changed(self, origin: str, topic: str, serial: int) -> None:
        prefix = layout.pack_listing_prefix(origin, topic)
        if prefix in self._newest:
            self._newest[prefix] = max(self._newest[prefix], serial)
        self.watches.changed(prefix)

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
        listed = self._listed + change.listed
        if marked:
            mark = Mark(self._created_ms, self._serial, listed)
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
                    self._unsettled = min([self._unsettled, *expiries])
                apply()

        waiter = self._db.commit(change, settled)
        self._listed = listed  # once the change is on its way: one that the database does not take changes nothing
        return waiter
