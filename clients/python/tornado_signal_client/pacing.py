"""Pauses between attempts and between polls."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .errors import SignalError

T = TypeVar("T")

PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
MIN_POLL_S = 0.1  # between two polls of the same listing or session, after a burst
POLL_BURST = 20  # polls without a pause
POLL_S = 0.5  # between two polls of a server without long polling
WAIT_S = 45.0  # the server ends longer waits, because many proxies time out after 50 s


def back_off_s(attempt: int, first_s: float = PAUSE_S) -> float:
    """Return the seconds before the next attempt: longer with each `attempt` from 0, and random to spread clients."""
    pause_s: float = min(MAX_PAUSE_S, first_s * 2.0 ** min(attempt, 10))
    return pause_s * random.uniform(0.5, 1.5)


async def retry(task: Callable[[], Awaitable[T]], first_s: float = PAUSE_S) -> T:
    """Run a task, and again after each error that is retryable. Return its result, or raise another error."""
    attempt = 0
    while True:
        try:
            return await task()
        except SignalError as error:
            if not error.retryable:
                raise
        await asyncio.sleep(back_off_s(attempt, first_s))
        attempt += 1


class Pace:
    """Limits the rate of polls, because a server can respond to each at once. A burst is not delayed."""

    def __init__(self) -> None:
        self._next_s = 0.0

    async def wait(self, cursor: str | None) -> None:
        """Wait until the next poll is due. A server that sent no cursor responds to it at once."""
        now_s = time.monotonic()
        self._next_s = max(self._next_s, now_s - POLL_BURST * MIN_POLL_S) + MIN_POLL_S
        pause_s = 0.0 if cursor else back_off_s(0, POLL_S)
        await asyncio.sleep(max(pause_s, self._next_s - now_s))
