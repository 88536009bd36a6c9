"""Batches of topics' events, read and encoded once for any number of streams."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import NamedTuple

from ..session import Position

MAX_BATCHES = 8  # in total, of at most a megabyte or two each


Encode = Callable[[str, bytes, str], bytes]
"""Function that encodes an event for a protocol, from its type, its data as JSON, and the cursor after it.

The type is `session`, `offer`, `answer`, `candidate`, `gone` or `reset`. It is empty if only the cursor is new.
"""


class EncodedBatch(NamedTuple):
    """A batch of a topic's events, encoded for all readers of one protocol at the same position."""

    events: bytes  # the encoded events, or empty
    position: Position  # the position after these events
    more: bool  # whether further events are available now
    until_ms: float  # the earliest expiry of a session in it. The batch must not be sent from then on
    reset: bool  # whether it begins the listing again


class EventBatchCache:
    """A cache of the latest batches, by origin, topic, start position and protocol."""

    def __init__(self) -> None:
        self._batches: dict[Hashable, asyncio.Future[EncodedBatch | None]] = {}

    async def get(
        self,
        key: Hashable,
        now_ms: Callable[[], int],
        make: Callable[[], Awaitable[EncodedBatch]],
        turn: Callable[[], Awaitable[None]],
    ) -> EncodedBatch:
        """Return the cached batch for `key`, or make it. Concurrent callers share one computation.

        Callers that waited resume one at a time: `turn` waits for the caller's turn.
        """
        while (cached := self._batches.get(key)) is not None:
            if not cached.done():
                await asyncio.shield(cached)
                await turn()
            batch = cached.result()
            if batch is not None and now_ms() < batch.until_ms:
                return batch._replace(more=bool(batch.events))  # more may have happened since it was made
            self._forget(key, cached)
        new = self._batches[key] = asyncio.get_running_loop().create_future()
        batch = None
        try:
            batch = await make()
        finally:
            new.set_result(batch)
            if batch is None or not batch.events:  # the next read may find some
                self._forget(key, new)
        if len(self._batches) > MAX_BATCHES:
            del self._batches[next(iter(self._batches))]
        return batch

    def _forget(self, key: Hashable, batch: "asyncio.Future[EncodedBatch | None]") -> None:
        if self._batches.get(key) is batch:
            del self._batches[key]
