"""One turn of the event loop, in which nothing else runs: between reading and writing there is no `await`."""

import asyncio
from collections.abc import Callable


class Turn:
    """The turns of the event loop in which somebody asked for the current one.

    A callback ends the turn. It runs before anything that waits after it was asked for.

    Attributes:
        number: of the current turn.
        on_end: called at the end of a turn.
    """

    def __init__(self) -> None:
        self.number = 0
        self.on_end: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()
        self._begun = False

    def current(self) -> int:
        """Return the number of the current turn, which is another one after an `await` that has waited."""
        if not self._begun:
            self._begun = True
            self._loop.call_soon(self._end)
        return self.number

    def _end(self) -> None:
        self._begun = False
        self.number += 1
        self.on_end()
