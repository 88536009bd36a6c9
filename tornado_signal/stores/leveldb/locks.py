"""Locks of sessions: they keep the changes of one session from overtaking each other on their way to the disk."""

import asyncio
from collections.abc import Iterable


class _Lock:
    """The lock of one session: the changes that hold it, and those that wait, the first to come first.

    Attributes:
        appends: whether those that hold it only append.
        count: how many they are.
        waiting: a future for each that waits, and whether that one only appends.
    """

    __slots__ = ("appends", "count", "waiting")

    def __init__(self, appends: bool) -> None:
        self.appends = appends
        self.count = 0
        self.waiting: list[tuple[asyncio.Future[None], bool]] = []

    def advance(self) -> None:
        """Give it to the first that waits, and if that one only appends, to those that may join it."""
        while self.waiting and (not self.count or (self.appends and self.waiting[0][1])):
            turn, self.appends = self.waiting.pop(0)
            if not turn.done():
                self.count += 1
                turn.set_result(None)


class SessionLocks:
    """The sessions that have changes asked for but not yet settled.

    A change that only appends may join others that only append; any other has the session to itself. None
    overtakes: appends without end would shut out an answer for ever.
    """

    def __init__(self) -> None:
        self._locks: dict[bytes, _Lock] = {}

    async def acquire(self, key: bytes, *, appends: bool = False) -> None:
        """Wait until a change of this session may be decided. It must be held before the next `await`."""
        lock = self._locks.get(key)
        if lock is None or (appends and lock.appends and not lock.waiting):
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        lock.waiting.append((turn, appends))
        try:
            await turn
        finally:
            if turn.done() and not turn.cancelled():
                # Held for the one that waited here, until that has held it itself or has decided to change nothing.
                loop.call_soon(self.release, (key,))

    def held(self, key: bytes) -> bool:
        """Whether a change of this session is on its way."""
        return key in self._locks

    def hold(self, keys: Iterable[bytes], *, appends: bool = False) -> None:
        """Count a change of these sessions as on its way; goes with one `release`."""
        for key in keys:
            lock = self._locks.get(key)
            if lock is None:
                lock = self._locks[key] = _Lock(appends)
            lock.count += 1

    def release(self, keys: Iterable[bytes]) -> None:
        """A change for which they were held has been committed, or has failed."""
        for key in keys:
            lock = self._locks[key]
            lock.count -= 1
            if lock.waiting:
                lock.advance()
            if not lock.count:
                del self._locks[key]
