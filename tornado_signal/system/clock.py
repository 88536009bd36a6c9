"""The server's time: the wall clock, except that it never goes backwards or stops."""

import email.utils
import logging
import time
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

MAX_DIFFERENCE_S: Final = 60.0  # between the store's time and the wall clock without a warning


class ClockWarning:
    """Logs when the store's time and the wall clock begin to differ, and when they agree again."""

    def __init__(self, ahead_s: Callable[[], float]) -> None:
        self._ahead_s = ahead_s
        self._differs = False

    def check(self) -> None:
        ahead_s = self._ahead_s()
        differs = abs(ahead_s) >= MAX_DIFFERENCE_S
        if differs and not self._differs:
            log.warning(
                "the time of the store is %.0f s %s this machine's clock: sessions expire by the store's time; "
                "correct the clock if it is wrong",
                abs(ahead_s),
                "ahead of" if ahead_s > 0 else "behind",
            )
        elif self._differs and not differs:
            log.info("the time of the store agrees with this machine's clock again")
        self._differs = differs


class Clock:
    """Unix time in milliseconds that only advances.

    It follows the wall clock when that is ahead. The wall clock may be set back, or be behind the latest time in the
    store. Then this clock continues from its latest time at the pace of the monotonic clock, so that sessions still
    expire (docs/decisions.md#clock-changes).
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._ahead_ns = -monotonic_ns()
        self._date_s = 0
        self._date = ""

    def advance_to(self, floor_ms: int) -> None:
        """Return no time earlier than `floor_ms` from now on."""
        self._ahead_ns = max(self._ahead_ns, floor_ms * 1_000_000 - self._monotonic_ns())

    def now_ms(self) -> int:
        wall_ns = self._wall_ns()  # first: otherwise a pause between the two would be added to the time for ever
        monotonic_ns = self._monotonic_ns()
        if wall_ns - monotonic_ns > self._ahead_ns:
            self._ahead_ns = wall_ns - monotonic_ns
        return (monotonic_ns + self._ahead_ns) // 1_000_000

    def wall_s(self) -> float:
        """Return the Unix time of the wall clock in seconds, which other machines share and which can be set back."""
        return self._wall_ns() / 1e9

    def ahead_s(self) -> float:
        """Return how far this clock is ahead of the wall clock in seconds, 0 unless that was set back."""
        return self.now_ms() / 1000 - self.wall_s()

    def http_date(self, now_ms: int) -> str:
        """Return `now_ms` as an HTTP Date header, formatted at most once a second."""
        now_s = now_ms // 1000
        if now_s != self._date_s:
            self._date_s = now_s
            self._date = email.utils.formatdate(now_s, usegmt=True)
        return self._date
