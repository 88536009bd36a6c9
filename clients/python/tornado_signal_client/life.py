"""Whether a client can be used, whether its servers respond, and whether the computer has slept."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Final

from .errors import SLOW, SignalError, Unreachable

OUTAGE_S: Final = 5.0  # an outage is reported after this time without a response
PULSE_S: Final = 5.0  # between two beats. A beat that is late by as much follows a sleep

log = logging.getLogger(__name__)


def awake_s() -> float:
    """Return the time of a clock that also counts while the computer sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Life:
    """The life of a client from its first use to its end, in one event loop."""

    def __init__(self, on_wake: Callable[[], None]) -> None:
        self._on_wake = on_wake
        self._loop: asyncio.AbstractEventLoop | None = None  # of the first use
        self._closed = False
        self._beat: asyncio.TimerHandle | None = None

    def check(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
            self._schedule(loop)
        if self._loop is not loop:
            raise RuntimeError("a client works in one event loop: create one in each asyncio.run and each thread")

    def end(self) -> bool:
        """End the life. Return whether there are connections to close in this event loop."""
        if self._beat is not None:
            self._beat.cancel()
        is_used = not self._closed and self._loop is not None and not self._loop.is_closed()
        if is_used:
            self.check()
        self._closed = True
        return is_used

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = awake_s() + PULSE_S

        def beat() -> None:
            self._schedule(loop)
            if awake_s() > due_s + PULSE_S:
                self._on_wake()

        self._beat = loop.call_later(PULSE_S, beat)


class Outage:
    """Reports that no server has accepted a request for `OUTAGE_S`, once until a server does."""

    def __init__(self) -> None:
        self.listeners: set[Callable[[SignalError], None]] = set()  # called with the last error
        self.error: SignalError | None = None  # of the last request, or None if a server has accepted one since
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def watch(self, server: str, *, waits: bool = False) -> Iterator[None]:
        """Note the outcome of a request. `waits` is whether a working server may respond late."""
        if not waits:
            self._start_timer(server)
        try:
            yield
        except SignalError as error:
            if error.retryable:
                self.error = error
                self._start_timer(server)
            else:
                self.end()
            raise
        except BaseException:  # a cancellation
            if self.error is None:
                self.end()
            raise
        self.end()

    def end(self) -> None:
        """Note that a server has accepted a request, or that no more requests follow."""
        self.error = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, server: str) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(OUTAGE_S, self._report, server)

    def _report(self, server: str) -> None:
        self.error = self.error or Unreachable(server, SLOW)
        # The error can be of another server than the one that was requested first.
        reason = "the servers have refused requests" if self.error.status else "no server has responded"
        log.warning("%s for %g s: %s", reason, OUTAGE_S, self.error)
        for listener in list(self.listeners):
            listener(self.error)
