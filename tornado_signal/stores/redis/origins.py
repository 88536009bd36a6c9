"""The registry of origins with sessions, and the total counts of sessions and topics."""

import asyncio
import heapq
import operator
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from ...errors import Unavailable
from .client import RedisClient
from .partitions import Partitions, key_slot

COUNTS_STEP = 8  # origins counted in parallel
COUNTS_WORK_S = 0.05  # time of counting before a pause
COUNTS_PAUSES = 10  # a pause is this many times as long as the work
COUNTED_ALONE = 100  # up to this many origins each process counts for itself
COUNTS_KEPT_MS = 1000  # other processes use a result at least this long
COUNTS_POLL_S = 0.5
CLAIM_MS = 20_000
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
        process_id: bytes,
        partitions: Partitions,
        sizes: Callable[[str], Awaitable[list[tuple[int, int]]]],
        timeout_ms: int,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._process_id = process_id
        self._claim_key = f"{prefix}claim:counts".encode()
        self._counts_key = f"{prefix}counts".encode()
        self._partitions = partitions
        self._sizes = sizes
        self._timeout_ms = timeout_ms
        self._registered: OrderedDict[str, int] = OrderedDict()  # by origin, the end of its registration

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
            self._registered.popitem(last=False)

    async def all(self) -> list[str]:
        """Return the origins that may have sessions."""
        origins: list[bytes] = []
        for number in range(self._partitions.count):
            key, slot = self._registry(number)
            command = (b"ZRANGE", key, self._client.now_ms(), b"+inf", b"BYSCORE")
            origins += await self._client.call(slot, command, write=False)
        return [origin.decode() for origin in origins]

    async def counts(self) -> tuple[int, int]:
        """Return the numbers of sessions and topics of all origins.

        With many origins the processes take turns. The others use the result for as long as the count took.
        """
        while True:
            if counted := await self._counted():
                return counted
            origins = await self.all()
            if len(origins) <= COUNTED_ALONE:
                return await self._count(origins)
            if await self._claim():
                # Another process can have counted since the question.
                counted = await self._counted() or await self._count_for_all(origins)
                await self._client.call(key_slot(self._claim_key), (b"DEL", self._claim_key), write=False)
                return counted
            await asyncio.sleep(COUNTS_POLL_S)

    async def _counted(self) -> tuple[int, int] | None:
        """Return the counts of the last process, unless they are too old."""
        counted = await self._client.call(key_slot(self._counts_key), (b"GET", self._counts_key), write=False)
        if counted is None:
            return None
        sessions, topics = map(int, counted.split())
        return sessions, topics

    async def _count_for_all(self, origins: Sequence[str]) -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        result = await self._count(origins)
        kept_ms = max(COUNTS_KEPT_MS, int((loop.time() - began_s) * 1000))
        keep = (b"SET", self._counts_key, b"%d %d" % result, b"PX", kept_ms)
        await self._client.call(key_slot(self._counts_key), keep, write=False)
        return result

    async def _claim(self) -> bool:
        """Return whether this process counts for all for the next `CLAIM_MS`."""
        return await self._client.claim(self._claim_key, self._process_id, CLAIM_MS)

    async def _count(self, origins: Sequence[str]) -> tuple[int, int]:
        sessions = topics = 0
        async for _, of_origin, its_topics in self._all_sizes(origins):
            sessions += of_origin
            topics += its_topics
        return sessions, topics

    async def largest(self, max_items: int) -> list[tuple[str, int, int]]:
        """Return the origins with the most sessions: origin, number of sessions, and number of topics."""
        largest: list[tuple[str, int, int]] = []
        async for sizes in self._all_sizes(await self.all()):
            if sizes[1]:
                largest = heapq.nlargest(max_items, [*largest, sizes], key=operator.itemgetter(1))
        return largest

    async def _all_sizes(self, origins: Sequence[str]) -> AsyncGenerator[tuple[str, int, int], None]:
        """Yield each origin with the numbers of its sessions and topics, at a limited rate."""
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for first in range(0, len(origins), COUNTS_STEP):
            # An origin costs a command for each partition, and one address can publish in thousands of origins.
            worked_s = loop.time() - began_s
            if worked_s > COUNTS_WORK_S:
                await asyncio.sleep(COUNTS_PAUSES * worked_s)
                if len(origins) > COUNTED_ALONE:
                    await self._claim()  # renews it
                began_s = loop.time()
            step = origins[first : first + COUNTS_STEP]
            for origin, sizes in zip(step, await asyncio.gather(*map(self._sizes, step)), strict=True):
                yield origin, sum(size[0] for size in sizes), sum(size[1] for size in sizes)

    def _registry(self, number: int) -> tuple[bytes, int]:
        key = f"{self._prefix}{{{number:x}}}:origins".encode()
        return key, key_slot(key)
