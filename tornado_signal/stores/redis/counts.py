"""What an origin has in all its partitions, for its quotas: as known here, read anew before anything is refused."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import Unavailable
from ..quotas import Quotas
from .partitions import Partition, Partitions

FRESH_S: Final = 1.0
ORIGINS_KEPT: Final = 10_000

Sizes = list[tuple[int, int]]


class _Known:
    def __init__(self, sizes: Sizes, read_s: float) -> None:
        self.sizes = sizes
        self.read_s = read_s


class OriginCounts:
    """Sessions and topics of origins, by partition.

    A script knows its partition alone. So it is told how much the quotas leave beside the others, and that is read only
    for origins that may be near their quotas, and for a few others now and then.

    Args:
        partitions: of the store.
        read: reads the counts of an origin.
        quotas: how much there may be.
    """

    def __init__(self, partitions: Partitions, read: Callable[[str], Awaitable[Sizes]], quotas: Quotas) -> None:
        self._partitions = partitions
        self._read = read
        # As long as no partition has so many, all together have half of what they may.
        self._near = (
            quotas.sessions_per_origin / (2 * partitions.count),
            quotas.topics_per_origin / (2 * partitions.count),
        )
        self._known: dict[str, _Known] = {}
        self._reading: set[str] = set()
        self._loop = asyncio.get_running_loop()

    def others(self, origin: str, partition: Partition) -> tuple[int, int]:
        """Sessions and topics in the other partitions of an origin."""
        known = self._known.get(origin)
        if known is None:
            return 0, 0
        own = self._partitions.all(origin).index(partition)
        sessions = sum(size[0] for size in known.sizes) - known.sizes[own][0]
        return sessions, sum(size[1] for size in known.sizes) - known.sizes[own][1]

    def note(self, origin: str, partition: Partition, sessions: int, topics: int) -> bool:
        """A partition has so much now; whether the others are to be read anew, because they may matter."""
        known = self._known.get(origin)
        if known is not None:
            known.sizes[self._partitions.all(origin).index(partition)] = sessions, topics
            if self._loop.time() - known.read_s < FRESH_S:
                return False
        near = sessions >= self._near[0] or topics >= self._near[1]
        return origin not in self._reading and (near or random.randrange(self._partitions.count) == 0)

    async def read(self, origin: str) -> None:
        """Read what an origin has, if that is possible now."""
        self._reading.add(origin)
        try:
            with contextlib.suppress(Unavailable):
                await self._refresh(origin)
        finally:
            self._reading.discard(origin)

    async def refresh(self, origin: str, others: tuple[int, int]) -> bool:
        """Read what an origin has, before it is refused because of these; whether that may have changed anything."""
        if others == (0, 0):
            return False
        before = self._known.get(origin)
        await self._refresh(origin)
        return before is None or self._known[origin].sizes != before.sizes

    async def _refresh(self, origin: str) -> None:
        known = _Known(await self._read(origin), self._loop.time())
        self._known.pop(origin, None)  # the latest are kept
        self._known[origin] = known
        if len(self._known) > ORIGINS_KEPT:
            del self._known[next(iter(self._known))]
