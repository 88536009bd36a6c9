"""What all requests share."""

import asyncio
from dataclasses import dataclass, field

from ..api.call import Service
from ..limits.fair_queue import FairQueue
from ..limits.per_address import Limits
from .request_log import RequestLog


@dataclass
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
    """

    service: Service
    limits: Limits
    log: RequestLog
    stopping: bool = False
    draining: bool = False
    running: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    queue: FairQueue = field(default_factory=FairQueue)

    async def drain(self) -> None:
        """Take no more requests (503) and wait for the answers of those that are being worked on."""
        self.draining = True
        self.service.store.end_watches()
        if self.running:
            await self.idle.wait()
