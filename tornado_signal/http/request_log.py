"""What becomes of every request: it has a name, is counted, and has a line in the log if that is asked for."""

import logging
import re
import secrets
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final, Protocol

from ..limits import forwarded
from ..metrics import RequestMetrics
from ..settings.settings import Settings

log = logging.getLogger("tornado_signal.requests")

_PRINTABLE: Final = re.compile("[!-~]{1,128}")


class Finished(Protocol):
    """A request that has come to its end.

    Attributes:
        pattern: of its path.
        method: its method.
        status: that of its response.
        began_s: when it came, by `perf_counter`.
        waited: whether it waited for news, or was a stream of it.
        sent_bytes: of the response's body.
        request_id: its name.
        refused_for: why it got no better answer; empty if it was served.
        client_address: where it is from.
    """

    pattern: str
    method: str
    status: int
    began_s: float
    waited: bool
    sent_bytes: int
    request_id: str
    refused_for: str
    client_address: str


class RequestLog:
    """The requests of one application.

    Args:
        settings: as configured.
        metrics: where it counts.
    """

    def __init__(self, settings: Settings, metrics: RequestMetrics) -> None:
        self.metrics = metrics
        self._proxies = settings.trusted_proxies
        self._logs = settings.access_log
        self._logs_addresses = settings.log_addresses

    def request_id(self, headers: Mapping[str, str], remote_ip: str) -> str:
        """The name of a request: what a trusted proxy calls it, or one of our own."""
        if self._proxies and "X-Request-Id" in headers:
            named = headers["X-Request-Id"]
            if _PRINTABLE.fullmatch(named) and forwarded.trusted(remote_ip, self._proxies):
                return named
        return new_request_id()

    def began_to_wait(self, request: Finished) -> None:
        """A request waits for news from now on."""
        request.waited = True
        self.metrics.waiting[request.pattern] += 1

    def finished(self, request: Finished) -> None:
        """A request has come to its end."""
        seconds = perf_counter() - request.began_s
        kind = (request.pattern, request.method, request.status)
        if request.waited:
            self.metrics.waiting[request.pattern] -= 1
            self.metrics.waits[kind].observe(seconds)
        else:
            self.metrics.requests[kind].observe(seconds)
        if self._logs:
            self._write(request, seconds)

    def refused(self, status: int, reason: str) -> None:
        """A request gets an error for an answer, or would if it were not in the middle of another one."""
        self.metrics.refusals[status, reason] += 1

    def failed(self) -> None:
        """A request cannot be answered because of a defect."""
        self.metrics.defects += 1

    def refused_by_transport(self, status: int) -> str:
        """The transport refuses what has reached no handler; returns a name for it."""
        name = new_request_id()
        self.refused(status, "transport")
        if self._logs:
            log.info("request", extra={"fields": {"status": status, "id": name, "reason": "transport"}})
        return name

    def _write(self, request: Finished, seconds: float) -> None:
        fields: dict[str, Any] = {
            "method": request.method,
            "endpoint": request.pattern,
            "status": request.status,
            "ms": round(seconds * 1000, 3),
            "bytes": request.sent_bytes,
            "id": request.request_id,
        }
        if request.refused_for:
            fields["reason"] = request.refused_for
        if self._logs_addresses:
            fields["address"] = request.client_address
        log.info("request", extra={"fields": fields})


def new_request_id() -> str:
    """A name for a request. At random: numbers would tell every client how much all others ask for."""
    return secrets.token_hex(8)
