"""The context of one request of a client, over any protocol: admission, quotas, waits and metrics."""

import logging
from collections.abc import Awaitable, Callable
from time import perf_counter, time_ns
from typing import Final, Self

from tornado.iostream import StreamClosedError

from ..auth import ANY, Authority, Grant, ShownToken
from ..errors import OriginNotAllowed, SignalError, TooMany, Unauthorized, Unavailable
from ..limits.per_address import BLOCKED_RETRY_S, ClientCounts
from ..stores.watches import Watch
from ..system.lifecycle import DRAINING
from .request_log import RecordSpan, Span
from .service import MAX_SERVED, Service
from .statuses import STATUS

log = logging.getLogger(__name__)

BYTES_PER_UNIT: Final = 16 * 1024


def units_of(size: int) -> int:
    """Return how many requests a message or body counts as: one, and one more for each 16 KiB."""
    return 1 + size // BYTES_PER_UNIT


class RequestContext:
    """The context of one request. End it by `ended`, or use it as a context manager.

    `client` is also the client's key in queues. `origin` is the isolation scope, empty before admission and for
    anonymous requests. `now_ms` is set on admission, and after a wait. `sent_bytes` is the size of
    the response so far. `traceparent` and `span` are the spans of the caller and of the request, empty if they are not
    recorded.
    """

    __slots__ = (  # thousands may wait
        "_ended",
        "_watch",
        "began_s",
        "client",
        "client_address",
        "gone",
        "grant",
        "method",
        "now_ms",
        "origin",
        "pattern",
        "refusal_reason",
        "sent_bytes",
        "service",
        "span",
        "status",
        "traceparent",
        "waits_since_s",
    )

    request_id: str
    rpc_method = ""  # the JSON-RPC method, or empty
    shown: ShownToken | None = None  # its token, if the connection remembers that

    def __init__(
        self,
        service: Service,
        client: ClientCounts,
        client_address: str,
        method: str,
        pattern: str,
        origin: str = "",
        grant: Grant | None = None,
        traceparent: str = "",
    ) -> None:
        self.service = service
        self.client_address = client_address
        self.method = method
        self.pattern = pattern
        self.client = client
        self.origin = origin
        self.grant = grant
        self.traceparent = traceparent
        self.refusal_reason = self.span = ""
        self.now_ms = self.status = self.sent_bytes = 0
        self.gone = False
        self._watch: Watch | None = None
        self._ended = False
        self.began_s = perf_counter()
        service.running += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.client_gone()
        self.ended()

    # Admission and limits

    def admit(self, find_origin: Callable[[], str] | None = None, size: int = 0) -> None:
        """Check the Origin, the client's rate, and whether the server is serving.

        `find_origin` is None if the connection was admitted with its Origin. It returns an empty text for an anonymous
        request.
        """
        service = self.service
        limits, now_ms = service.limits, service.clock.now_ms()
        self.now_ms = now_ms
        blocked = limits.blocks and limits.is_blocked(self.client_address)
        units = 1 if size < BYTES_PER_UNIT else min(units_of(size), int(limits.burst))
        retry_after_s = BLOCKED_RETRY_S if blocked else limits.charge_request(self.client, now_ms, units)
        if find_origin is not None:
            origin = find_origin()
            allowed = service.live.current.allowed_origins
            if allowed is not None and origin and origin not in allowed:
                service.refuse_origin(origin, allowed)
                raise OriginNotAllowed
            if origin == "null" and allowed is None and not service.null_origin_reported:
                service.report_null_origin()
            self.origin = origin
        if retry_after_s:
            persists = blocked or limits.exceeds_hard_limit(self.client, now_ms)
            reason = "blocked" if blocked else "requests of an address"
            raise TooMany(reason, retry_after_s, persists=persists)
        if service.lifecycle.state >= DRAINING:
            raise Unavailable("draining")

    def authorize(self, action: str = ANY, token: str = "") -> None:
        """Verify the token if there is one, otherwise keep the grant. Check that the grant allows an action.

        The action is one of `auth.ACTIONS`, `auth.ANY`, or empty for what everybody may do.
        """
        authority = self.service.authority
        if authority is None or not action:
            return
        if token:
            metrics = self.service.log.metrics
            try:
                self.grant = authority.verify(token, self.origin, self.service.clock.wall_s())
            except Unauthorized as error:
                metrics.tokens[error.reason] += 1
                raise
            metrics.tokens["accepted"] += 1
        authority.require(self.grant, action)

    def require_topic(self, topic: str) -> None:
        if self.grant is not None:
            self.grant.require_topic(topic)

    def require_session(self, code: bytes) -> Awaitable[None] | None:
        """Check that the token covers a session's topic. If it must be read first, return the awaitable check."""
        authority, grant = self.service.authority, self.grant
        if authority is None or grant is None or grant.topics is None:
            return None
        shown = self.shown
        if shown is not None and shown.session == code and shown.grant is grant:
            return None
        topic = authority.remembered_topic(self.origin, code)
        if topic is None:
            return self._read_and_require_topic(code, authority, grant)
        grant.require_topic(topic)
        if shown is not None:
            shown.session = code
        return None

    async def _read_and_require_topic(self, code: bytes, authority: Authority, grant: Grant) -> None:
        topic = await self.service.store.find_topic(self.origin, code)
        authority.remember_topic(self.origin, code, topic)
        grant.require_topic(topic)

    def charge(self, units: int) -> None:
        """Count further requests, if any, before their work is done: at most a burst with the first one."""
        units = min(units, int(self.service.limits.burst) - 1)
        if units > 0 and (retry_after_s := self.service.limits.charge_request(self.client, self.now_ms, units)):
            raise TooMany("requests of an address", retry_after_s)

    def waiting(self, watch: Watch, topic: str = "") -> Watch:
        """Count the wait until the returned watch is closed, at the latest when the client disconnects.

        `topic` is empty for a wait for a session. Raise TooMany or Unavailable if too many requests wait.
        """
        try:
            self.service.limits.acquire_wait(self.client)
        except SignalError:
            watch.close()
            raise
        watch.on_close = self._release_wait
        self._watch = watch
        self.waits_since_s = perf_counter()
        self.service.log.metrics.waiting[self.pattern] += 1
        self.service.waits[self] = topic
        if self.gone:
            watch.close()
        self.wait_began()
        return watch

    def wait_began(self) -> None:
        """Release what a waiting request does not need: thousands may wait."""

    def _release_wait(self) -> None:
        self.service.limits.release_wait(self.client)

    def client_gone(self) -> None:
        """Stop waiting: the client has disconnected."""
        self.gone = True
        if self._watch is not None:
            self._watch.close()

    def disconnect(self) -> bool:
        return False

    async def turn(self) -> None:
        """Yield to other clients, then update `now_ms`. A wait for a change has yielded already, if few resume."""
        resuming, watch = self.service.resuming, self._watch
        woken = watch is not None and watch.woken_s > 0
        if not woken or not resuming.may_start(perf_counter()):
            await resuming.turn(self.client)
        self.now_ms = self.service.clock.now_ms()
        if watch is not None and woken:
            self.service.log.metrics.wake_ups.observe(watch.now_s() - watch.woken_s)
            watch.woken_s = 0.0

    # Metrics

    def count_error(self, error: BaseException) -> None:
        """Count an error. Log an internal error without the content of the request, which holds people's addresses."""
        if isinstance(error, SignalError):
            self.refusal_reason = error.reason
            self.service.log.count_refusal(STATUS[type(error)], error.reason)
        elif not isinstance(error, StreamClosedError):
            self.service.log.count_defect()
            log.error("%s %s failed: request %s", self.method, self.pattern, self.request_id, exc_info=error)

    def ended(self) -> None:
        """Count the request at the end of its response."""
        if self._ended:  # such as after an error that follows the response
            return
        self._ended = True
        self.count()
        service = self.service
        service.running -= 1
        if not service.running and service.lifecycle.state >= DRAINING:
            service.idle.set()

    def count(self) -> None:
        """Count the request in metrics, traces and the access log."""
        service, status, seconds = self.service, self.status, perf_counter() - self.began_s
        log, settings = service.log, service.live.current
        kind = (self.pattern, self.method, status)
        if self._watch is not None:
            del service.waits[self]
            log.metrics.waiting[self.pattern] -= 1
            log.metrics.waits[kind].observe(seconds)
        else:
            log.metrics.requests[kind].observe(seconds)
        # Requests with a refused origin are in `refused_origins`.
        origin = self.origin if self.origin or self.refusal_reason != OriginNotAllowed.reason else None
        service.served.append((self.client.name, origin, status))
        if len(service.served) >= MAX_SERVED:
            service.count_served()
        allowed = settings.allowed_origins
        if allowed is not None and (entry := allowed.find(self.origin)) is not None:
            log.metrics.by_origin[entry, self.pattern, status] += 1
        if settings.access_log:
            line = {"method": self.method, "endpoint": self.pattern, "status": status}
            line |= {"ms": round(seconds * 1000, 3), "bytes": self.sent_bytes, "id": self.request_id}
            subject = self.grant.subject if self.grant else ""
            log.write_line(line, self.refusal_reason, self.traceparent, self.client_address, subject)
        if log.record_span is not None:
            self._record_span(log.record_span)

    # Traces

    def record_stream_start(self) -> None:
        """Record the span of a request whose response is a stream, which can last for hours."""
        if self.service.log.record_span is not None:
            self._record_span(self.service.log.record_span)

    def _record_span(self, record: RecordSpan) -> None:
        now_s, now_ns = perf_counter(), time_ns()  # together: the start of a span is the difference
        stream = bool(self.span)
        waited_s = now_s - self.waits_since_s if self._watch is not None and self._ended else 0.0
        self.span = record(
            Span(
                self.method,
                self.pattern,
                self.rpc_method,
                self.status,
                self.refusal_reason,
                now_ns,
                waited_s if stream else now_s - self.began_s,
                waited_s,
                self.span or self.traceparent,
                stream,
            )
        )
