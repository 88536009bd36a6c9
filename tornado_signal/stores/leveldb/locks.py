"""Whose turn it is: keeps the changes of one session from overtaking each other on their way to the disk."""

import asyncio
from collections.abc import Iterable


class _Line:
    """Who has the turn of one session, and who waits for it, the first to come first.

    Attributes:
        appends: whether those who have it only append.
        count: how many they are.
        waiting: a future for each who waits, and whether that one only appends.
    """

    __slots__ = ("appends", "count", "waiting")

    def __init__(self, appends: bool) -> None:
        self.appends = appends
        self.count = 0
        self.waiting: list[tuple[asyncio.Future[None], bool]] = []

    def advance(self) -> None:
        """Give the turn to the first who waits, and if that one only appends, to those who may join it."""
        while self.waiting and (not self.count or (self.appends and self.waiting[0][1])):
            turn, self.appends = self.waiting.pop(0)
            if not turn.done():
                self.count += 1
                turn.set_result(None)


class Turns:
    """The sessions that have changes asked for but not yet settled.

    A change that only appends may join others that only append; any other has the session to itself. Nobody
    overtakes: appends without end would shut out an answer for ever.
    """

    def __init__(self) -> None:
        self._lines: dict[bytes, _Line] = {}

    async def mine(self, key: bytes, *, appends: bool = False) -> None:
        """Wait until a change of this session may be decided. It must be taken before the next `await`."""
        line = self._lines.get(key)
        if line is None or (appends and line.appends and not line.waiting):
            return
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        line.waiting.append((turn, appends))
        try:
            await turn
        finally:
            if turn.done() and not turn.cancelled():
                # Held for whoever waited here, until that one has taken it or has decided to change nothing.
                loop.call_soon(self.release, (key,))

    def taken(self, key: bytes) -> bool:
        """Whether anyone has a change of this session on its way."""
        return key in self._lines

    def take(self, keys: Iterable[bytes], *, appends: bool = False) -> None:
        """Count a change of these sessions as on its way; goes with one `release`."""
        for key in keys:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = _Line(appends)
            line.count += 1

    def release(self, keys: Iterable[bytes]) -> None:
        """A change that was taken has been committed, or has failed."""
        for key in keys:
            line = self._lines[key]
            line.count -= 1
            if line.waiting:
                line.advance()
            if not line.count:
                del self._lines[key]
