"""Locks of sessions: they keep the changes of one session from overtaking each other on their way to the disk."""

import asyncio
from collections.abc import Collection

from .turn import Turn


class Token:
    """The right to change a session in the current turn of the event loop.

    Once it is entered, it is the session's lock, unless there is one already.

    Attributes:
        key: of the session.
        appends: whether the changes that hold the lock only append.
        turn: in which it was granted.
        count: how many changes hold the lock.
        waiting: a future for each change that waits, in their order, and whether that only appends.
    """

    __slots__ = ("appends", "count", "key", "turn", "waiting")

    def __init__(self, key: bytes, appends: bool, turn: int) -> None:
        self.key = key
        self.appends = appends
        self.turn = turn
        self.count = 0
        self.waiting: list[tuple[asyncio.Future[None], bool]] = []

    def advance(self) -> None:
        """Give the lock to the first change that waits and, if that only appends, to those that may join it."""
        while self.waiting and (not self.count or (self.appends and self.waiting[0][1])):
            turn, self.appends = self.waiting.pop(0)
            if not turn.done():
                self.count += 1
                turn.set_result(None)


class SessionLocks:
    """The sessions that have changes which are requested and not committed.

    A change that only appends may join others that only append. Any other has the session to itself. Nothing
    overtakes: endless appends would shut out an answer for ever.
    """

    def __init__(self, turn: Turn) -> None:
        self._locks: dict[bytes, Token] = {}
        self._turn = turn

    async def acquire(self, key: bytes, *, appends: bool = False) -> Token:
        """Wait until a change of this session may be decided."""
        lock = self._locks.get(key)
        if lock is not None and not (appends and lock.appends and not lock.waiting):
            loop = asyncio.get_running_loop()
            turn: asyncio.Future[None] = loop.create_future()
            lock.waiting.append((turn, appends))
            try:
                await turn
            finally:
                if turn.done() and not turn.cancelled():
                    # Held until a token is entered, or dropped because nothing is changed.
                    loop.call_soon(self.release, (lock,))
        return Token(key, appends, self._turn.current())

    def try_acquire(self, key: bytes) -> Token | None:
        """Return a token for a session that has no change on its way; otherwise None."""
        return None if key in self._locks else Token(key, False, self._turn.current())

    def held(self, key: bytes) -> bool:
        """Return whether a change of this session is on its way."""
        return key in self._locks

    def enter(self, tokens: Collection[Token]) -> None:
        """Hold sessions until `release`.

        Raises:
            RuntimeError: an `await` came between the token and this; another change may have been decided meanwhile.
        """
        number = self._turn.number
        for token in tokens:
            if token.turn != number:
                raise RuntimeError("a session's lock must be entered before the next await")
        for token in tokens:
            self._locks.setdefault(token.key, token).count += 1

    def release(self, tokens: Collection[Token]) -> None:
        """Release sessions whose change has been committed, or has failed."""
        for token in tokens:
            lock = self._locks[token.key]
            lock.count -= 1
            if lock.waiting:
                lock.advance()
            if not lock.count:
                del self._locks[token.key]
