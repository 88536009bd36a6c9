"""Maintenance of a directory while the server uses it."""

import asyncio
import time
from typing import Any

from ...system.clock import Clock
from . import layout, records
from .binding import plyvel
from .census import Census
from .database import Database


class DirectoryMaintenance:
    """Maintenance of an open database. `Maintenance` describes its operations."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def size_bytes(self) -> int:
        return self._database.size_bytes()

    async def compact(self) -> None:
        try:
            await self._database.compact()
        except plyvel.Error as error:
            raise self._database.failed(error) from error

    async def inspect(self, max_items: int) -> dict[str, Any]:
        size_bytes = self.size_bytes()
        census = Census(self._clock.now_ms(), max_items)
        after = layout.BEFORE_ALL
        try:
            with self._database.pinned_snapshot() as view:
                while True:
                    began_s = time.monotonic()
                    step = records.entries_step(view(), after)
                    if not step:
                        break
                    census.count(step)
                    after = step[-1][0]
                    # The pause is longer than the step, because requests have priority.
                    await asyncio.sleep(2 * (time.monotonic() - began_s))
        except plyvel.Error as error:
            raise self._database.failed(error) from error
        return {"size_bytes": size_bytes, **census.end()}
