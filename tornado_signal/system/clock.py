"""The server's time: the wall clock's, except that it never goes backwards and never stands still."""

import email.utils
import time
from collections.abc import Callable


class Clock:
    """Unix time in milliseconds that only ever advances.

    It follows the wall clock when that is ahead. When the wall clock has been put back, or is behind what the
    store has seen before a restart, it goes on from where it was at the pace of the monotonic clock, so that
    sessions still expire (contract B10, B11).
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._ahead_ns = -monotonic_ns()
        self._date_s = 0
        self._date = ""

    def advance_to(self, floor_ms: int) -> None:
        """Show no earlier time than this one from now on."""
        self._ahead_ns = max(self._ahead_ns, floor_ms * 1_000_000 - self._monotonic_ns())

    def now_ms(self) -> int:
        wall_ns = self._wall_ns()  # first: else a pause between the two would be added to the time for ever
        monotonic_ns = self._monotonic_ns()
        self._ahead_ns = max(self._ahead_ns, wall_ns - monotonic_ns)
        return (monotonic_ns + self._ahead_ns) // 1_000_000

    def http_date(self, now_ms: int) -> str:
        """The time now, as it was read, in the form of an HTTP Date header; made once a second."""
        now_s = now_ms // 1000
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = email.utils.formatdate(now_s, usegmt=True)
        return self._date
