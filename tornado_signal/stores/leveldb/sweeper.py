"""The engine's background work: delisting and deleting expired sessions, and compaction."""

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Callable, Coroutine

from ...errors import Unavailable
from ...system.loop import Repeating
from .session_table import SessionTable

log = logging.getLogger(__name__)

COMPACT_MIN_BYTES = 1 << 20
COMPACT_GROWTH = 2  # the growth of the store since the last compaction, before the next one
COMPACT_PAUSE_S = 60.0  # minimum pause between two compactions
COMPACT_FULL_PAUSE_S = 5.0  # the same while the store is full
COMPACT_SHARE = 20  # minimum ratio of the pause after a compaction to its duration


class Sweeper:
    """Runs the background work."""

    def __init__(self, table: SessionTable, interval_ms: int) -> None:
        self._table = table
        self._database = table.database
        self._clock = table.clock
        self._swept = 0
        self._next_compaction_s = 0.0
        self._compacted_bytes = 0  # the size after the last compaction
        self._interval_s = interval_ms / 1000
        self._repeated: list[Repeating] = []

    def start(self) -> None:
        """Start the work. A long sweep or compaction does not delay the removal from listings."""
        for work in (self.expire_due, self.sweep, self.keep_time):
            self._repeated.append(Repeating(functools.partial(self._run, work), self._interval_s))

    async def stop(self) -> None:
        for repeated in self._repeated:
            await repeated.stop()

    async def _run(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        with contextlib.suppress(Unavailable):  # the database has logged the reason; the next call retries
            await work()

    async def expire_due(self) -> None:
        await self._table.expire_due(self._clock.now_ms())

    async def keep_time(self) -> None:
        """Write the store's time while it is ahead of the wall clock, by which a killed server would start again."""
        if self._clock.ahead_s() >= 1:
            await self._table.write_time(self._clock.now_ms())

    async def sweep(self) -> None:
        """Delete all expired sessions in steps. The pause after each step is as long as the step, for requests."""
        begun_s = began_s = time.monotonic()
        before = self._swept
        while deleted := await self._table.sweep(self._clock.now_ms()):
            self._swept += deleted
            await asyncio.sleep(time.monotonic() - began_s)
            began_s = time.monotonic()
        if self._swept > before:
            log.debug("swept %d keys", self._swept - before)
        self._database.metrics.sweeps.observe(time.monotonic() - begun_s)
        hurry_s = COMPACT_PAUSE_S - COMPACT_FULL_PAUSE_S if self._database.space.full else 0.0
        if self._swept and time.monotonic() >= self._next_compaction_s - hurry_s:
            await self._compact()

    async def _compact(self) -> None:
        size_bytes = self._database.size_bytes()
        if size_bytes < COMPACT_MIN_BYTES:
            return
        if not self._database.space.full and size_bytes < COMPACT_GROWTH * self._compacted_bytes:
            return
        self._swept = 0
        began_s = time.monotonic()
        await self._database.compact()
        ended_s = time.monotonic()
        self._database.metrics.compactions.observe(ended_s - began_s)
        self._next_compaction_s = ended_s + max(COMPACT_PAUSE_S, COMPACT_SHARE * (ended_s - began_s))
        self._compacted_bytes = self._database.size_bytes()
        log.info("compacted the store to %d bytes in %.1f s", self._compacted_bytes, ended_s - began_s)
