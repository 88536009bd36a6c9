"""How late the event loop is, looked at ten times a second."""

import asyncio
import time

from ..metrics import Histogram

PAUSE_S = 0.1


class Lag:
    """Looks at the clock again and again, and by how much each look comes too late. Needs a running event loop.

    Args:
        seconds: where it counts.
    """

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._book()

    def stop(self) -> None:
        """Look no more."""
        self._next.cancel()

    def _book(self) -> None:
        self._due_s = time.monotonic() + PAUSE_S  # the loop's own clock stands still while it works
        self._next = self._loop.call_later(PAUSE_S, self._look)

    def _look(self) -> None:
        self._seconds.observe(max(0.0, time.monotonic() - self._due_s))
        self._book()
