"""The sessions of a directory: the memory, which follows the database, commits, and expiry."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable
from pathlib import Path

from ...errors import Unavailable
from ...metrics import SessionMetrics
from ...session import Observer, Outcome
from ...system.clock import Clock
from ...system.loop import guarded, in_slices
from ..watches import Watches
from . import layout, records
from .database import Change, Database
from .layout import StoreCounters
from .locks import LockToken, SessionLocks
from .memory import Memory, Record
from .space import Space

# The bound of one step, which is one event-loop iteration. A session with more keys takes several steps.
STEP = 1000  # keys
STEP_S = 0.002
WAKE_STEP = 500  # watches that are woken per event-loop iteration, after the data was removed

log = logging.getLogger(__name__)


class SessionTable:
    """The sessions of a directory. `LevelDBStore` describes the arguments.

    `memory` has the committed sessions, and is replaced whenever the database is opened. `watches` are by the key of a
    session or the prefix of a listing.
    """

    def __init__(
        self, path: Path, clock: Clock, *, timeout_ms: int, sync: bool, start_empty: bool, space: Space
    ) -> None:
        self.clock = clock
        self.timeout_ms = timeout_ms
        self.metrics = SessionMetrics()
        self.watches = Watches()
        self.locks = SessionLocks()
        self.memory = Memory(b"", StoreCounters(0, 0))
        self.observer: Observer | None = None
        self.on_lost: Callable[[], object] = lambda: None
        self._expiring = asyncio.Lock()
        self._expired_ms = 0  # sessions that had expired by then were reported
        self._reported_ms = 0  # the same when the database was opened
        self.database = Database(
            path,
            sync=sync,
            load=records.load,
            loaded=self._load,
            start_empty=start_empty,
            space=space,
        )

    def _load(self, memory: Memory) -> None:
        """Use what was read from the database. Waiting clients are woken if their sessions are gone."""
        before, self.memory = self.memory, memory
        self._reported_ms = max(self._expired_ms, 0 if before.identity else memory.latest_ms)
        if before.identity not in ("", memory.identity):
            log.error("a new database replaces the earlier one, whose sessions are lost; clients publish them again")
            in_slices(self.watches.keys(), self.watches.changed, WAKE_STEP)
            guarded(self.on_lost)

    async def close(self) -> None:
        """Write the time and close the database."""
        now_ms = self.clock.now_ms()
        await self.expire_due(now_ms)
        with contextlib.suppress(Unavailable):  # the time continues from the last change
            await self.write_time(now_ms)
        await self.database.close()

    def commit(
        self,
        tokens: list[LockToken],
        change: Change,
        apply: Callable[[], None],
        *,
        now_ms: int | None = None,
    ) -> "asyncio.Future[None]":
        """Commit a change and hold the locks of its sessions until it is committed or has failed.

        The future is done after the commit, or fails with Unavailable. `tokens` are empty for a session that no other
        request can know yet. `apply` updates the memory after the commit. `now_ms`, by which the change was decided, is
        written, so that no later process decides by an earlier one. It is None if the change affects neither times
        nor serials.
        """
        memory, locks = self.memory, self.locks
        if now_ms is not None:
            memory.latest_ms = max(memory.latest_ms, now_ms)
            counters = StoreCounters(memory.latest_ms, memory.serial)
            change.puts.append((layout.COUNTERS_KEY, layout.pack_counters(counters)))
        locks.enter(tokens)

        def on_committed(committed: bool) -> None:
            locks.release(tokens)
            if committed:
                apply()

        return self.database.commit(change, on_committed)

    def write_time(self, now_ms: int) -> "asyncio.Future[None]":
        """Write the store's time, so that it also continues after a restart."""
        return self.commit([], Change([], []), lambda: None, now_ms=now_ms)

    def report(self, outcome: Outcome, origin: str, topic: str, record: Record) -> None:
        if self.observer is not None:
            self.observer(outcome, origin, record.code, topic, record.created_ms, record.expires_ms)

    # Expiry

    async def expire_due(self, now_ms: int) -> None:
        """Remove sessions that have expired by `now_ms` from their listings, which is an event like other removals.

        Every read of a listing calls this before. `sweep` deletes the sessions later.
        """
        if self.memory.due(now_ms) is None:
            return
        async with self._expiring:
            until_s = time.monotonic() + STEP_S
            while (record := self.memory.due(now_ms)) is not None:
                if self.locks.held(record.key):
                    # Wait for the change. A refresh that began before the expiry extends the session.
                    await self.locks.acquire(record.key)
                    if self.memory.due(now_ms) is not record:
                        continue
                self._expire(record, now_ms)
                if time.monotonic() >= until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + STEP_S
            self._expired_ms = max(self._expired_ms, now_ms)
            self.memory.latest_ms = max(self.memory.latest_ms, now_ms)

    def _expire(self, record: Record, now_ms: int) -> None:
        topic = record.topic
        self.memory.expire(record, now_ms)
        if topic is not None:
            self.watches.changed(topic.prefix)
            if record.expires_ms > self._reported_ms:
                self.report("expired", topic.origin.name, topic.name.decode(), record)

    async def sweep(self, now_ms: int) -> int:
        """Delete one step of the expired sessions. Return the number of deleted keys, 0 at the end."""
        await self.expire_due(now_ms)
        memory = self.memory
        memory.removals.forget(now_ms - self.timeout_ms)
        until_s = time.monotonic() + STEP_S
        deletes: list[bytes] = []
        tokens: list[LockToken] = []
        whole: list[Record] = []  # completely deleted
        for record in list(itertools.islice(memory.expired, STEP)):
            token = self.locks.try_acquire(record.key)
            if token is None:
                continue
            keys = memory.expired.pop(record)
            some = list(itertools.islice(keys, STEP))
            if len(some) < STEP:
                whole.append(record)
            else:
                memory.expired[record] = keys
            tokens.append(token)
            deletes += some
            if len(deletes) >= STEP or time.monotonic() >= until_s:
                break
        if tokens:

            def applied() -> None:
                self.metrics.swept += len(whole)
                for record in whole:
                    memory.remove(record)
                    self.watches.changed(record.key)

            await self.commit(tokens, Change([], deletes), applied, now_ms=now_ms)
        return len(deletes)
