"""Counts of sessions and topics: of an origin for its quotas, and of all origins for the operator.

An origin is counted by reading its partitions. All processes share the registry of the origins and the latest totals.
"""

import asyncio
import contextlib
import heapq
import json
import operator
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from ...errors import Unavailable
from ...redis.client import RedisClient
from ...settings.settings import Settings
from .partitions import Partition, Partitions

FRESH_S: Final = 1.0
PUBLISHING: Final = 32  # assumed number of concurrent publishers, which share the remaining quota
ORIGINS_KEPT: Final = 10_000
LARGEST: Final = 100  # origins with the most sessions that a count finds
STEP: Final = 8  # origins counted in parallel
WORK_S: Final = 0.05  # time of counting before a pause
PAUSES: Final = 10  # a pause is this many times as long as the work
LIMIT_S: Final = 0.5  # the time that a caller waits for the totals
POLL_S: Final = 0.1  # interval between two checks whether another process has counted
CLAIM_MS: Final = 20_000  # how long one process may count for all; each pause renews it

Sizes = list[tuple[int, int]]


class _CachedSizes:
    def __init__(self, sizes: list[int], read_s: float, left: int) -> None:
        self.sizes = sizes
        self.read_s = read_s  # when they were last read, or reading was tried
        # Offers here until the sizes are read again: other processes may publish as well.
        self.offers_left = left // PUBLISHING
        self.near = not self.offers_left  # whether an offer waits for the reading


class Totals(NamedTuple):
    """The counts of all origins."""

    sessions: int
    topics: int
    largest: list[tuple[str, int, int]]  # the origins with the most sessions, with their sessions and topics


class Counts:
    """The counts of origins. An origin stays registered for the lifetime of a session after its last session.

    A script knows only its own partition, so it gets the quota that the other partitions leave. Their sizes are cached,
    and read more often near the quota. Only offers of origins near their quotas wait for that, because some partitions
    can be unavailable.
    """

    def __init__(
        self, client: RedisClient, partitions: Partitions, read: Callable[[str], Awaitable[Sizes]], settings: Settings
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._read = read
        self._timeout_ms = settings.session_timeout_ms
        self._registered: OrderedDict[str, int] = OrderedDict()  # by origin, the end of its registration
        self._cached: OrderedDict[str, _CachedSizes] = OrderedDict()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._counting: asyncio.Task[Totals] | None = None
        self._totals: Totals | None = None
        self._loop = asyncio.get_running_loop()
        self.use(settings)

    async def close(self) -> None:
        tasks = [*self._reading.values(), *([] if self._counting is None else [self._counting])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # The registry of origins

    def is_registered(self, origin: str, until_ms: int) -> bool:
        """Return whether an origin is registered until a time, as far as this process knows."""
        return self._registered.get(origin, 0) >= until_ms

    async def register(self, origin: str, until_ms: int) -> None:
        """Register an origin for longer than requested, so that this is rarely needed."""
        noted_ms = self._registered[origin] = until_ms + self._timeout_ms
        key = self._registry(self._partitions.number(origin))
        try:
            await self._client.call_key(b"ZREMRANGEBYSCORE", key, b"-inf", self._client.now_ms())
            await self._client.call_key(b"ZADD", key, b"GT", noted_ms, origin.encode(), write=True)
        except Unavailable:  # the next offer of the origin tries again
            self._registered.pop(origin, None)
        if len(self._registered) > ORIGINS_KEPT:
            self._registered.popitem(last=False)

    async def origins(self) -> list[str]:
        """Return the origins that may have sessions."""
        origins: list[bytes] = []
        for number in range(self._partitions.count):
            key, now_ms = self._registry(number), self._client.now_ms()
            origins += await self._client.call_key(b"ZRANGE", key, now_ms, b"+inf", b"BYSCORE")
        return [origin.decode() for origin in origins]

    def _registry(self, number: int) -> bytes:
        return self._client.key(f"{{{number:x}}}:origins")

    # The quotas of an origin

    def use(self, settings: Settings) -> None:
        """Apply new quotas. The next offer of an origin reads its sizes again, `FRESH_S` after the last reading."""
        self._max_sessions = settings.max_sessions_per_origin
        # While every partition is below this, the origin is below half of its quota.
        self._near_size = self._max_sessions / (2 * self._partitions.count)
        for cached in self._cached.values():
            cached.offers_left, cached.near = 0, True

    def sessions_elsewhere(self, origin: str, partition: Partition) -> int:
        """Return the number of sessions in the other partitions of an origin."""
        cached = self._cached.get(origin)
        return sum(cached.sizes) - cached.sizes[partition.number] if cached else 0

    def record_size(self, origin: str, partition: Partition, sessions: int) -> "asyncio.Task[None] | None":
        """Record the size of a partition. Start to read the others if that is due.

        Return the reading if the origin is near its quota: the publication should wait for it.
        """
        cached = self._cached.get(origin)
        if cached is None:
            near = sessions >= self._near_size
            # One offer in as many as there are partitions reads them: another one may be nearly full.
            if not near and random.randrange(self._partitions.count):
                return None
        else:
            near = cached.near
            cached.sizes[partition.number] = sessions
            cached.offers_left -= 1
            if cached.offers_left > 0 or self._loop.time() - cached.read_s < FRESH_S:
                return None
            cached.read_s = self._loop.time()  # even if the read fails
        if origin not in self._reading:
            self._reading[origin] = reading = self._loop.create_task(self._try_refresh(origin))
            reading.add_done_callback(lambda _: self._reading.pop(origin))
        return self._reading[origin] if near else None

    async def _try_refresh(self, origin: str) -> None:
        with contextlib.suppress(Unavailable):  # the session has been created already
            await self.refresh(origin)

    async def refresh(self, origin: str) -> None:
        """Read the sizes of an origin, as before a publication is refused."""
        sizes = [sessions for sessions, _ in await self._read(origin)]
        left = max(0, self._max_sessions - sum(sizes))
        self._cached.pop(origin, None)  # the dictionary is in order of reading
        self._cached[origin] = _CachedSizes(sizes, self._loop.time(), left)
        if len(self._cached) > ORIGINS_KEPT:
            self._cached.popitem(last=False)

    # The totals

    async def total(self) -> tuple[int, int] | None:
        """Count again, for at most `LIMIT_S`. Return the latest numbers of sessions and topics of all origins.

        They are None before the first count.
        """
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(LIMIT_S):
                await self._recount()
        return self._totals and self._totals[:2]

    async def largest(self, max_items: int) -> list[tuple[str, int, int]]:
        """Return the origins with the most sessions, at most `LARGEST`."""
        return (await self._recount()).largest[:max_items]

    async def _recount(self) -> Totals:
        """Count again, or wait for the current count."""
        if self._counting is None or self._counting.done():
            self._counting = self._loop.create_task(self._count())
            self._counting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._counting)

    async def _count(self) -> Totals:
        """Count all origins, one process at a time. The others use the result for as long as the count took."""
        key = self._client.key("totals")
        while (shared := await self._client.call_key(b"GET", key)) is None:
            if await self._claim():
                began_s = self._loop.time()
                self._totals = await self._count_all()
                kept_ms = max(1, int((self._loop.time() - began_s) * 1000))
                await self._client.call_key(b"SET", key, json.dumps(self._totals), b"PX", kept_ms)
                await self._client.call_key(b"DEL", self._client.key("claim:counts"))
                return self._totals
            await asyncio.sleep(POLL_S)
        sessions, topics, largest = json.loads(shared)
        self._totals = Totals(sessions, topics, [tuple(origin) for origin in largest])
        return self._totals

    async def _count_all(self) -> Totals:
        totals = Totals(0, 0, [])
        origins = await self.origins()
        began_s = self._loop.time()
        for first in range(0, len(origins), STEP):
            # An origin costs a command for each partition, and one address can publish in thousands of origins.
            worked_s = self._loop.time() - began_s
            if worked_s > WORK_S:
                await asyncio.sleep(PAUSES * worked_s)
                await self._claim()  # renews it
                began_s = self._loop.time()
            step = origins[first : first + STEP]
            sizes = map(_sum, await asyncio.gather(*map(self._read, step)))
            counted = [(origin, *size) for origin, size in zip(step, sizes, strict=True) if size[0]]
            totals = Totals(
                totals.sessions + sum(size[1] for size in counted),
                totals.topics + sum(size[2] for size in counted),
                heapq.nlargest(LARGEST, [*totals.largest, *counted], key=operator.itemgetter(1)),
            )
        return totals

    async def _claim(self) -> bool:
        return await self._client.claim("counts", CLAIM_MS)


def _sum(sizes: Sizes) -> tuple[int, int]:
    return sum(sessions for sessions, _ in sizes), sum(topics for _, topics in sizes)
