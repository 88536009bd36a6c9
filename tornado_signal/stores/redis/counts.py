"""Counts of an origin in all its partitions, for its quotas. They are cached, and read again before a refusal."""

import asyncio
import contextlib
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import Unavailable
from ..quotas import Quotas
from .partitions import Partition, Partitions

FRESH_S: Final = 1.0
PUBLISHING: Final = 32  # assumed number of concurrent publishers, which share the remaining quota
ORIGINS_KEPT: Final = 10_000

Sizes = list[tuple[int, int]]


class _CachedCounts:
    def __init__(self, sizes: Sizes, read_s: float, left: int) -> None:
        self.sizes = sizes
        self.read_s = read_s
        # Other processes may publish as well. After this many new sessions here the counts are read again.
        self.unread = left // PUBLISHING
        self.near = not self.unread


class OriginCounts:
    """Sessions and topics of origins, by partition.

    A script knows only its own partition, so it gets the quota that the other partitions leave. Counts are read
    more often near the quota. Only offers of origins near their quotas wait for it, because some partitions can
    be unavailable.
    """

    def __init__(self, partitions: Partitions, read: Callable[[str], Awaitable[Sizes]], quotas: Quotas) -> None:
        self._partitions = partitions
        self._read = read
        self._cached: OrderedDict[str, _CachedCounts] = OrderedDict()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()
        self.allow(quotas)

    def allow(self, quotas: Quotas) -> None:
        """Apply new quotas. The counts of all origins are read again."""
        # While every partition is below this, the origin is below half of its quota.
        self._near = (
            quotas.sessions_per_origin / (2 * self._partitions.count),
            quotas.topics_per_origin / (2 * self._partitions.count),
        )
        self._quotas = quotas
        for cached in self._cached.values():
            cached.unread, cached.near = 0, True

    def others(self, origin: str, partition: Partition) -> tuple[int, int]:
        """Return the numbers of sessions and topics in the other partitions of an origin."""
        cached = self._cached.get(origin)
        if cached is None:
            return 0, 0
        own = cached.sizes[partition.number]
        return sum(size[0] for size in cached.sizes) - own[0], sum(size[1] for size in cached.sizes) - own[1]

    def note(self, origin: str, partition: Partition, sessions: int, topics: int) -> "asyncio.Task[None] | None":
        """Record the counts of a partition. Read those of the others if the quota may be near.

        The task reads them if the origin is near its quotas. A publication should wait for it.
        """
        cached = self._cached.get(origin)
        if cached is None:
            near = sessions >= self._near[0] or topics >= self._near[1]
            if not near and random.randrange(self._partitions.count):
                return None
        else:
            near = cached.near
            cached.sizes[partition.number] = sessions, topics
            cached.unread -= 1
            if cached.unread > 0 or self._loop.time() - cached.read_s < FRESH_S:
                return None
            cached.read_s = self._loop.time()  # even if the read fails
        if origin not in self._reading:
            self._reading[origin] = reading = self._loop.create_task(self._try_refresh(origin))
            reading.add_done_callback(lambda _: self._reading.pop(origin))
        return self._reading[origin] if near else None

    async def _try_refresh(self, origin: str) -> None:
        with contextlib.suppress(Unavailable):  # the session has been created already
            await self._refresh(origin)

    async def close(self) -> None:
        """Cancel all reads."""
        for reading in self._reading.values():
            reading.cancel()
        if self._reading:
            await asyncio.wait(list(self._reading.values()))

    async def refresh(self, origin: str, others: tuple[int, int]) -> bool:
        """Read the counts of an origin before a publication is refused. Return whether they can have changed."""
        if others == (0, 0):
            return False
        before = self._cached.get(origin)
        await self._refresh(origin)
        return before is None or self._cached[origin].sizes != before.sizes

    async def _refresh(self, origin: str) -> None:
        sizes = await self._read(origin)
        sessions, topics = (sum(column) for column in zip(*sizes, strict=True))
        left = max(0, min(self._quotas.sessions_per_origin - sessions, self._quotas.topics_per_origin - topics))
        cached = _CachedCounts(sizes, self._loop.time(), left)
        self._cached.pop(origin, None)  # the dictionary is in order of reading
        self._cached[origin] = cached
        if len(self._cached) > ORIGINS_KEPT:
            self._cached.popitem(last=False)
