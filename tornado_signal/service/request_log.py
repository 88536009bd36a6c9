"""Request ids, request metrics, the access log, and requests as spans of a trace (docs/monitoring.md#traces)."""

import logging
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ..limits import forwarded
from ..limits.recent import OTHERS, RecentCounts
from ..metrics import RequestMetrics
from ..settings.settings import LiveSettings, Settings

log = logging.getLogger("tornado_signal.requests")

_PRINTABLE: Final = re.compile("[!-~]{1,128}")
_TRACEPARENT: Final = re.compile("(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Span(NamedTuple):
    """A request that has ended, or a stream after its request."""

    method: str  # the method in logs and metrics
    pattern: str  # the name of the path in logs and metrics
    rpc_method: str  # the JSON-RPC method, or empty for another request
    status: int  # the HTTP status, or 0 if there was no response
    refusal_reason: str  # the reason of a refusal, or empty
    ended_ns: int  # its end by the wall clock, in Unix nanoseconds
    seconds: float  # the time from its arrival until then
    waited_s: float  # the part of that time from the begin of its wait. 0 if it has not waited
    parent: str  # the parent as a valid `traceparent`, or empty
    stream: bool  # whether it is a stream, whose parent is the span of its request


RecordSpan = Callable[[Span], str]
"""Records a span, without waiting for a network, and returns its own `traceparent`. It never raises."""


class RequestLog:
    """Metrics, access log and spans of the requests of a process."""

    def __init__(self, live: LiveSettings, record_span: RecordSpan | None = None) -> None:
        self._live = live
        self.metrics = RequestMetrics()
        others = (0, OTHERS)
        self.recent_refusals = RecentCounts[tuple[int, str]](lambda refusal: others, others)  # by status and reason
        self.record_span = record_span  # None without `--otlp-endpoint`

    @property
    def settings(self) -> Settings:
        return self._live.current

    def request_id(self, headers: Mapping[str, str], remote_ip: str) -> str:
        """Return the id of a request: that of a trusted proxy, or a new one."""
        proxies = self._live.current.trusted_proxies
        if proxies and "X-Request-Id" in headers:
            named = headers["X-Request-Id"]
            if _PRINTABLE.fullmatch(named) and forwarded.trusted(remote_ip, proxies):
                return named
        return new_request_id()

    def traceparent(self, headers: Mapping[str, str]) -> str:
        """Return the `traceparent` (W3C Trace Context) of a request. Empty if it is invalid or not used."""
        if self.record_span is None and not self._live.current.access_log:
            return ""
        found = headers.get("Traceparent", "")
        return found if _TRACEPARENT.fullmatch(found) else ""

    def write_line(
        self, fields: dict[str, Any], refusal_reason: str, traceparent: str, address: str, subject: str
    ) -> None:
        """Write the line of a request: `fields`, other values that are not empty, and those that the settings add."""
        if refusal_reason:
            fields["reason"] = refusal_reason
        if traceparent:
            fields["traceparent"] = traceparent
        if self.settings.access_log == "addresses":
            fields["address"] = address
        if self.settings.log_subjects and subject:
            fields["subject"] = subject
        log.info("request", extra={"fields": fields})

    def count_refusal(self, status: int, reason: str) -> None:
        """Count a refused request, including one whose response has already started."""
        self.metrics.refusals[status, reason] += 1
        self.recent_refusals.count((status, reason), status)

    def count_defect(self) -> None:
        self.metrics.defects += 1

    def count_transport_refusal(self, status: int) -> str:
        """Count a request that the transport refuses before a handler. Return its id."""
        name = new_request_id()
        self.count_refusal(status, "transport")
        if self.settings.access_log:
            log.info("request", extra={"fields": {"status": status, "id": name, "reason": "transport"}})
        return name


def new_request_id() -> str:
    """Return a random request id. Numbers would reveal the load of the server to every client."""
    return os.urandom(8).hex()
