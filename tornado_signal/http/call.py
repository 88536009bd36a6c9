"""One call of a client, over any protocol: what it may ask for, and what is counted of it."""

import logging
from time import perf_counter

from tornado.iostream import StreamClosedError

from .. import errors
from ..stores.watches import Watch
from .errors import STATUS
from .site import Site

log = logging.getLogger(__name__)


class ClientCall:
    """One call. It is the `Call` of its operation; see there.

    Args:
        site: what all calls share.
        client_address: of the client that it is from.
        method: how it came, as logs and metrics name it.
        pattern: what it is for, as logs and metrics name it.

    Attributes:
        client: stands for the client that it is from.
        request_id: its name.
        status: of its response, as HTTP has it.
        sent_bytes: how much was sent of that.
        refused_for: why it was refused, if it was.
        waited: whether it has waited for news.
    """

    origin = ""
    now_ms = 0
    request_id = ""
    status = 0
    sent_bytes = 0
    refused_for = ""
    waited = False
    _ended = False
    _watch: Watch | None = None

    def __init__(self, site: Site, client_address: str, method: str, pattern: str) -> None:
        self.site = site
        self.service = site.service
        self.client_address = client_address
        self.method = method
        self.pattern = pattern
        self.client = site.limits.client(client_address)
        self.began_s = perf_counter()
        site.running += 1

    # What it may ask for

    def admit_session(self) -> None:
        self.site.limits.publish(self.client_address, self.now_ms)

    def admit_bytes(self, size: int) -> None:
        self.site.limits.store(self.client_address, size, self.now_ms)

    def waiting(self, watch: Watch) -> Watch:
        """Tie a watch to the client's connection."""
        try:
            self.site.limits.wait(self.client_address)
        except errors.SignalError:
            watch.close()
            raise
        watch.on_close = self._wait_over
        self._watch = watch
        self.waited = True
        self.site.log.metrics.waiting[self.pattern] += 1
        return watch

    def _wait_over(self) -> None:
        self.site.limits.waited(self.client_address)

    def client_gone(self) -> None:
        """The client has left: what waits for it need not."""
        if self._watch is not None:
            self._watch.close()

    async def turn(self) -> None:
        await self.site.turns.turn(self.client)
        self.now_ms = self.service.clock.now_ms()

    # What is counted of it

    def count_error(self, error: BaseException) -> None:
        """Count an error and, if it is a defect, log it; without what the call carries: it is people's addresses."""
        if isinstance(error, errors.SignalError):
            self.refused_for = error.reason
            self.site.log.refused(STATUS[type(error)], error.reason)
        elif not isinstance(error, StreamClosedError):
            self.site.log.failed()
            log.error("%s %s failed: request %s", self.method, self.pattern, self.request_id, exc_info=error)

    def ended(self) -> None:
        """It has come to its end, and its response with it."""
        if self._ended:  # as by an error behind the response
            return
        self._ended = True
        log, seconds = self.site.log, perf_counter() - self.began_s
        kind = (self.pattern, self.method, self.status)
        if self.waited:
            log.metrics.waiting[self.pattern] -= 1
            log.metrics.waits[kind].observe(seconds)
        else:
            log.metrics.requests[kind].observe(seconds)
        allowed = self.service.settings.allowed_origins
        if allowed is not None and (entry := allowed.find(self.origin)) is not None:
            log.metrics.by_origin[entry, self.pattern, self.status] += 1
        if log.written:
            line = {"method": self.method, "endpoint": self.pattern, "status": self.status}
            line |= {"ms": round(seconds * 1000, 3), "bytes": self.sent_bytes, "id": self.request_id}
            log.finished(line, self.refused_for, self.client_address)
        self.site.running -= 1
        if self.site.draining and not self.site.running:
            self.site.idle.set()
