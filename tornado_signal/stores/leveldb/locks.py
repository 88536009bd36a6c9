"""Locks of sessions, which keep the changes of one session in order until they are on disk."""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import NamedTuple


class LoopIteration:
    """Numbers the event-loop iterations in which `current` is called.

    A callback ends the iteration. It runs before any task that starts to wait after the call of `current`.
    """

    def __init__(self) -> None:
        self.number = 0  # the number of the current iteration
        self._loop = asyncio.get_running_loop()
        self._begun = False

    def current(self) -> int:
        """Return the number of the current iteration. It is different after an `await` that has waited."""
        if not self._begun:
            self._begun = True
            self._loop.call_soon(self._end)
        return self.number

    def _end(self) -> None:
        self._begun = False
        self.number += 1


class LockToken(NamedTuple):
    """The right to change a session in the current event-loop iteration."""

    key: bytes  # the key of the session
    appends: bool  # whether the change only appends. It keeps no other waiting, because writes are in order
    iteration: int  # the event-loop iteration in which it was granted


class _Lock:
    __slots__ = ("count", "waiting")

    def __init__(self) -> None:
        self.count = 0  # the number of changes that hold it: one that is being written, or that was granted it
        self.waiting: deque[asyncio.Future[None]] = deque()


class SessionLocks:
    """The locks of sessions with uncommitted changes, except those that only append. Waiting changes are in order."""

    def __init__(self) -> None:
        self._locks: dict[bytes, _Lock] = {}
        self._iteration = LoopIteration()

    async def acquire(self, key: bytes, *, appends: bool = False) -> LockToken:
        """Wait until a change of this session can be decided, and return its token."""
        lock = self._locks.get(key)
        if lock is not None:
            loop = asyncio.get_running_loop()
            granted: asyncio.Future[None] = loop.create_future()
            lock.waiting.append(granted)
            try:
                await granted
            finally:
                if granted.done() and not granted.cancelled():
                    # Release the lock once the token has been entered or dropped.
                    loop.call_soon(self._release, key)
        return LockToken(key, appends, self._iteration.current())

    def try_acquire(self, key: bytes, *, appends: bool = False) -> LockToken | None:
        """Return a token for a session that no other change holds, or None: then `acquire` waits."""
        return None if key in self._locks else LockToken(key, appends, self._iteration.current())

    def held(self, key: bytes) -> bool:
        return key in self._locks

    def enter(self, tokens: Collection[LockToken]) -> None:
        """Lock sessions until `release`. Raise RuntimeError if an `await` came after `acquire`.

        Another change may have been decided since.
        """
        number = self._iteration.number
        for token in tokens:
            if token.iteration != number:
                raise RuntimeError("a session's lock must be entered before the next await")
        for token in tokens:
            if not token.appends:
                self._locks.setdefault(token.key, _Lock()).count += 1

    def release(self, tokens: Collection[LockToken]) -> None:
        """Unlock sessions whose change has been committed or has failed."""
        for token in tokens:
            if not token.appends:
                self._release(token.key)

    def _release(self, key: bytes) -> None:
        lock = self._locks[key]
        lock.count -= 1
        while lock.waiting and not lock.count:
            granted = lock.waiting.popleft()
            if not granted.done():
                lock.count += 1
                granted.set_result(None)
        if not lock.count:
            del self._locks[key]
