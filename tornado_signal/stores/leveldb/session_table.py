"""The sessions of a directory: the memory, which follows the database, commits, expiry and other background work.

`store` adds the operations on them.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Sequence

from ...errors import Unavailable
from ...metrics import SessionMetrics
from ...session import Observer, Outcome
from ...settings.settings import Settings
from ...system.clock import Clock
from ...system.loop import Repeating, guarded, in_slices
from ..watches import Watches
from . import layout, records
from .database import Change, Database
from .locks import SessionLock, SessionLocks
from .memory import Memory, Record
from .space import Space

# The bound of one step, which is one event-loop iteration. A session with more keys takes several steps.
STEP = 1000  # keys
STEP_S = 0.002
EXPIRY_PAUSE_S = 0.05  # the time within which expired sessions are removed from their listings
WAKE_STEP = 500  # watches that are woken per event-loop iteration, after the data was removed

COMPACT_MIN_BYTES = 1 << 20
COMPACT_GROWTH = 2  # the growth of the store since the last compaction, before the next one
COMPACT_PAUSE_S = 60.0  # minimum pause between two compactions
COMPACT_FULL_PAUSE_S = 5.0  # the same while the store is full
COMPACT_SHARE = 20  # minimum ratio of the pause after a compaction to its duration

log = logging.getLogger(__name__)


class SessionTable:
    """The sessions of a directory, on the running event loop.

    `memory` has the committed sessions, and is replaced whenever the database is opened. `watches` are by the key of a
    session or the prefix of a listing. `on_lost` is called after the loss of acknowledged sessions.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.space = Space(settings.data_dir, settings.max_store_bytes, settings.min_free_bytes)
        self.metrics = SessionMetrics()
        self.watches = Watches()
        self.locks = SessionLocks()
        self.memory = Memory()
        self.on_lost: Callable[[], object] = lambda: None
        self._clock = clock
        self._timeout_ms = settings.session_timeout_ms
        self._sweep_interval_s = settings.sweep_interval_ms / 1000
        self._observer: Observer | None = None
        self._expiring = asyncio.Lock()  # many readers take one step in each event-loop iteration
        self._expired_ms = 0  # sessions that had expired by then were reported, and perhaps some later ones
        self._reported_ms = 0  # the same when the database was opened
        self._repeated: list[Repeating] = []
        self._swept_keys = 0  # since the last compaction
        self._next_compaction_s = 0.0
        self._compacted_bytes = 0  # the size after the last compaction
        self.database = Database(
            settings.data_dir,
            sync=settings.durability == "fsync",
            load=records.load,
            loaded=self._load,
            start_empty=settings.start_empty_if_damaged,
            space=self.space,
        )

    def _load(self, memory: Memory) -> None:
        """Use what was read from the database. Waiting clients are woken if their sessions are gone."""
        before, self.memory = self.memory, memory
        self._reported_ms = max(self._expired_ms, 0 if before.identity else memory.latest_ms)
        if before.identity not in ("", memory.identity):
            log.error("a new database replaces the earlier one, whose sessions are lost; clients publish them again")
            in_slices(self.watches.keys(), self.watches.changed, WAKE_STEP)
            guarded(self.on_lost)

    async def open(self) -> None:
        await self.database.open()
        self._clock.advance_to(self.memory.latest_ms)
        # A long sweep or compaction does not delay the removal from listings.
        self._repeated.append(Repeating(lambda: self.expire_due(self._clock.now_ms()), EXPIRY_PAUSE_S))
        for work in (self.sweep_all, self.keep_time):
            self._repeated.append(Repeating(functools.partial(self._run, work), self._sweep_interval_s))

    async def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        with contextlib.suppress(Unavailable):  # the database has logged the reason; the next call retries
            await work()

    async def close(self) -> None:
        for repeated in self._repeated:
            await repeated.stop()
        now_ms = self._clock.now_ms()
        with contextlib.suppress(Unavailable):  # the time continues from the last change
            await self.write_time(now_ms)
        await self.expire_due(now_ms)  # no session is being changed any more
        await self.database.close()

    def commit(
        self,
        locks: Sequence[SessionLock],
        change: Change,
        apply: Callable[[], None],
        *,
        now_ms: int | None = None,
    ) -> "asyncio.Future[None]":
        """Commit a change, which releases the locks of its sessions when it is committed or has failed.

        The future is done after the commit, or fails with Unavailable. `locks` are empty for a change that only
        appends. `apply` updates the memory after the commit. `now_ms`, by which the change was decided, is
        written, so that no later process decides by an earlier one. It is None if the change affects neither times
        nor serials.
        """
        if now_ms is not None:
            memory = self.memory
            memory.latest_ms = max(memory.latest_ms, now_ms)
            change.puts.append((layout.COUNTERS_KEY, layout.pack_counters(memory.latest_ms, memory.serial)))
        for lock in locks:
            lock.writing = True

        def on_committed(committed: bool) -> None:
            for lock in locks:
                lock.release()
            if committed:
                apply()

        return self.database.commit(change, on_committed)

    def write_time(self, now_ms: int) -> "asyncio.Future[None]":
        """Write the store's time, so that it also continues after a restart."""
        return self.commit([], Change([], []), lambda: None, now_ms=now_ms)

    def report(self, outcome: Outcome, origin: str, topic: str, record: Record) -> None:
        if self._observer is not None:
            self._observer(outcome, origin, record.code, topic, record.created_ms, record.expires_ms)

    # Expiry

    async def expire_due(self, now_ms: int, origin: str | None = None, topic: str | None = None) -> None:
        """Remove sessions that have expired by `now_ms` from their listings, which is an event like other removals.

        Every read of a listing calls this before. `sweep` deletes the sessions later. A refresh that began before the
        expiry extends the session, so one that is being changed is left to a later call. Only those in the listings
        that are read, of `origin` or of its `topic`, are waited for.
        """
        if self.memory.due(now_ms) is None:
            return
        changing: list[Record] = []
        async with self._expiring:
            until_s, after = time.monotonic() + STEP_S, 0
            while (record := self.memory.due(now_ms, after)) is not None:
                if self.locks.held(record.key):
                    changing.append(record)
                    after = record.order
                else:
                    self._expire(record, now_ms)
                if time.monotonic() >= until_s:
                    await asyncio.sleep(0)
                    until_s = time.monotonic() + STEP_S
            self.memory.latest_ms = max(self.memory.latest_ms, now_ms)
            if not changing:
                self._expired_ms = max(self._expired_ms, now_ms)
        for record in changing:
            listed = record.topic
            if listed is None or listed.origin.name != origin or topic not in (None, listed.name.decode()):
                continue
            with await self.locks.acquire(record.key):
                if self.memory.is_due(record, now_ms):
                    self._expire(record, now_ms)

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
        memory.removals.forget(now_ms - self._timeout_ms)
        until_s = time.monotonic() + STEP_S
        deletes: list[bytes] = []
        locks: list[SessionLock] = []
        whole: list[Record] = []  # completely deleted
        with contextlib.ExitStack() as stack:
            for record in list(itertools.islice(memory.expired, STEP)):
                if self.locks.held(record.key):
                    continue
                locks.append(stack.enter_context(await self.locks.acquire(record.key)))
                keys = memory.expired.pop(record)
                some = list(itertools.islice(keys, STEP))
                if len(some) < STEP:
                    whole.append(record)
                else:
                    memory.expired[record] = keys
                deletes += some
                if len(deletes) >= STEP or time.monotonic() >= until_s:
                    break

            def applied() -> None:
                self.metrics.swept += len(whole)
                for record in whole:
                    memory.remove(record)
                    self.watches.changed(record.key)

            if locks:
                await self.commit(locks, Change([], deletes), applied, now_ms=now_ms)
        return len(deletes)

    async def sweep_all(self) -> None:
        """Delete all expired sessions in steps. The pause after each step is as long as the step, for requests."""
        begun_s = began_s = time.monotonic()
        before = self._swept_keys
        while deleted := await self.sweep(self._clock.now_ms()):
            self._swept_keys += deleted
            await asyncio.sleep(time.monotonic() - began_s)
            began_s = time.monotonic()
        if self._swept_keys > before:
            log.debug("swept %d keys", self._swept_keys - before)
        self.database.metrics.sweeps.observe(time.monotonic() - begun_s)
        hurry_s = COMPACT_PAUSE_S - COMPACT_FULL_PAUSE_S if self.database.space.full else 0.0
        if self._swept_keys and time.monotonic() >= self._next_compaction_s - hurry_s:
            await self._compact()

    async def _compact(self) -> None:
        size_bytes = self.database.size_bytes()
        if size_bytes < COMPACT_MIN_BYTES:
            return
        if not self.database.space.full and size_bytes < COMPACT_GROWTH * self._compacted_bytes:
            return
        self._swept_keys = 0
        began_s = time.monotonic()
        await self.database.compact()
        ended_s = time.monotonic()
        self.database.metrics.compactions.observe(ended_s - began_s)
        self._next_compaction_s = ended_s + max(COMPACT_PAUSE_S, COMPACT_SHARE * (ended_s - began_s))
        self._compacted_bytes = self.database.size_bytes()
        log.info("compacted the store to %d bytes in %.1f s", self._compacted_bytes, ended_s - began_s)

    async def keep_time(self) -> None:
        """Write the store's time while it is ahead of the wall clock, by which a killed server would start again."""
        if self._clock.ahead_s() >= 1:
            await self.write_time(self._clock.now_ms())
