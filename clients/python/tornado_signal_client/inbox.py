"""Messages of other peers that the program has not read yet."""

import asyncio
import logging
import sys
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

MAX_UNREAD_BYTES: Final = 16 << 20
LARGE_BYTES: Final = 1 << 20  # of an item that is not counted in `MAX_UNREAD_BYTES`
MAX_LARGE_BYTES: Final = 256 << 20  # of all unread large items: text that is not ASCII needs more than it has in UTF-8
ITEM_BYTES: Final = 512  # memory of an item beyond its data

T = TypeVar("T")


class Inbox(Generic[T]):
    """Received items in order, until the program reads them.

    aiortc cannot pause a sender. So data that exceeds `MAX_UNREAD_BYTES` is dropped, and the first time it is logged.
    Large items have a limit of their own, so that small ones are not dropped after them.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: asyncio.Queue[tuple[T, int]] = asyncio.Queue()
        self._bytes = self._large_bytes = 0

    def put(self, item: T, data: str | bytes) -> bool:
        """Add an item with data of another peer, or drop it. Return whether it was added."""
        size = ITEM_BYTES + sys.getsizeof(data)
        large = size > LARGE_BYTES
        if self._large_bytes + size > MAX_LARGE_BYTES if large else self._bytes + size > MAX_UNREAD_BYTES:
            if not self.dropped:
                unread_bytes = self._bytes + self._large_bytes
                log.warning("messages are dropped, because the program has %d bytes of them to read", unread_bytes)
            self.dropped += 1
            return False
        self._count(size)
        self._queue.put_nowait((item, size))
        return True

    def put_always(self, item: T) -> None:
        """Add a small item."""
        self._queue.put_nowait((item, 0))

    async def get(self) -> T:
        """Wait for the next item, and remove it."""
        item, size = await self._queue.get()
        self._count(-size)
        return item

    def _count(self, size: int) -> None:
        if abs(size) > LARGE_BYTES:
            self._large_bytes += size
        else:
            self._bytes += size
