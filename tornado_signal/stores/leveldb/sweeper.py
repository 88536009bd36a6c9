"""Takes expired sessions out of the store, step by step, and lets the disk shrink."""

import asyncio
import logging
import time

from ...errors import Unavailable
from ...system.clock import Clock
from .store import Store

log = logging.getLogger(__name__)

COMPACT_MIN_BYTES = 1 << 20
COMPACT_PAUSE_S = 60.0
COMPACT_FULL_PAUSE_S = 5.0  # the same while the store is full
COMPACT_SHARE = 20  # a compaction is followed by a pause of at least so many times its duration


class Sweeper:
    """What the `PeriodicCallback`s call.

    Args:
        store: what is swept.
        clock: tells what has expired.
        compact_pause_s: the least time between two compactions.
    """

    def __init__(self, store: Store, clock: Clock, compact_pause_s: float = COMPACT_PAUSE_S) -> None:
        self._store = store
        self._clock = clock
        self._pause_s = compact_pause_s
        self._swept = 0
        self._next_compaction_s = 0.0

    async def settle(self) -> None:
        """Have what has expired leave its listing, in time, whatever a sweep or a compaction takes."""
        try:
            await self._store.settle(self._clock.now_ms())
        except Unavailable:
            pass  # the store has said why; the next call goes on
        except Exception as error:
            if not self._store.failed(error):
                raise

    async def sweep(self) -> None:
        """Delete all that has expired, in steps with a pause as long as the step after each: requests come first."""
        try:
            begun_s = began_s = time.monotonic()
            before = self._swept
            while deleted := await self._store.sweep(self._clock.now_ms()):
                self._swept += deleted
                await asyncio.sleep(time.monotonic() - began_s)
                began_s = time.monotonic()
            if self._swept > before:
                log.debug("swept %d keys", self._swept - before)
            self._store.metrics.sweeps.observe(time.monotonic() - begun_s)
            hurry_s = max(0.0, self._pause_s - COMPACT_FULL_PAUSE_S) if self._store.space.full else 0.0
            if self._swept and time.monotonic() >= self._next_compaction_s - hurry_s:
                await self._compact()
        except Unavailable:
            pass  # the store has said why; the next call goes on
        except Exception as error:
            if not self._store.failed(error):
                raise

    async def _compact(self) -> None:
        if self._store.size_bytes() < COMPACT_MIN_BYTES:
            return
        self._swept = 0
        began_s = time.monotonic()
        await self._store.compact()
        ended_s = time.monotonic()
        self._store.metrics.compactions.observe(ended_s - began_s)
        self._next_compaction_s = ended_s + max(self._pause_s, COMPACT_SHARE * (ended_s - began_s))
        log.info("compacted the store to %d bytes in %.1f s", self._store.size_bytes(), ended_s - began_s)
