"""Locks of sessions, which keep the changes of one session in order until they are on disk."""

import asyncio
from collections import deque
from types import TracebackType


class SessionLocks:
    """The locks of sessions that are being changed. Waiting changes are in order.

    A change that only appends waits for the others, and keeps no other waiting, because writes are in order.
    """

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[asyncio.Future[None]]] = {}  # by the key of each locked session

    async def acquire(self, key: bytes) -> "SessionLock":
        """Lock a session, after all changes that came before."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = deque()
            return SessionLock(self, key)
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was granted before
                self.release(key)
            raise
        return SessionLock(self, key)

    def held(self, key: bytes) -> bool:
        return key in self._waiting

    def release(self, key: bytes) -> None:
        """Unlock a session, or pass its lock to the first change that waits."""
        waiting = self._waiting[key]
        while waiting:
            granted = waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        del self._waiting[key]


class SessionLock:
    """A locked session. The lock is released at the end of the `with` block, or if `writing`, after the write."""

    __slots__ = ("_locks", "key", "writing")

    def __init__(self, locks: SessionLocks, key: bytes) -> None:
        self._locks = locks
        self.key = key
        self.writing = False  # whether a change was submitted, and its commit or failure releases the lock

    def release(self) -> None:
        self._locks.release(self.key)

    def __enter__(self) -> "SessionLock":
        return self

    def __exit__(self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if not self.writing:
            self._locks.release(self.key)
