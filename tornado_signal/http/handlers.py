"""Tornado's request handlers: what all of them share, the operations, and the documents."""

import asyncio
import functools
from contextlib import aclosing
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final

from tornado import escape, httputil, web

from .. import errors
from ..service import wire
from ..service.operations import Operation, Pieces, check
from ..service.statuses import OK
from .error_responses import cors, error_response
from .fields import decode_segment, query_fields
from .request import Request

PREFLIGHT_MAX_AGE_S: Final = 7200
READING: Final = ("GET", "HEAD", "OPTIONS")
DEFAULTS: Final = {"Content-Type": wire.JSON, "Cache-Control": "no-store"}


class Handler(web.RequestHandler):
    """Base handler. It admits requests first, and responds with JSON, also to errors.

    `anonymous` says whether browsers load it without an Origin (docs/decisions.md). `action` is what a token must
    allow, or empty for what everybody may do. `vary` has the request headers that the response depends on.
    """

    methods: tuple[str, ...] = READING
    anonymous = False
    action = ""
    vary = "Origin"
    request: Request
    _cleared = False

    def prepare(self) -> None:
        """Admit the request, or raise the SignalError for which it is refused."""
        self.admit()

    def admit(self) -> None:
        """Admit the request. Errors that Tornado finds before `prepare` also need it."""
        request = self.request
        request.admit_request(self.find_origin)
        if self.action and request.service.authority is not None and request.method != "OPTIONS":
            request.authorize(self.action, self.find_token())

    def find_origin(self) -> str:
        """Return the Origin, or an empty text for an anonymous request."""
        return self.request.find_page_origin() if self.anonymous else self.request.find_origin()

    def find_token(self) -> str:
        """Return the token of the header `Authorization`, or an empty text."""
        return self.request.find_token()

    def options(self, *path_args: str) -> None:
        """Respond to a preflight request on any path (docs/decisions.md#cors)."""
        methods = ", ".join(self.methods)
        asked = self.request.headers.get("Access-Control-Request-Headers")
        self.set_status(HTTPStatus.NO_CONTENT)
        self.set_header("Allow", methods)
        self.set_header("Access-Control-Allow-Methods", methods)
        self.set_header("Access-Control-Allow-Headers", asked or "Content-Type")
        self.set_header("Access-Control-Max-Age", PREFLIGHT_MAX_AGE_S)

    # The response

    @functools.cached_property
    def _headers(self) -> httputil.HTTPHeaders:  # type: ignore[override]
        """The headers, which most responses do not change."""
        return httputil.HTTPHeaders(DEFAULTS)

    def clear(self) -> None:
        # Tornado's also formats the time, which is a sixth of a short request's instructions. It has no public way to
        # replace the headers: tornadoweb/tornado#2989, #2935.
        if self._cleared:
            self.__dict__.pop("_headers", None)  # not for each request: it costs as much as the rest of this
        self._cleared = True
        self._write_buffer = []
        self.set_status(OK)
        self.set_default_headers()

    def write(self, chunk: str | bytes | dict[str, Any]) -> None:
        super().write(chunk)
        request = self.request
        if request.method != "HEAD":
            if type(chunk) is not bytes:
                chunk = escape.utf8(escape.json_encode(chunk) if isinstance(chunk, dict) else chunk)
            request.sent_bytes += len(chunk)

    def flush(self, include_footers: bool = False) -> "asyncio.Future[None]":
        """Set the common headers first. Doing it at the end saves memory while thousands of requests wait."""
        request = self.request
        if not request.response_begun:
            request.response_begun = True
            request.status = self.get_status()
            self._headers.update(self.common_headers())  # none of them can be unsafe
        return super().flush(include_footers)

    def common_headers(self) -> dict[str, str]:
        request = self.request
        service = request.service
        common = {"Date": service.clock.http_date(request.now_ms), "Vary": self.vary}
        if request.origin:
            common |= cors(request.origin, listed=service.settings.allowed_origins is not None)
        return common | {"X-Request-Id": request.request_id}

    def compute_etag(self) -> str | None:
        return None  # only files have one

    def check_etag_header(self) -> bool:
        return "If-None-Match" in self.request.headers and super().check_etag_header()

    def on_finish(self) -> None:
        self.request.ended()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.request.client_gone()

    # Errors

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Count an error, and log an internal one. `write_error` does it before admission, which comes first."""
        if self.request.request_id and value is not None:
            self.request.count_error(self._as_own_error(value))

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Send an error response. After a part of the response, close the connection: it must not seem complete."""
        if self.request.response_begun:
            self.cut_off()
        else:
            super().send_error(status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = self._as_own_error(kwargs["exc_info"][1] if "exc_info" in kwargs else web.HTTPError(status_code))
        request = self.request
        counted = request.request_id and "exc_info" in kwargs
        if not request.request_id:
            try:
                self.admit()
            except errors.SignalError as admission_error:
                error = admission_error
        if not counted:
            request.count_error(error)
        self.vary = "Origin"
        status, headers, body = error_response(error)
        self.set_status(status, error.reason if isinstance(error, web.HTTPError) else None)
        for name, value in headers:
            self.set_header(name, value)
        if getattr(error, "persists", False):
            self.set_header("Connection", "close")
        self.finish(body)

    def _as_own_error(self, error: BaseException) -> BaseException:
        """Return an error, and for Tornado's refusal of a method the one of this package."""
        if isinstance(error, web.HTTPError) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            return errors.MethodNotAllowed(self.methods)
        return error

    def cut_off(self) -> None:
        """End the response with its connection."""
        self.request.connection.close()
        self.request.ended()
        self.finish()


WEBSOCKET_KEY: Final = "Sec-Websocket-Key"  # of a handshake, as Tornado normalizes it


class Unknown(Handler):
    """Handler of unknown paths."""

    methods = ("OPTIONS",)

    def find_origin(self) -> str:
        if self.request.path == "*":  # a question about the server as a whole (RFC 9110, 9.3.7)
            return self.request.find_page_origin()
        return super().find_origin()

    def admit(self) -> None:
        super().admit()
        request = self.request
        if request.method != "OPTIONS":
            if "EIO=" in request.query:
                raise self._other_protocol("messages of Socket.IO", "Socket.IO is not served here")
            if WEBSOCKET_KEY in request.headers:
                raise self._other_protocol("a WebSocket handshake", "No WebSocket here: use /ws")
            raise errors.PathNotFound

    def _other_protocol(self, sent: str, message: str) -> errors.PathNotFound:
        self.request.service.report_client(
            self.request.client_address, f"a client sends {sent} to a path that does not exist: {message}"
        )
        return errors.PathNotFound(message)


class Document(Handler):
    """Handler of the documents that describe the API."""

    anonymous = True

    def initialize(self, body: bytes) -> None:
        self.body = body

    def get(self) -> None:
        self.write(self.body)

    head = get


class OperationHandler(Handler):
    """Base handler of operations. Its argument is the topic, if the path contains one."""

    _result: bytes | None = None  # a whole result, until it is sent

    def initialize(self, operation: Operation, navigation_redirect: str = "") -> None:
        self.operation = operation
        self.action = operation.action
        self.navigation_redirect = navigation_redirect

    async def answer(self, segment: str | None = None) -> None:
        """Check the parameters and answer with the result, as fast as the client reads it if it is long."""
        work = self.operation.perform(self.request, self._find_values(segment))
        del segment
        result = work if isinstance(work, bytes) else await work
        if isinstance(result, bytes):
            self._result = result
            return
        async with aclosing(result):
            while await self._write_next(result):
                await self.flush()
                if self.request.method == "HEAD":  # a HEAD response has no body, and this one no length
                    return
                await self.request.turn()

    def finish(self, chunk: str | bytes | dict[str, Any] | None = None) -> "asyncio.Future[None]":
        """Send a whole result in one write, if the server can. Tornado's steps would take 13 % of a request."""
        result, self._result = self._result, None
        request = self.request
        respond = getattr(request.connection, "respond", None)
        if result is None or respond is None or request.method == "HEAD":
            return super().finish(chunk if result is None else result)
        request.response_begun = True
        request.status = OK
        request.sent_bytes = len(result)
        service = request.service
        date, listed = service.clock.http_date(request.now_ms), service.live.current.allowed_origins is not None
        before, after = head_of_result(date, request.origin, listed)
        sent: asyncio.Future[None] = respond(before, after + request.request_id.encode(), result)
        self.on_finish()
        self.ui.clear()  # it refers back
        return sent

    async def _write_next(self, pieces: Pieces) -> bool:
        """Write the next piece of a result, and return whether others follow. `finish` sends one that is whole."""
        piece, last = await anext(pieces)
        if last and not self.request.response_begun:
            self._result = piece
        else:
            self.write(piece)
        return not last

    def _find_values(self, segment: str | None) -> dict[str, Any]:
        request, operation = self.request, self.operation
        in_path = {} if segment is None else check(operation.in_path, {"topic": decode_segment(segment)}, request)
        if operation.method == "POST":
            fields = request.json_body()
        elif request.query:
            fields = query_fields(request.query_arguments, operation.fields)
        else:
            fields = {}
        values = check(operation.fields, fields, request)
        return in_path | values if in_path else values


@functools.lru_cache(1000)
def head_of_result(date: str, origin: str, listed: bool) -> tuple[bytes, bytes]:
    """Return the head of a response with a result: the parts before its length, and from there to its id."""
    headers = {"Date": date, "Vary": Handler.vary} | dict(cors(origin, listed=listed) if origin else ())
    first = ["HTTP/1.1 200 OK", *map(": ".join, DEFAULTS.items()), "Content-Length: "]
    rest = ["", *map(": ".join, headers.items()), "X-Request-Id: "]
    return "\r\n".join(first).encode(), "\r\n".join(rest).encode("latin-1")


class Query(OperationHandler):
    """Handler of operations with GET."""

    def prepare(self) -> None:
        """Redirect a browser's navigation, which has no Origin, to a page (docs/decisions.md#browser-navigation).

        Requests of `anonymous` handlers need no Origin.
        """
        self.anonymous = bool(self.navigation_redirect) and self.request.navigates
        super().prepare()
        if WEBSOCKET_KEY in self.request.headers:
            self.request.service.report_client(
                self.request.client_address,
                f"a client sends a WebSocket handshake to {self.request.pattern}, which responds with JSON: use /ws",
            )
        if self.anonymous:
            self.clear_header("Content-Type")
            self.vary = "Origin, Referer, Accept, Sec-Fetch-Mode, Sec-Fetch-Dest"
            self.redirect(self.navigation_redirect, status=HTTPStatus.SEE_OTHER)

    get = head = OperationHandler.answer


class Command(OperationHandler):
    """Handler of operations with POST."""

    methods = ("POST", "OPTIONS")
    post = OperationHandler.answer


class Notice(Command):
    """Handler of operations with POST that have no result."""

    async def post(self, segment: str | None = None) -> None:
        await self.answer(segment)
        self._result = None
        self.set_status(HTTPStatus.NO_CONTENT)
