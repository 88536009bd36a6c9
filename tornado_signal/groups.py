"""Changes that share one write."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

Settled = Callable[[bool], None]


class Group:
    """Changes that share one write.

    Attributes:
        batch: all of them, for LevelDB.
        changes: for each, whom to tell of its end: a function to call, and a future for who waits.
        took_s: how long the write took, with its sync.
    """

    def __init__(self, db: Any, sync: bool) -> None:
        self.batch = db.write_batch(sync=sync)
        self.changes: list[tuple[Settled, asyncio.Future[None]]] = []
        self.took_s = 0.0

    def write(self) -> None:
        """Write them, in whatever thread."""
        began_s = time.perf_counter()
        self.batch.write()
        self.took_s = time.perf_counter() - began_s
