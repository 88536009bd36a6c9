"""How sessions end by themselves: they leave their listings as soon as they expire, and are deleted in steps later."""

import asyncio
import time

from ...metrics import SessionMetrics
from ...session import Reason, Session
from . import changes, layout, records
from .changes import Change, Removal
from .committer import Committer
from .locks import Token

# What is done in one turn of the event loop. A session with more keys than that takes several of them.
STEP = 1000  # keys
STEP_S = 0.002


class Expiry:
    """Settles and sweeps what has expired; its departure from a listing is remembered for `remember_ms`."""

    def __init__(self, committer: Committer, metrics: SessionMetrics, remember_ms: int) -> None:
        self._committer = committer
        self._database, self._state, self._locks = committer.database, committer.state, committer.locks
        self._metrics = metrics
        self._remember_ms = remember_ms
        self._settling = asyncio.Lock()

    async def expire_due(self, now_ms: int) -> None:
        """Have all that has expired by now leave its listing: from then on its departure is an event like others.

        What else there is of an expired session is swept later.

        Raises:
            Unavailable: that does not work now.
        """
        stop = layout.pack_expired_stop(now_ms)
        if self._state.unsettled >= stop and not self._settling.locked():
            return
        async with self._settling:  # what another one settles has left once that is committed
            acquired: Token | None = None
            while self._state.unsettled < stop:
                blocked = await self._settle_some(stop, now_ms, acquired)
                # As by a refresh that began before the expiry: the session may live on.
                acquired = None if blocked is None else await self._locks.acquire(blocked)

    async def _settle_some(self, stop: bytes, now_ms: int, acquired: Token | None) -> bytes | None:
        """Settle a step of what has expired, which ends at `stop`.

        Of the sessions that are being changed only the one whose lock was acquired can be settled now.

        Returns:
            The key of a session that could not be settled; None if none was in the way.
        """
        state, view = self._state, self._database.view
        until_s = time.monotonic() + STEP_S
        leavings: list[tuple[Token, str, Session, Removal]] = []
        blocked: bytes | None = None
        position = state.unsettled
        reached = stop
        with view.iterator(start=position, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if not key.startswith(layout.DEPARTURES):
                    known = acquired is not None and acquired.key == key
                    token = acquired if known else self._locks.try_acquire(key)
                    if token is None:
                        blocked, reached = key, entry
                        break
                    listed = self._listed(key)
                    if listed is not None:
                        forget_ms = now_ms + self._remember_ms
                        leaving = Removal(state.next_serial(), Reason.EXPIRED, forget_ms, key in state.leases)
                        leavings.append((token, *listed, leaving))
                if time.monotonic() >= until_s:
                    reached = entry + b"\x00"
                    break
        state.unsettled = reached
        if leavings:
            state.advance_time(now_ms)  # what has expired stays so, whatever a clock says

            def applied() -> None:
                for _, origin, session, leaving in leavings:
                    state.on_removed(origin, session, leaving)

            change = changes.merge(
                *(changes.delisted(origin, session, leaving) for _, origin, session, leaving in leavings)
            )
            try:
                await self._committer.commit([token for token, *_ in leavings], change, applied, counted=True)
            except BaseException:
                state.unsettled = min(state.unsettled, position)
                raise
        elif reached != stop and blocked is None:
            await asyncio.sleep(0)
        return blocked

    def _listed(self, key: bytes) -> tuple[str, Session] | None:
        """The origin and the head of a session, if it is listed."""
        access = self._state.accesses.get(key)
        if access is not None and access.answer_number:
            return None
        view = self._database.view
        origin, code, _ = layout.unpack_session_key(key)
        session = records.find(view, key, code)
        return (origin, session) if session is not None and records.is_listed(view, origin, session) else None

    async def sweep(self, now_ms: int) -> int:
        """Delete one step of what has expired, listings first.

        Returns:
            How many keys were deleted; 0 when nothing is left to do.

        Raises:
            Unavailable: that does not work now.
        """
        await self.expire_due(now_ms)
        state, view = self._state, self._database.view
        until_s = time.monotonic() + STEP_S
        deletes: list[bytes] = []
        swept: list[Token] = []
        forgotten = state.forgotten
        whole = 0  # sessions of which nothing is left
        remaining: bytes | None = None  # the first entry that this step does not delete
        stop = min(layout.pack_expired_stop(now_ms), state.unsettled)
        with view.iterator(start=state.unswept, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if key.startswith(layout.DEPARTURES):
                    deletes += key, entry
                    forgotten = max(forgotten, layout.unpack_number(key[-8:]))
                elif (token := self._locks.try_acquire(key)) is None:
                    remaining = remaining or entry
                else:
                    parts = records.part_keys(view, key, state.accesses.get(key), STEP)
                    if len(parts) == STEP:
                        # Its head and its offer stay: it is found again by the head, and sound by what still reads it.
                        deletes += parts[2:]
                        remaining = remaining or entry
                    else:
                        deletes += *parts, entry
                        whole += 1
                    swept.append(token)
                if len(deletes) >= STEP or time.monotonic() >= until_s:
                    break
        if deletes:
            state.advance_time(now_ms)

            def applied() -> None:
                self._metrics.swept += whole
                state.forgotten = max(state.forgotten, forgotten)
                for token in swept:
                    state.watches.changed(token.key)

            state.unswept = remaining or entry
            await self._committer.commit(swept, Change([], deletes), applied, counted=True)
        return len(deletes)
