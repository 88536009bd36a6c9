"""What all requests share."""

import asyncio
import contextvars
import logging
import sys
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from ..api.call import Service
from ..limits.fair_queue import FairQueue
from ..limits.forwarded import trusted
from ..limits.per_address import Limits
from ..stores.latest_counts import LatestCounts
from .request_log import RequestLog

log = logging.getLogger(__name__)

# A task begins its work when it is made, where Python has that.
AT_ONCE: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


@dataclass(eq=False)
class Site:
    """What all requests share. Needs a running event loop.

    Attributes:
        service: what all calls of operations share.
        limits: what clients may ask for.
        log: what becomes of the requests.
        stopping: whether it is not ready for new clients; those that are here are served as ever.
        draining: whether every further request is refused.
        running: how many requests are being worked on, or are about to be.
        idle: set when none is, once it drains.
        queue: begins their work, one client after the other.
        turns: lets work go on that has waited; what thousands are told of holds up no new request.
        counts: what the store holds, for the operator.
        proxy_reported: whether a proxy whose clients have no limits has been logged.
    """

    service: Service
    limits: Limits
    log: RequestLog
    stopping: bool = False
    draining: bool = False
    running: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    queue: FairQueue = field(default_factory=FairQueue)
    turns: FairQueue = field(default_factory=FairQueue)
    counts: LatestCounts = field(init=False)
    proxy_reported: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _context: contextvars.Context = field(default_factory=contextvars.copy_context)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.counts = LatestCounts(self.service.store)

    def report_proxy(self, address: str) -> None:
        """Log once that a proxy, at an address without limits of its own, is not a trusted one."""
        if not (self.limits.limits_address(address) or trusted(address, self.service.settings.trusted_proxies)):
            self.proxy_reported = True
            log.warning(
                "a proxy that --trusted-proxies does not name forwards requests; "
                "its clients have no limits per address, because its own address has none"
            )

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Start work for a client; whatever starts it, its context variables are its own."""
        task = asyncio.Task(work, loop=self._loop, context=self._context.copy(), **AT_ONCE)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Take no more requests (503) and wait for the answers of those that are being worked on."""
        self.draining = True
        self.service.store.end_watches()
        if self.running:
            await self.idle.wait()
        if self._tasks:  # several answers may go in one message, after the last of them
            await asyncio.wait(self._tasks)
