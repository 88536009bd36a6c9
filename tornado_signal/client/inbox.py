"""Messages of other peers that the program has not read yet."""

import asyncio
import logging
import sys
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 16 << 20
ITEM_BYTES: Final = 512  # memory of an item beyond its data

T = TypeVar("T")


class Inbox(Generic[T]):
    """Received items in order, until the program reads them.

    aiortc cannot pause a sender. So data that exceeds `MAX_UNREAD_BYTES` is dropped, and the first time it is logged.

    Attributes:
        dropped: the number of dropped items.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: asyncio.Queue[tuple[T, int]] = asyncio.Queue()
        self._bytes = 0

    def put(self, item: T, data: str | bytes) -> bool:
        """Add an item with data of another peer, or drop it. Return whether it was added."""
        size = ITEM_BYTES + sys.getsizeof(data)
        if self._bytes + size > MAX_UNREAD_BYTES:
            if not self.dropped:
                log.warning("messages are dropped, because the program has %d bytes of them to read", self._bytes)
            self.dropped += 1
            return False
        self._bytes += size
        self._queue.put_nowait((item, size))
        return True

    def put_always(self, item: T) -> None:
        """Add a small item."""
        self._queue.put_nowait((item, 0))

    async def get(self) -> T:
        """Wait for the next item, and remove it."""
        item, size = await self._queue.get()
        self._bytes -= size
        return item
