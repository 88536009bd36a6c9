"""Whose turn it is: keeps the changes of one session from overtaking each other on their way to the disk."""

import asyncio
from collections.abc import Iterable


class _Pending:
    __slots__ = ("appends", "count", "released")

    def __init__(self, appends: bool) -> None:
        self.appends = appends
        self.count = 0
        self.released: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Turns:
    """The sessions that have changes asked for but not yet settled.

    A change that only appends may join others that only append; any other has the session to itself.
    """

    def __init__(self) -> None:
        self._pending: dict[bytes, _Pending] = {}

    async def mine(self, key: bytes, *, appends: bool = False) -> None:
        """Wait until a change of this session may be decided. It must be taken before the next `await`."""
        while (pending := self._pending.get(key)) and not (appends and pending.appends):
            await asyncio.shield(pending.released)

    def taken(self, key: bytes) -> bool:
        """Whether anyone has a change of this session on its way."""
        return key in self._pending

    def take(self, keys: Iterable[bytes], *, appends: bool = False) -> None:
        """Count a change of these sessions as on its way; goes with one `release`."""
        for key in keys:
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = _Pending(appends)
            pending.count += 1

    def release(self, keys: Iterable[bytes]) -> None:
        """A change that was taken has been committed, or has failed."""
        for key in keys:
            pending = self._pending[key]
            pending.count -= 1
            if not pending.count:
                del self._pending[key]
                pending.released.set_result(None)
