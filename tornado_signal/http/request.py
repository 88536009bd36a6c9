"""One HTTP request: what it came with, what it may ask for, and its response. It is the `Call` of its operation."""

import http
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tornado import httputil

from .. import errors
from ..api import wire
from ..api.operations import Pieces
from ..api.schemas import EVENT_STREAM, MAX_ORIGIN
from ..limits import forwarded
from ..stores.watches import Watch
from .call import ClientCall
from .errors import cors, error_response
from .site import Site

NO_HEADERS: Final = httputil.HTTPHeaders()
OK: Final = httputil.ResponseStartLine("HTTP/1.1", 200, "OK")


@dataclass(frozen=True)
class Endpoint:
    """What answers the requests of one path, or pattern of paths.

    Attributes:
        pattern: of the path, as logs and metrics name it.
        methods: those that it has.
        answer: answers an admitted request with one of these, OPTIONS aside.
        page: whether browsers load it without an Origin.
        stream: whether it answers with Server-Sent Events.
        unknown: whether there is no such path: other methods are refused with 404, not with 405.
        door: where a browser is sent that navigates here without an Origin; empty for nowhere (contract C11).
    """

    pattern: str
    methods: tuple[str, ...]
    answer: Callable[["Request"], Awaitable[None]]
    page: bool = False
    stream: bool = False
    unknown: bool = False
    door: str = ""


class Request(ClientCall):
    """One request that has come.

    Attributes:
        refusal: why the body is not kept, if it is not.
        path: that of its target, percent-encoded.
        query: that of its target.
        closing: whether its connection ends with the response.
        begun: whether some of the response has been sent.
    """

    closing = False
    begun = False

    def __init__(
        self,
        site: Site,
        connection: Any,  # an HTTPConnection that can be closed; see `transport.exchange`
        start_line: httputil.RequestStartLine,
        headers: httputil.HTTPHeaders,
        body: bytes | bytearray,
        endpoint: Endpoint,
        refusal: errors.SignalError | None = None,
    ) -> None:
        self.remote_ip: str = connection.context.remote_ip
        client_address, proxies = self.remote_ip, site.service.settings.trusted_proxies
        if proxies or not client_address:
            client_address = forwarded.client_address(client_address, headers, proxies)
            connection.context.client_address = client_address
        if not site.proxy_reported and self.remote_ip in ("", client_address) and "X-Forwarded-For" in headers:
            site.report_proxy(self.remote_ip)
        super().__init__(site, client_address, start_line.method, endpoint.pattern)
        self.connection = connection
        self.start_line = start_line
        self.path, _, self.query = start_line.path.partition("?")
        self.headers = headers
        self.body = body
        self.endpoint = endpoint
        self.refusal = refusal

    # What it may ask for

    def begin(self) -> None:
        """Its turn has come."""
        self.now_ms = self.service.clock.now_ms()
        self.request_id = self.site.log.request_id(self.headers, self.remote_ip)

    def admit(self) -> None:
        """Check what comes before everything else (contract B6): the Origin, then whether there is service at all.

        Raises:
            SignalError: why it is refused.
        """
        retry_after_s = self.site.limits.request(self.client_address, self.now_ms)
        origin = self._find_origin()
        allowed = self.service.settings.allowed_origins
        if allowed is not None and origin not in allowed:
            raise errors.OriginNotAllowed
        self.origin = origin
        if retry_after_s:
            self._refuse_rate(retry_after_s)
        if self.site.draining:
            raise errors.Unavailable("draining")

    def admit_page(self) -> None:
        """`admit` for what a browser opens or loads by itself, and therefore without an Origin (docs/decisions.md).

        Raises:
            SignalError: why it is refused.
        """
        if "Origin" in self.headers and self.headers.get("Sec-Fetch-Site") != "same-origin":
            self.admit()
        elif retry_after_s := self.site.limits.request(self.client_address, self.now_ms):
            self._refuse_rate(retry_after_s)
        elif self.site.draining:
            raise errors.Unavailable("draining")

    def _refuse_rate(self, retry_after_s: int) -> NoReturn:
        # A client that goes on all the same loses its connection.
        self.closing = self.site.limits.goes_on(self.client_address, self.now_ms)
        raise errors.TooMany("requests of an address", retry_after_s)

    def _find_origin(self) -> str:
        """Contract B1."""
        values = self.headers.get_list("Origin")
        if not values and self.headers.get("Sec-Fetch-Site") == "same-origin":
            protocol = self.connection.context.protocol
            proxies = self.service.settings.trusted_proxies
            own = forwarded.own_origin(protocol, self.remote_ip, self.headers, proxies)
            values = [own] if own else []
        if len(values) != 1 or not 0 < len(values[0]) <= MAX_ORIGIN:
            raise errors.InvalidParameter("Origin")
        return values[0]

    def json_body(self) -> dict[str, Any]:
        """The JSON object in the body.

        Raises:
            BodyTooLarge: it is over the limit.
            Unavailable: too much of others has come and is not whole.
            InvalidParameter: `body`.
        """
        if self.refusal is not None:
            raise self.refusal
        return wire.parse_body(self.body)

    def waiting(self, watch: Watch) -> Watch:
        """Tie a watch to the connection.

        What the request came with is no longer needed then, and let go: thousands may wait.
        """
        super().waiting(watch)
        self.headers, self.body = NO_HEADERS, b""
        self.connection.set_close_callback(self.client_gone)
        return watch

    @property
    def navigates(self) -> bool:
        """Whether a browser shows the response by itself, in a window of its own (contract C11)."""
        return (
            self.method in ("GET", "HEAD")
            and "Origin" not in self.headers
            and self.headers.get("Sec-Fetch-Mode") == "navigate"
            and self.headers.get("Sec-Fetch-Dest", "document") == "document"
        )

    # The response

    def response_headers(self) -> httputil.HTTPHeaders:
        """What every response has: it is JSON, if nothing else is said, and depends on the Origin."""
        headers = httputil.HTTPHeaders()
        headers["Content-Type"] = wire.JSON
        headers["Date"] = self.service.clock.http_date(self.now_ms)
        headers["Vary"] = "Origin"
        headers["X-Request-Id"] = self.request_id
        if self.origin:
            for name, value in cors(self.origin, self.service.settings.allowed_origins):
                headers[name] = value
        if self.closing:
            headers["Connection"] = "close"
        return headers

    def respond(self, body: bytes, headers: httputil.HTTPHeaders | None = None, status: int = 200) -> None:
        """Send a response in one piece."""
        headers = headers or self.response_headers()
        self.status = status
        self.begun = True
        if status != 204:
            headers["Content-Length"] = str(len(body))
        if self.method == "HEAD":
            body = b""
        self.sent_bytes = len(body)
        start_line = (
            OK if status == 200 else httputil.ResponseStartLine("HTTP/1.1", status, http.HTTPStatus(status).phrase)
        )
        self.connection.write_headers(start_line, headers, body)
        self.connection.finish()
        self.ended()

    def redirect(self, path: str) -> None:
        """Send a browser to a page."""
        headers = self.response_headers()
        del headers["Content-Type"]
        headers["Vary"] = "Origin, Sec-Fetch-Mode, Sec-Fetch-Dest"
        headers["Location"] = path
        self.respond(b"", headers, 303)

    async def respond_in_pieces(self, pieces: Pieces) -> None:
        """Send a response as fast as the client reads it; in one piece, if it is all in the first."""
        async with aclosing(pieces):
            async for body, last in pieces:
                if last and not self.begun:
                    self.respond(body)
                    return
                if self.begun:
                    self.connection.write(body)
                else:
                    self.status, self.begun = 200, True
                    self.connection.write_headers(OK, self.response_headers(), body)
                self.sent_bytes += len(body)
                if last or self.method == "HEAD":  # that it has no length is all that HEAD tells
                    self.connection.finish()
                    self.ended()
                    return
                del body  # many clients may read slowly: nothing is kept here while they do
                await self.connection.write(b"")  # until there is room for more
                await self.turn()

    def fail(self, error: BaseException) -> None:
        """The one way from an exception to a response (specification 7)."""
        # After a part has been sent, only the end of the connection can tell. An EventSource that is refused never
        # comes back, one that is cut off does: when the server stops, that is right.
        resumes = self.endpoint.stream and self.headers.get("Accept") == EVENT_STREAM
        if self.begun or (resumes and self.site.draining):
            self.cut_off(error)
            return
        self.count_error(error)
        status, own, body = error_response(error)
        headers = self.response_headers()
        for name, value in own:
            headers[name] = value
        self.respond(body, headers, status)

    def cut_off(self, error: BaseException) -> None:
        """End the response with its connection, since nothing else can tell the client."""
        self.count_error(error)
        self.connection.close()
        self.ended()
