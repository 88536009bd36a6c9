"""The registry of origins with sessions, and the total counts of sessions and topics."""

import asyncio
import heapq
import operator
from collections.abc import AsyncGenerator, Awaitable, Callable

from ...errors import Unavailable
from .client import RedisClient
from .partitions import Partitions, key_slot

COUNTS_STEP = 8  # origins counted in parallel
COUNTS_WORK_S = 0.05  # time of counting before a pause
COUNTS_PAUSES = 20  # a pause is this many times as long as the work
REGISTERED_KEPT = 10_000


class StoredOrigins:
    """The registry of origins, which all processes share.

    Args:
        sizes: reads the sessions and topics of an origin, by partition.
        timeout_ms: the time for which an origin stays registered after its last session.
    """

    def __init__(
        self,
        client: RedisClient,
        prefix: str,
        partitions: Partitions,
        sizes: Callable[[str], Awaitable[list[tuple[int, int]]]],
        timeout_ms: int,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._partitions = partitions
        self._sizes = sizes
        self._timeout_ms = timeout_ms
        self._registered: dict[str, int] = {}  # by origin, the end of its registration

    def registered(self, origin: str, until_ms: int) -> bool:
        """Return whether an origin is registered until a time, as far as this process knows."""
        return self._registered.get(origin, 0) >= until_ms

    async def register(self, origin: str, until_ms: int) -> None:
        """Register an origin for longer than requested, so that this is rarely needed."""
        noted_ms = self._registered[origin] = until_ms + self._timeout_ms
        key, slot = self._registry(self._partitions.number(origin))
        now_ms = self._client.now_ms()
        try:
            await self._client.call(slot, (b"ZREMRANGEBYSCORE", key, b"-inf", now_ms), write=False)
            await self._client.call(slot, (b"ZADD", key, b"GT", noted_ms, origin.encode()), write=True)
        except Unavailable:  # the next offer of the origin tries again
            self._registered.pop(origin, None)
        if len(self._registered) > REGISTERED_KEPT:
            del self._registered[next(iter(self._registered))]

    async def all(self) -> list[str]:
        """Return the origins that may have sessions."""
        origins: list[bytes] = []
        for number in range(self._partitions.count):
            key, slot = self._registry(number)
            command = (b"ZRANGE", key, self._client.now_ms(), b"+inf", b"BYSCORE")
            origins += await self._client.call(slot, command, write=False)
        return [origin.decode() for origin in origins]

    async def counts(self) -> tuple[int, int]:
        """Count the sessions and topics of all origins."""
        sessions = topics = 0
        async for _, of_origin, its_topics in self._all_sizes():
            sessions += of_origin
            topics += its_topics
        return sessions, topics

    async def largest(self, max_items: int) -> list[tuple[str, int, int]]:
        """Return the origins with the most sessions: origin, number of sessions, and number of topics."""
        largest: list[tuple[str, int, int]] = []
        async for sizes in self._all_sizes():
            if sizes[1]:
                largest = heapq.nlargest(max_items, [*largest, sizes], key=operator.itemgetter(1))
        return largest

    async def _all_sizes(self) -> AsyncGenerator[tuple[str, int, int], None]:
        """Yield each origin with the numbers of its sessions and topics, at a limited rate."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        origins = await self.all()
        for first in range(0, len(origins), COUNTS_STEP):
            # An origin costs one script for each partition, and one address can publish in thousands of origins.
            worked_s = loop.time() - began_s
            if worked_s > COUNTS_WORK_S:
                await asyncio.sleep(COUNTS_PAUSES * worked_s)
                began_s = loop.time()
            step = origins[first : first + COUNTS_STEP]
            for origin, sizes in zip(step, await asyncio.gather(*map(self._sizes, step)), strict=True):
                yield origin, sum(size[0] for size in sizes), sum(size[1] for size in sizes)

    def _registry(self, number: int) -> tuple[bytes, int]:
        key = f"{self._prefix}{{{number:x}}}:origins".encode()
        return key, key_slot(key)
