"""What becomes of every request: it has a name, is counted, and has a line in the log if that is asked for."""

import logging
import re
import secrets
from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from ..limits import forwarded
from ..metrics import Metrics
from ..settings.settings import Settings

if TYPE_CHECKING:
    from .application import Request
    from .base import Handler

log = logging.getLogger("tornado_signal.requests")

_SANE: Final = re.compile("[!-~]{1,128}")


def new_name() -> str:
    """A name for a request. At random: numbers would tell every client how much all others ask for."""
    return secrets.token_hex(8)


class Ledger:
    """The requests of one application.

    Args:
        settings: as configured.
        metrics: where it counts.
        endpoints: the patterns of paths, by handler.
    """

    def __init__(self, settings: Settings, metrics: Metrics, endpoints: Mapping[type, str]) -> None:
        self.metrics = metrics
        self.endpoints = endpoints
        self._requests = metrics.requests
        self._proxies = settings.trusted_proxies
        self._logs = settings.access_log
        self._logs_addresses = settings.access_log and settings.log_addresses

    def name(self, request: "Request") -> str:
        """The name of a request: what a trusted proxy calls it, or one of our own."""
        if self._proxies and "X-Request-Id" in request.headers:
            said = request.headers["X-Request-Id"]
            if _SANE.fullmatch(said) and forwarded.trusted(request.remote_ip or "", self._proxies):
                return said
        return new_name()

    def waits(self, handler: "Handler") -> None:
        """A request waits for news from now on."""
        handler.waiting = True
        self.metrics.waiting[type(handler)] += 1
        if self._logs_addresses:
            handler.client_address = handler.request.client_address  # while its headers are there

    def ended(self, handler: "Handler") -> None:
        """A request has come to its end. Called for every one: this is where time counts."""
        seconds = perf_counter() - handler.began_s
        requests = self._requests
        if handler.waiting:
            self.metrics.waiting[type(handler)] -= 1
            requests = self.metrics.waits
        requests[handler.__class__, handler.request.method, handler._status_code].observe(seconds)
        if self._logs:
            self._log(handler, seconds)

    def refused(self, status: int, reason: str) -> None:
        """A request gets an error for an answer, or would if it were not in the middle of another one."""
        self.metrics.refusals[status, reason] += 1

    def failed(self) -> None:
        """A request cannot be answered, through no fault of its own."""
        self.metrics.defects += 1

    def refused_unseen(self, status: int) -> str:
        """The transport refuses what no handler has seen; returns a name for it."""
        name = new_name()
        self.refused(status, "transport")
        if self._logs:
            log.info("request", extra={"fields": {"status": status, "id": name, "reason": "transport"}})
        return name

    def _log(self, handler: "Handler", seconds: float) -> None:
        fields: dict[str, Any] = {
            "method": handler.request.method,
            "endpoint": self.endpoints[type(handler)],
            "status": handler.get_status(),
            "ms": round(seconds * 1000, 3),
            "bytes": handler.body_bytes,
            "id": handler.request_id,
        }
        if handler.refused_for:
            fields["reason"] = handler.refused_for
        if self._logs_addresses:
            fields["address"] = handler.client_address or handler.request.client_address
        log.info("request", extra={"fields": fields})
