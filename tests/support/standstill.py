"""How long one event-loop iteration keeps all others waiting."""

import asyncio
import time


class Standstill:
    """Measures each iteration of the running event loop, until the end of the `with` block.

    The time is processor time of the thread, so a busy machine changes nothing.

    Attributes:
        longest_s: the time of the longest iteration.
        total_s: the time of all iterations.
    """

    def __enter__(self):
        self.longest_s = self.total_s = 0.0
        self._at_s = time.thread_time()
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._iterate)
        return self

    def __exit__(self, *_):
        self._next.cancel()
        self._measure()

    def _iterate(self):
        self._next = self._loop.call_soon(self._iterate)
        self._measure()

    def _measure(self):
        now_s = time.thread_time()
        self.longest_s = max(self.longest_s, now_s - self._at_s)
        self.total_s += now_s - self._at_s
        self._at_s = now_s
