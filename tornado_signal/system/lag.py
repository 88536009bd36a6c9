"""The lag of the event loop, measured ten times a second."""

import asyncio
import time

from ..metrics import Histogram

PAUSE_S = 0.1


class Lag:
    """Measures how late timers fire, in seconds. Needs a running event loop."""

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def stop(self) -> None:
        self._next.cancel()

    def _schedule(self) -> None:
        self._due_s = time.monotonic() + PAUSE_S  # the loop's own clock does not advance while it runs callbacks
        self._next = self._loop.call_later(PAUSE_S, self._measure)

    def _measure(self) -> None:
        self._seconds.observe(max(0.0, time.monotonic() - self._due_s))
        self._schedule()
