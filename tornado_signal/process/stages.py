"""The stages of the stop: the open parts of a process are closed in reverse order, each within its limit."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from .draining import REQUESTS_S

log = logging.getLogger(__name__)

# The time limits in seconds, in the order in which the parts are closed. The service manager has to wait longer than
# all of them together.
LIMITS_S: Final = {
    "requests": REQUESTS_S,
    "service manager": 1.0,
    "supervisor": 1.0,
    "admin listener": 1.0,
    "operator": 2.0,
    "public listener": 1.0,
    "garbage collection": 1.0,
    "webhooks": 2.5,
    "relay": 1.5,
    "sockets": 1.0,
    "store": 5.0,
    "spans": 2.5,
}

Close = Callable[[], Awaitable[None]]


class Stages:
    """The open parts of a process.

    A part that fails to close in time is logged, and the others are closed nevertheless.
    """

    def __init__(self) -> None:
        self._opened: list[tuple[str, Close]] = []

    def opened(self, name: str, close: Close) -> None:
        """Add a part. `name` is a key of `LIMITS_S`, before that of the previous part."""
        order = list(LIMITS_S)
        assert not self._opened or order.index(name) < order.index(self._opened[-1][0]), name
        self._opened.append((name, close))

    async def close(self) -> None:
        """Close all parts, the latest first."""
        while self._opened:
            name, close = self._opened.pop()
            try:
                async with asyncio.timeout(LIMITS_S[name]):
                    await close()
            except TimeoutError:
                log.error("stopping: %s not closed within %g s; continuing without it", name, LIMITS_S[name])
            except Exception:
                log.exception("stopping: cannot close %s", name)
