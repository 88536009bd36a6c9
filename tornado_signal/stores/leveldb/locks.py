"""Locks of sessions, which keep the changes of one session in order until they are on disk."""

import asyncio
from collections import deque
from collections.abc import Collection
from typing import Final

MAX_SHARED: Final = 100  # changes that are granted one lock; further ones wait, so that an iteration stays short


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


class LockToken:
    """The right to change a session in the current event-loop iteration.

    An entered token becomes the session's lock, unless the session already has one.
    """

    __slots__ = ("appends", "count", "iteration", "key", "waiting")

    def __init__(self, key: bytes, appends: bool, iteration: int) -> None:
        self.key = key  # the key of the session
        self.appends = appends  # whether the changes that hold the lock only append
        self.iteration = iteration  # the event-loop iteration in which it was granted
        self.count = 0  # the number of changes that hold the lock
        # For each waiting change, in order, a future and whether the change only appends.
        self.waiting: deque[tuple[asyncio.Future[None], bool]] = deque()

    @property
    def _has_room(self) -> bool:
        """Whether another change that only appends can share the lock."""
        return self.appends and self.count < MAX_SHARED

    def advance(self) -> None:
        """Pass the lock to the first waiting change, and to following ones that only append like it."""
        while self.waiting and (not self.count or (self._has_room and self.waiting[0][1])):
            granted, self.appends = self.waiting.popleft()
            if not granted.done():
                self.count += 1
                granted.set_result(None)


class SessionLocks:
    """The locks of all sessions with uncommitted changes.

    Changes that only append can share the lock. Any other change is exclusive. The order is strict: otherwise endless
    appends could keep an answer waiting forever.
    """

    def __init__(self) -> None:
        self._locks: dict[bytes, LockToken] = {}
        self._iteration = LoopIteration()

    async def acquire(self, key: bytes, *, appends: bool = False) -> LockToken:
        """Wait until a change of this session can be decided, and return its token."""
        lock = self._locks.get(key)
        if lock is not None and not (appends and lock.appends and not lock.waiting):
            loop = asyncio.get_running_loop()
            granted: asyncio.Future[None] = loop.create_future()
            lock.waiting.append((granted, appends))
            try:
                await granted
            finally:
                if granted.done() and not granted.cancelled():
                    # Release the lock once the token has been entered or dropped.
                    loop.call_soon(self.release, (lock,))
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
            self._locks.setdefault(token.key, token).count += 1

    def release(self, tokens: Collection[LockToken]) -> None:
        """Unlock sessions whose change has been committed or has failed."""
        for token in tokens:
            lock = self._locks[token.key]
            lock.count -= 1
            if lock.waiting:
                lock.advance()
            if not lock.count:
                del self._locks[token.key]
