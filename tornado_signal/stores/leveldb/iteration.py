"""Event-loop iterations. Code that reads and then writes without an `await` is atomic within one of them."""

import asyncio
from collections.abc import Callable


class LoopIteration:
    """Numbers the event-loop iterations in which `current` is called.

    A callback ends the iteration. It runs before any task that starts to wait after the call of `current`.
    """

    def __init__(self) -> None:
        self.number = 0  # the number of the current iteration
        self.on_end: Callable[[], None] = lambda: None  # called at the end of an iteration
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
        self.on_end()
