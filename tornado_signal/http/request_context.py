"""The context of an HTTP request."""

import logging
from typing import Any, Final

from tornado import httputil

from .. import errors
from ..auth import Bearer
from ..limits import forwarded
from ..service import wire
from ..service.request_context import RequestContext
from ..service.schemas import MAX_ORIGIN
from ..service.service import Service
from ..stores.watches import Watch
from .request import Request

log = logging.getLogger(__name__)

NO_HEADERS: Final = httputil.HTTPHeaders()


class HttpRequestContext(RequestContext):
    """The context of an HTTP request.

    Args:
        service: the shared state of all requests.
        request: Tornado's request.
        pattern: the name of the path in logs and metrics.

    Attributes:
        request: as given.
        connection: the request's side of the connection.
        refusal: the reason why the body was not kept, or None.
        begun: whether a part of the response has been sent.
    """

    __slots__ = ("_bearer", "begun", "connection", "refusal", "remote_ip", "request")

    def __init__(self, service: Service, request: Request, pattern: str) -> None:
        self.request = request
        connection: Any = request.connection  # ours, which has more than the interface of Tornado
        self.connection = connection
        self.remote_ip: str = request.remote_ip or ""
        headers = request.headers
        client_address, proxies = self.remote_ip, service.settings.trusted_proxies
        if proxies or not client_address:
            client_address = forwarded.client_address(client_address, headers, proxies)
            connection.context.client_address = client_address
        if not service.proxy_reported and self.remote_ip in ("", client_address) and "X-Forwarded-For" in headers:
            service.report_proxy(self.remote_ip)
        super().__init__(service, client_address, request.method or "", pattern)
        self.refusal: errors.SignalError | None = None
        self.begun = False
        self._bearer: Bearer | None = None

    def find_origin(self) -> str:
        """Return the Origin (docs/decisions.md#missing-origin).

        Raises:
            InvalidParameter: it is missing or too long.
        """
        headers = self.request.headers
        values = headers.get_list("Origin")
        if not values and headers.get("Sec-Fetch-Site") == "same-origin":
            own = forwarded.own_origin(
                self.request.protocol, self.remote_ip, headers, self.service.settings.trusted_proxies
            )
            values = [own] if own else []
        if not values:
            log.debug("%s %s has no Origin; send the header Origin: https://HOST", self.method, self.pattern)
        if len(values) != 1 or not 0 < len(values[0]) <= MAX_ORIGIN:
            raise errors.InvalidParameter("Origin")
        return values[0]

    def find_page_origin(self) -> str:
        """Return the Origin of a request for a file, or an empty text: browsers load files without an Origin.

        Raises:
            InvalidParameter: as `find_origin`.
        """
        headers = self.request.headers
        if "Origin" not in headers or headers.get("Sec-Fetch-Site") == "same-origin":
            return ""
        return self.find_origin()

    def json_body(self) -> dict[str, Any]:
        """Return the JSON object in the body.

        Raises:
            BodyTooLarge: the body exceeds `--max-body-bytes`.
            Unavailable: all bodies in transit together take too much memory.
            InvalidParameter: `body`.
        """
        if self.refusal is not None:
            raise self.refusal
        return wire.parse_body(self.request.body)

    def waiting(self, watch: Watch, topic: str = "") -> Watch:
        """Tie a watch to the connection, and drop what the request came with: thousands may wait."""
        super().waiting(watch, topic)
        request = self.request
        request.headers, request.body, request.query = NO_HEADERS, b"", ""
        if not watch.closed:
            self._bearer = self.service.hold_grant(self.grant, watch.close)
        return watch

    def disconnect(self) -> bool:
        self.connection.context.abort()
        return True

    def _wait_over(self) -> None:
        super()._wait_over()
        if self._bearer is not None:
            self._bearer.close()

    @property
    def navigates(self) -> bool:
        """Whether the request is a top-level navigation (docs/decisions.md#browser-navigation)."""
        headers = self.request.headers
        return (
            self.method in ("GET", "HEAD")
            and "Origin" not in headers
            and headers.get("Sec-Fetch-Mode") == "navigate"
            and headers.get("Sec-Fetch-Dest", "document") == "document"
        )
