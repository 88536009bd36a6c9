"""The sessions on LevelDB: what may be changed, each change under the origin that asks for it.

Every change is decided against what is committed, without an `await` between reading and asking for the write.
While a change of a session is on its way to the disk, a second one waits for it, unless both only append
candidates; so two answers at one moment have one winner, and nothing is acknowledged because of a change that
may still fail.
"""

import asyncio
import functools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ...errors import SessionNotFound
from ...session import Answer, Reason, Session, Side, changes_answer, content_code, make_uuid, owns
from ..quotas import Quotas
from . import changes, layout, records
from .changes import Change, Leaving
from .space import Space
from .writer import Writer

SETTLING_STEP = 2  # topics whose counts are brought up to date by each session that comes
# What is swept in one turn of the event loop. A session with more keys than that takes several of them.
SWEEP_STEP = 1000  # keys
SWEEP_STEP_S = 0.002


class Store(Writer):
    """The sessions in one LevelDB directory.

    Time is an argument (`now_ms`, Unix milliseconds). Creation times never go backwards (contract B11): a session
    is never older than the newest one before it, whatever `now_ms` says. Secrets are shown by their hashes.

    Args:
        path: the directory; made if missing.
        timeout_ms: how long a session lives, and who left a listing is remembered.
        durability: `fsync` (acknowledged means on disk) or `os` (with the operating system).
        codes: `random` or `content` (contract B16).
        quotas: how much there may be.
        start_empty: whether to move a damaged directory aside and begin anew.
        space: the room that it has on the disk; without it there is no bound.

    Raises:
        DatabaseError: the directory cannot be used; the message says why and what to do.
    """

    def __init__(
        self,
        path: Path,
        *,
        timeout_ms: int,
        durability: Literal["fsync", "os"] = "fsync",
        codes: Literal["random", "content"] = "random",
        quotas: Quotas = Quotas(),  # noqa: B008 (it never changes)
        start_empty: bool = False,
        space: Space | None = None,
    ) -> None:
        sync = durability == "fsync"
        super().__init__(path, sync=sync, timeout_ms=timeout_ms, quotas=quotas, start_empty=start_empty, space=space)
        self._codes = codes
        self._settling = asyncio.Lock()

    async def create(
        self,
        origin: str,
        topic: str,
        info: str,
        offer: str,
        now_ms: int,
        *,
        ttl_ms: int | None = None,
        secret_hash: bytes = b"",
    ) -> bytes:
        """Publish an offer (specification 4, POST /:topic/offer).

        Args:
            origin: whose.
            topic: where.
            info: the peer's own words.
            offer: its signaling data.
            now_ms: the time.
            ttl_ms: how long the session lives, if not as long as configured (contract C6).
            secret_hash: of the secret that the offerer will show (contract C5).

        Returns:
            The session's code, 16 bytes.

        Raises:
            SessionNotFound: the same content was published before by who showed another secret (contract B16).
            TooMany: the origin or the topic has as many as it may.
            Unavailable: the store is full.
        """
        self.space.admit(len(offer) + len(info))
        timeout_ms = ttl_ms or self._timeout_ms
        ended: Change | None = None
        keys = []
        if self._codes == "random":
            code = make_uuid(os.urandom(16), 4)
        else:
            code = content_code(origin, [topic], offer)
            key = layout.pack_session_prefix(origin, code)
            await self._turns.mine(key)
            before = records.find(self._db.view, key, code)
            if before is not None and before.live(now_ms):
                if not owns(before.secret_hash, secret_hash):
                    raise SessionNotFound
                if records.find_answer(self._db.view, key) is None:
                    await self._move(origin, key, before, now_ms + before.timeout_ms)
                return code
            keys = [key]
            if before is not None:
                ended, _ = self._removal(origin, key, before, Reason.EXPIRED, now_ms)
        self._index.settle(origin, now_ms, SETTLING_STEP)
        self._rooms.take(self._index, origin, topic)
        try:
            session = self._new_session(code, topic, info, timeout_ms, secret_hash, now_ms)
            change = changes.created(origin, session, offer)
            if ended is not None:  # the old one leaves before the new one comes: both have this code
                change = changes.together(ended, change)
            await self._commit(keys, change, lambda: self._came(origin, session, offer), marked=True)
        finally:
            self._rooms.give_back(origin, topic)
        return code

    async def answer(self, origin: str, code: bytes, answer: str, now_ms: int, *, secret_hash: bytes = b"") -> None:
        """Answer a session; it is no longer listed (contract B9).

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or was answered by who showed
                another secret.
            AlreadyAnswered: with another answer.
            Unavailable: the store is full.
        """
        self.space.admit(len(answer))
        key, session, gate = await self._turn(origin, code, Side.ANSWERER, secret_hash, now_ms)
        if changes_answer(records.find_answer(self._db.view, key), answer):
            number = self._take_numbers(key, gate, Side.ANSWERER, [answer], candidates=False)
            leaving = Leaving(self._next_serial(), Reason.ANSWERED, now_ms + self._timeout_ms)
            change = changes.answered(origin, session, Answer(answer, number, secret_hash), leaving)

            def applied() -> None:
                self.metrics.offers_waited.observe(max(0, now_ms - session.created_ms) / 1000)
                gate.answer_hash = secret_hash
                self._gates.keep(key, gate)
                self._went(origin, session, leaving)

            await self._commit([key], change, applied, marked=True)

    async def add_candidates(
        self,
        origin: str,
        code: bytes,
        side: Side,
        candidates: Sequence[str],
        now_ms: int,
        *,
        secret_hash: bytes = b"",
    ) -> None:
        """Append candidates of one side, all or none, in their order.

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not that side's.
            TooMany: that side has as many candidates, or as much, as it may.
            Unavailable: the store is full.
        """
        self.space.admit(sum(map(len, candidates)))
        key = layout.pack_session_prefix(origin, code)
        await self._turns.mine(key, appends=True)
        gate = self._admit(key, side, secret_hash, now_ms)
        first = self._take_numbers(key, gate, side, candidates, candidates=True)
        change = changes.candidates_added(key, side, enumerate(candidates, first))
        await self._commit([key], change, functools.partial(self.watches.changed, key), appends=True)

    async def withdraw(self, origin: str, code: bytes, side: Side, now_ms: int, *, secret_hash: bytes = b"") -> None:
        """End a session at once (contract C6).

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not that side's.
        """
        key, session, _ = await self._turn(origin, code, side, secret_hash, now_ms)
        change, leaving = self._removal(origin, key, session, Reason.WITHDRAWN, now_ms)

        def applied() -> None:
            self.metrics.withdrawn += 1
            self._went(origin, session, leaving)

        await self._commit([key], change, applied, marked=True)

    async def refresh(self, origin: str, code: bytes, side: Side, now_ms: int, *, secret_hash: bytes = b"") -> int:
        """Move a session's expiry to now + its timeout (contract C6).

        Returns:
            The new expiry, Unix milliseconds.

        Raises:
            SessionNotFound: it does not exist, has expired, is another origin's, or the secret is not that side's.
        """
        key, session, _ = await self._turn(origin, code, side, secret_hash, now_ms)
        expires_ms = now_ms + session.timeout_ms
        if expires_ms != session.expires_ms:
            await self._move(origin, key, session, expires_ms)
        return expires_ms

    async def settle(self, now_ms: int) -> None:
        """Have all that has expired by now leave its listing: from then on its departure is an event like others.

        What else there is of an expired session is swept later.

        Raises:
            Unavailable: that does not work now.
        """
        stop = layout.pack_expired_stop(now_ms)
        if self._unsettled >= stop and not self._settling.locked():
            return
        async with self._settling:  # what another one settles has left once that is committed
            mine: bytes | None = None
            while self._unsettled < stop:
                blocked = await self._settle_some(stop, now_ms, mine)
                if blocked is not None:  # as by a refresh that began before the expiry: it may live on
                    await self._turns.mine(blocked)
                mine = blocked

    async def _settle_some(self, stop: bytes, now_ms: int, mine: bytes | None) -> bytes | None:
        """Settle a step.

        Args:
            stop: where what has expired ends.
            now_ms: the time.
            mine: the key of a session whose turn it is; others that are being changed cannot be settled now.

        Returns:
            The key of a session that could not be settled; None if none was in the way.
        """
        until_s = time.monotonic() + SWEEP_STEP_S
        leavings: list[tuple[bytes, str, Session, Leaving]] = []
        blocked: bytes | None = None
        position = self._unsettled
        reached = stop
        with self._db.view.iterator(start=position, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if not key.startswith(layout.GONE):
                    if key != mine and self._turns.taken(key):
                        blocked, reached = key, entry
                        break
                    origin, code, _ = layout.unpack_session_key(key)
                    session = self._must_find(key, code)
                    if self._is_listed(origin, session):
                        leaving = Leaving(self._next_serial(), Reason.EXPIRED, now_ms + self._timeout_ms)
                        leavings.append((key, origin, session, leaving))
                if time.monotonic() >= until_s:
                    reached = entry + b"\x00"
                    break
        self._unsettled = reached
        if leavings:
            self._created_ms = max(self._created_ms, now_ms)  # what has expired stays so, whatever a clock says

            def applied() -> None:
                for _, origin, session, leaving in leavings:
                    self._went(origin, session, leaving)

            change = changes.together(
                *(changes.left(origin, session, leaving) for _, origin, session, leaving in leavings)
            )
            try:
                await self._commit([key for key, *_ in leavings], change, applied, marked=True)
            except BaseException:
                self._unsettled = min(self._unsettled, position)
                raise
        elif reached != stop and blocked is None:
            await asyncio.sleep(0)
        return blocked

    async def sweep(self, now_ms: int) -> int:
        """Delete one step of what has expired, listings first.

        Returns:
            How many keys were deleted; 0 when nothing is left to do.
        """
        await self.settle(now_ms)
        until_s = time.monotonic() + SWEEP_STEP_S
        deletes: list[bytes] = []
        swept: list[tuple[bytes, str, Session]] = []
        forgotten = self._forgotten
        whole = 0  # sessions of which nothing is left
        left: bytes | None = None  # the first entry that this step does not delete
        view = self._db.view
        stop = layout.pack_expired_stop(now_ms)
        with view.iterator(start=self._unswept, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if key.startswith(layout.GONE):
                    deletes += key, entry
                    forgotten = max(forgotten, layout.unpack_number(key[-8:]))
                elif self._turns.taken(key):
                    left = left or entry
                else:
                    origin, code, _ = layout.unpack_session_key(key)
                    session = self._must_find(key, code)
                    if self._is_listed(origin, session):  # it has expired since this sweep settled what had
                        left = left or entry
                        continue
                    parts = records.part_keys(view, key, SWEEP_STEP)
                    if len(parts) == SWEEP_STEP:
                        # Its head and its offer stay: it is found again by the head, and sound by what still reads it.
                        deletes += parts[2:]
                        left = left or entry
                    else:
                        deletes += *parts, entry
                        whole += 1
                    swept.append((key, origin, session))
                if len(deletes) >= SWEEP_STEP or time.monotonic() >= until_s:
                    break
        if deletes:
            self._created_ms = max(self._created_ms, now_ms)

            def applied() -> None:
                self.metrics.swept += whole
                self._forgotten = max(self._forgotten, forgotten)
                for _, origin, session in swept:
                    self._went(origin, session, None)

            self._unswept = left or entry
            await self._commit([key for key, _, _ in swept], Change([], deletes), applied, marked=True)
        return len(deletes)

    async def compact(self) -> None:
        """Give the space of what was swept back to the disk; requests go on meanwhile.

        Raises:
            Unavailable: that does not work now.
        """
        await self._db.compact()

    async def probe(self) -> None:
        """Write to the store and read from it, as a request would.

        Raises:
            Unavailable: that does not work now.
        """
        await self._commit([], Change([], []), lambda: None, marked=True)
        records.mark(self._db.view)
