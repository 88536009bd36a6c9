"""The latest counts of a store, which stay available when the store does not count in time."""

import asyncio
import contextlib

from ..errors import Unavailable
from . import Store

LIMIT_S = 0.5  # the time that a caller waits for a count


class LatestCounts:
    """The latest successful counts of a store."""

    def __init__(self, store: Store) -> None:
        # The numbers of listed sessions and of their topics, or None before the first count.
        self.value: tuple[int, int] | None = None
        self._store = store
        self._counting: asyncio.Task[None] | None = None

    async def refresh(self) -> None:
        """Start a count, or join the current one, and wait for it for at most `LIMIT_S`."""
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count())
        await asyncio.wait((self._counting,), timeout=LIMIT_S)

    def close(self) -> None:
        """Cancel the current count."""
        if self._counting is not None:
            self._counting.cancel()

    async def _count(self) -> None:
        with contextlib.suppress(Unavailable):
            self.value = await self._store.counts()
