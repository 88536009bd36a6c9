"""The engine's work in the background: what has expired leaves its listing and is deleted, and the disk shrinks."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ...errors import Unavailable
from ...system.clock import Clock
from .binding import plyvel
from .database import Database
from .expiry import Expiry

log = logging.getLogger(__name__)

COMPACT_MIN_BYTES = 1 << 20
COMPACT_PAUSE_S = 60.0  # the least between two compactions
COMPACT_FULL_PAUSE_S = 5.0  # the same while the store is full
COMPACT_SHARE = 20  # a compaction is followed by a pause of at least so many times its duration


class Sweeper:
    """Settles, sweeps and compacts, again and again, with a pause between two looks for what has expired."""

    def __init__(self, expiry: Expiry, database: Database, clock: Clock, interval_ms: int) -> None:
        self._expiry = expiry
        self._database = database
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._swept = 0
        self._next_compaction_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        # Apart: what has expired leaves its listing in time, whatever a sweep or a compaction takes.
        self._tasks = [asyncio.create_task(self._repeat(work)) for work in (self.settle, self.sweep)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await work()
            except Unavailable:
                pass  # the database has said why; the next call goes on
            except plyvel.Error as error:
                self._database.failed(error)
            except Exception:
                log.exception("work in the background failed")

    async def settle(self) -> None:
        await self._expiry.settle(self._clock.now_ms())

    async def sweep(self) -> None:
        """Delete all that has expired, in steps with a pause as long as the step after each: requests come first."""
        begun_s = began_s = time.monotonic()
        before = self._swept
        while deleted := await self._expiry.sweep(self._clock.now_ms()):
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
        if self._database.size_bytes() < COMPACT_MIN_BYTES:
            return
        self._swept = 0
        began_s = time.monotonic()
        await self._database.compact()
        ended_s = time.monotonic()
        self._database.metrics.compactions.observe(ended_s - began_s)
        self._next_compaction_s = ended_s + max(COMPACT_PAUSE_S, COMPACT_SHARE * (ended_s - began_s))
        log.info("compacted the store to %d bytes in %.1f s", self._database.size_bytes(), ended_s - began_s)
