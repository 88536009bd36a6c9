"""Expiry of sessions: they are delisted as soon as they expire, and deleted in steps later."""

import asyncio
import time

from ...metrics import SessionMetrics
from ...session import Observer, Reason, Session
from . import changes, layout, records
from .changes import Change, Removal
from .committer import Committer
from .locks import LockToken

# The bound of one step, which is one event-loop iteration. A session with more keys takes several steps.
STEP = 1000  # keys
STEP_S = 0.002


class Expiry:
    """Delists and deletes expired sessions. The removal from a listing is recorded for `remember_ms`."""

    def __init__(self, committer: Committer, metrics: SessionMetrics, remember_ms: int) -> None:
        self._committer = committer
        self._database, self._state, self._locks = committer.database, committer.state, committer.locks
        self._metrics = metrics
        self.observer: Observer | None = None  # is called for each session that expires unanswered, or None
        self._remember_ms = remember_ms
        self._delisting = asyncio.Lock()

    async def expire_due(self, now_ms: int) -> None:
        """Remove sessions that have expired by `now_ms` from their listings, which is an event like other removals.

        `sweep` deletes the rest of these sessions later.
        """
        stop = layout.pack_expired_stop(now_ms)
        if self._state.undelisted >= stop and not self._delisting.locked():
            return
        async with self._delisting:  # one at a time: the sessions that another call delists are committed then
            acquired: LockToken | None = None
            while self._state.undelisted < stop:
                blocked = await self._delist_some(stop, now_ms, acquired)
                # Wait for the change that blocks it. A refresh that began before the expiry extends the session.
                acquired = None if blocked is None else await self._locks.acquire(blocked)

    async def _delist_some(self, stop: bytes, now_ms: int, acquired: LockToken | None) -> bytes | None:
        """Delist one step of the sessions whose expiry entries are before `stop`.

        A session with an uncommitted change blocks the step, unless its lock was acquired. Return its key, or None.
        """
        state, view = self._state, self._database.view
        until_s = time.monotonic() + STEP_S
        removals: list[tuple[LockToken, str, Session, Removal]] = []
        blocked: bytes | None = None
        reached = stop
        with view.iterator(start=state.undelisted, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if not key.startswith(layout.REMOVALS):
                    is_acquired = acquired is not None and acquired.key == key
                    token = acquired if is_acquired else self._locks.try_acquire(key)
                    if token is None:
                        blocked, reached = key, entry
                        break
                    listed = self._listed(key)
                    if listed is not None:
                        forget_ms = now_ms + self._remember_ms
                        removal = Removal(state.next_serial(), Reason.EXPIRED, forget_ms, key in state.leases)
                        removals.append((token, *listed, removal))
                if time.monotonic() >= until_s:
                    reached = entry + b"\x00"
                    break
        state.undelisted = reached
        if removals:

            def applied() -> None:
                for _, origin, session, removal in removals:
                    state.on_removed(origin, session, removal)
                    if self.observer is not None:
                        times = (session.created_ms, session.expires_ms)
                        self.observer("expired", origin, session.code, session.topic, *times)

            change = changes.merge(
                *(changes.delisted(origin, session, removal) for _, origin, session, removal in removals)
            )
            await self._committer.commit([token for token, *_ in removals], change, applied, now_ms=now_ms)
        elif reached != stop and blocked is None:
            await asyncio.sleep(0)
        return blocked

    def _listed(self, key: bytes) -> tuple[str, Session] | None:
        """Return the origin and the session if it is listed."""
        access = self._state.accesses.get(key)
        if access is not None and access.answer_number:
            return None
        view = self._database.view
        origin, code, _ = layout.unpack_session_key(key)
        session = records.find(view, key, code)
        return (origin, session) if session is not None and records.is_listed(view, origin, session) else None

    async def sweep(self, now_ms: int) -> int:
        """Delist expired sessions, then delete one step of them. Return the number of deleted keys, 0 at the end."""
        await self.expire_due(now_ms)
        state, view = self._state, self._database.view
        until_s = time.monotonic() + STEP_S
        deletes: list[bytes] = []
        swept: list[LockToken] = []
        forgotten = state.forgotten
        whole = 0  # completely deleted sessions
        remaining: bytes | None = None  # the first entry that this step does not delete
        stop = min(layout.pack_expired_stop(now_ms), state.undelisted)
        with view.iterator(start=state.unswept, stop=stop, include_value=False) as entries:
            for entry in entries:
                key = layout.unpack_expiry_key(entry)[1]
                if key.startswith(layout.REMOVALS):
                    deletes += key, entry
                    forgotten = max(forgotten, layout.unpack_number(key[-8:]))
                elif (token := self._locks.try_acquire(key)) is None:
                    remaining = remaining or entry
                else:
                    parts = records.part_keys(view, key, state.accesses.get(key), STEP)
                    if len(parts) == STEP:
                        # Head and offer stay until the last step, so that the session stays readable and can be found.
                        deletes += parts[2:]
                        remaining = remaining or entry
                    else:
                        deletes += *parts, entry
                        whole += 1
                    swept.append(token)
                if len(deletes) >= STEP or time.monotonic() >= until_s:
                    break
        if deletes:

            def applied() -> None:
                self._metrics.swept += whole
                state.forgotten = max(state.forgotten, forgotten)
                for token in swept:
                    state.watches.changed(token.key)

            state.unswept = remaining or entry
            puts = [(layout.FORGOTTEN_KEY, layout.pack_number(forgotten))] if forgotten > state.forgotten else []
            await self._committer.commit(swept, Change(puts, deletes), applied, now_ms=now_ms)
        return len(deletes)

    async def write_time(self, now_ms: int) -> None:
        """Write the store's time, so that it also continues after a restart."""
        await self._committer.commit([], Change([], []), lambda: None, now_ms=now_ms)
