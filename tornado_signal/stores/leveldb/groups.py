"""Changes that share one write."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from .changes import Change

Settled = Callable[[bool], None]


class Group:
    """Changes that share one write.

    Attributes:
        changes: for each, what is told of its end: a function to call, and a future to set.
        took_s: how long the write took, with its sync.
        size: of all keys and values, in bytes.
    """

    def __init__(self, db: Any, sync: bool) -> None:
        self.changes: list[tuple[Settled, asyncio.Future[None]]] = []
        self.took_s = 0.0
        self.size = 0
        self._batch = db.write_batch(sync=sync)
        self._change = db.write_batch()

    def add(self, change: Change, settled: Settled, waiter: "asyncio.Future[None]") -> None:
        """One more change; if one of its parts is refused, nothing of it reaches the others'."""
        batch = self._change
        batch.clear()
        size = 0
        for key in change.deletes:
            batch.delete(key)
            size += len(key)
        for key, value in change.puts:
            batch.put(key, value)
            size += len(key) + len(value)
        self._batch.append(batch)
        self.size += size
        self.changes.append((settled, waiter))

    def write(self) -> None:
        """Write them, in whatever thread."""
        began_s = time.perf_counter()
        self._batch.write()
        self.took_s = time.perf_counter() - began_s
