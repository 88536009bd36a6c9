"""What every handler shares: the Origin, CORS, JSON in and out, and the one table from errors to statuses."""

import asyncio
import http
from collections.abc import Hashable
from types import TracebackType
from typing import Any, ClassVar, NoReturn, cast

from tornado import httputil, web
from tornado.iostream import StreamClosedError
from tornado.log import app_log

from .. import errors
from ..api import wire
from ..limits import forwarded
from .application import Application, Request
from .request_log import Ledger

STATUS: dict[type[errors.SignalError], int] = {
    errors.InvalidParameter: 400,
    errors.OriginNotAllowed: 403,
    errors.SessionNotFound: 404,
    errors.PathNotFound: 404,
    errors.MethodNotAllowed: 405,
    errors.AlreadyAnswered: 409,
    errors.BodyTooLarge: 413,
    errors.TooMany: 429,
    errors.Unavailable: 503,
}
PREFLIGHT_MAX_AGE_S = 7200
REFUSED_RETRY_AFTER_S = 5  # for a connection too many
OK = httputil.ResponseStartLine("", 200, "OK")

Response = tuple[httputil.HTTPHeaders, bytes]


class ResponseHeaders(dict[str, str]):
    """What Tornado needs of its own `HTTPHeaders` for a response: each name once, as it is written here."""

    get_all = dict.items


class Handler(web.RequestHandler):
    """A Tornado handler that answers in JSON, errors included, to pages of any allowed origin."""

    application: Application
    request: Request
    methods: ClassVar[tuple[str, ...]]

    origin = ""
    """The isolation scope of the request; empty until it has been checked."""

    waiting = False
    """Whether it has begun to wait for news."""

    refused_for = ""
    """Why it got no better answer."""

    closing = False
    """Whether its connection ends with the response."""

    client_address = ""
    """Who asks, if that is in the log, and once the request has no headers any more."""

    _headers: ResponseHeaders  # type: ignore[assignment]
    _flushed_bytes = 0
    _headers_written = False
    _finished = False
    _transforms: ClassVar[list[web.OutputTransform]] = []  # type: ignore[misc]
    ui = None  # type: ignore[assignment]

    def __init_subclass__(cls) -> None:
        """A handler's methods are those it defines; whoever answers GET answers HEAD, and OPTIONS comes for free."""
        if "get" in vars(cls):
            cls.head = cls.get
        names = ("get", "head", "post", "options")
        cls.methods = tuple(
            name.upper() for name in names if getattr(cls, name) is not getattr(web.RequestHandler, name)
        )

    # Not calling Tornado's: it makes what templates need, at a tenth of the cost of a request.
    def __init__(self, application: Application, request: Request, client: Hashable, began_s: float) -> None:
        self.application = application
        self.request = request
        self.client = client
        self.store = application.store
        self.now_ms = application.clock.now_ms()  # once for the whole request
        self.began_s = began_s
        self.request_id = application.ledger.name(request)
        self.clear()

    async def work(self, *segments: str) -> None:
        """Handle the request, whatever comes: Tornado's `_execute` without forms, cookies and their protection.

        A request is never left without an answer: nothing but the end of the process cancels a handler, so a
        cancellation in one is of what it waited for.
        """
        try:
            self.prepare()
            if self.request.method not in self.methods:
                raise errors.MethodNotAllowed(self.methods)
            waiting = getattr(self, self.request.method.lower())(*segments)
            if waiting is not None:
                await waiting
            if not self._finished:
                self.finish()
        except (Exception, asyncio.CancelledError) as error:
            try:
                self._handle_request_exception(error)
            except Exception:
                app_log.exception("a handler failed, and so did its answer")
                cast(Any, self.request.connection).close()
        finally:
            self.application.ran(self)

    def prepare(self) -> None:
        """Check what comes before everything else (contract B6): the Origin, then whether there is service at all."""
        retry_after_s = self.application.limits.request(self.request.client_address, self.now_ms)
        origin = self._find_origin()
        allowed = self.application.configured.allowed_origins
        if allowed is not None and origin not in allowed:
            raise errors.OriginNotAllowed
        self.origin = origin
        self._headers.update(cors(origin, allowed))
        if retry_after_s:
            self.refuse_rate(retry_after_s)
        if self.application.draining:
            raise errors.Unavailable("draining")

    def refuse_rate(self, retry_after_s: int) -> NoReturn:
        """Refuse a request of a client that makes too many; one that goes on all the same loses its connection.

        Raises:
            TooMany: always.
        """
        if self.application.limits.goes_on(self.request.client_address, self.now_ms):
            self.closing = True
        raise errors.TooMany("requests of an address", retry_after_s)

    def _find_origin(self) -> str:
        """Contract B1."""
        values = self.request.headers.get_list("Origin")
        if not values and self.request.headers.get("Sec-Fetch-Site") == "same-origin":
            proxies = self.application.configured.trusted_proxies
            own = forwarded.own_origin(
                self.request.protocol, self.request.remote_ip or "", self.request.headers, proxies
            )
            values = [own] if own else []
        if len(values) != 1 or not 0 < len(values[0]) <= wire.MAX_ORIGIN:
            raise errors.InvalidParameter("Origin")
        return values[0]

    def body(self) -> dict[str, Any]:
        """The request's JSON object.

        Raises:
            BodyTooLarge: it is over the limit.
            Unavailable: too much of others has come and is not whole.
            InvalidParameter: `body`.
        """
        if self.request.refusal is not None:
            raise self.request.refusal
        return wire.parse_body(self.request.body)

    def whole(self, name: str, default: int) -> int:
        """A query parameter that must be a whole number from 1 up."""
        return wire.parse_whole(self.request.query_fields.get(name), name, default)

    def once(self, name: str) -> str | None:
        """A query parameter that may come once, as text; None if it is absent.

        Raises:
            InvalidParameter: it comes more than once.
        """
        values = self.request.query_fields.get(name, [])
        if len(values) > 1:
            raise errors.InvalidParameter(name)
        return values[0] if values else None

    def reply(self, fields: dict[str, Any]) -> None:
        """Answer 200 with a JSON object."""
        self.finish(wire.encode(fields))

    def options(self, *segments: str) -> None:
        """Answer a preflight, on every path (contract B14)."""
        asked = self.request.headers.get("Access-Control-Request-Headers")
        self.set_status(204)
        self.clear_header("Content-Type")
        self.set_header("Allow", ", ".join(self.methods))
        self.set_header("Access-Control-Allow-Methods", ", ".join(self.methods))
        self.set_header("Access-Control-Allow-Headers", asked or "Content-Type")
        self.set_header("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S))

    # Tornado's own versions of the next two support cookies, ETags, transforms and more, at half the cost of a request.

    def clear(self) -> None:
        """Begin the response: every one is JSON and depends on the Origin; also after an error has cleared the rest."""
        headers = ResponseHeaders()
        headers["Content-Type"] = wire.JSON
        headers["Date"] = self.application.clock.http_date(self.now_ms)
        headers["Vary"] = "Origin"
        headers["X-Request-Id"] = self.request_id
        if self.origin:
            headers.update(cors(self.origin, self.application.configured.allowed_origins))
        if self.closing:
            headers["Connection"] = "close"
        self._headers = headers
        self._write_buffer = []
        self._status_code = 200
        self._reason = "OK"

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> "asyncio.Future[None]":
        """End the response. One that has not been flushed before goes out in one piece, with its length."""
        if self._headers_written or not isinstance(chunk, bytes) or self._write_buffer:
            return super().finish(chunk)
        self._headers["Content-Length"] = str(len(chunk))
        connection = self.request.connection
        start_line = OK if self._status_code == 200 else httputil.ResponseStartLine("", self._status_code, self._reason)
        self._headers_written = True
        body = b"" if self.request.method == "HEAD" else chunk
        sent = connection.write_headers(start_line, self._headers, body)  # type: ignore[arg-type]
        connection.finish()
        self._finished = True
        return sent

    def flush(self, include_footers: bool = False) -> "asyncio.Future[None]":
        """Send what was written so far."""
        self._flushed_bytes += sum(map(len, self._write_buffer))
        return super().flush(include_footers)

    @property
    def body_bytes(self) -> int:
        """How much of the answer's body has been sent."""
        if self.request.method == "HEAD":
            return 0
        return self._flushed_bytes or int(self._headers.get("Content-Length", "0"))

    def compute_etag(self) -> None:
        """No answer here is worth keeping."""
        return None

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer with the error's status and text; after a part has been sent, only the connection can tell."""
        if self._headers_written:
            self._count(kwargs["exc_info"][1])
            cast(Any, self.request.connection).close()
            self._finished = True
            self.on_finish()  # a client that left in the middle is not waited for when the server stops
            return
        super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """The one way from an exception to a response (specification 7)."""
        error: Any = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        status = STATUS.get(type(error), 500)
        self.set_status(status)
        self._count(error)
        if isinstance(error, errors.MethodNotAllowed):
            self.set_header("Allow", ", ".join(error.allowed))
        elif isinstance(error, errors.TooMany | errors.Unavailable):
            self.set_header("Retry-After", str(error.retry_after_s))
        # Whoever is refused can tell the operator of which request, and knows when to come back.
        self.set_header("Access-Control-Expose-Headers", "Retry-After, X-Request-Id")
        text = "Internal server error" if status == 500 else str(error)
        self.finish(wire.encode({"error": text}))

    def _count(self, error: BaseException | None) -> None:
        if isinstance(error, errors.SignalError):
            self.refused_for = error.reason
            self.application.ledger.refused(STATUS[type(error)], error.reason)

    def log_exception(
        self,
        typ: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Log defects, and nothing of what the request carries: it is people's addresses."""
        if value is not None and not isinstance(value, errors.SignalError | StreamClosedError):
            name = type(self).__name__
            self.application.ledger.failed()
            said = (self.request.method, name, self.request_id)
            app_log.error("%s of %s failed: request %s", *said, exc_info=(typ, value, tb))  # type: ignore[arg-type]


class NotFound(Handler):
    """Every path that no endpoint has."""

    def prepare(self) -> None:
        """A preflight is answered here too; all else is not found (contract B13, B14)."""
        super().prepare()
        if self.request.method != "OPTIONS":
            raise errors.PathNotFound


def cors(origin: str, allowed: frozenset[str] | None) -> dict[str, str]:
    """What a response says to the pages of an origin that is served (contract B14)."""
    headers = {"Access-Control-Allow-Origin": origin}
    if allowed is not None:  # else a cookie of the operator's proxy would be every page's
        headers["Access-Control-Allow-Credentials"] = "true"
    return headers


def refusal(allowed: frozenset[str] | None, ledger: Ledger, status: int, headers: httputil.HTTPHeaders) -> Response:
    """What a transport answers to a request that no handler sees, in JSON and with CORS (contract B14, B15).

    Args:
        allowed: the allow-list of origins, if there is one.
        ledger: where it is counted.
        status: why the transport refuses it.
        headers: those of the request that were understood.
    """
    answer = httputil.HTTPHeaders({"Content-Type": wire.JSON, "Vary": "Origin"})
    answer["X-Request-Id"] = ledger.refused_unseen(status)
    origin = headers.get("Origin", "")
    if 0 < len(origin) <= wire.MAX_ORIGIN and (allowed is None or origin in allowed):
        for name, value in cors(origin, allowed).items():
            answer[name] = value
    if status in (429, 503):
        answer["Retry-After"] = str(REFUSED_RETRY_AFTER_S)
    return answer, wire.encode({"error": http.HTTPStatus(status).phrase.capitalize()})
