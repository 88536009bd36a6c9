"""Tornado's request handlers: what all of them share, the operations, and the documents."""

import asyncio
import re
from collections.abc import Awaitable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, cast

from tornado import httputil, web

from .. import errors
from ..service import wire
from ..service.operations import Operation, Pieces, check
from .errors import cors, error_response
from .fields import query_fields, topic_of
from .request import Request
from .request_context import HttpRequestContext

PREFLIGHT_MAX_AGE_S: Final = 7200
DEFAULT_HEADERS: Final = {"Content-Type": wire.JSON, "Date": ""}  # the time is known later, its place is here
NO_CONTENT: Final = (204, 304)

_HEADER_VALUE: Final = re.compile(r"[\t -~\x80-\xff]*")
READING: Final = ("GET", "HEAD", "OPTIONS")


class ResponseHeaders(dict[str, str]):
    """The headers of a response. Names are written as Tornado normalizes them, for example `Etag`."""

    get_all = dict.items


class Handler(web.RequestHandler):
    """Base handler. It admits requests first, and responds with JSON, also to errors.

    It has its own form of the methods that make a response, because Tornado's cost more than an operation itself
    (docs/decisions.md#request-handlers).

    Attributes:
        methods: the supported methods.
        anonymous: whether browsers load it without an Origin (docs/decisions.md).
        action: the action that a token must allow, or empty for what everybody may do.
        vary: the request headers that the response depends on.
        context: the context of the request.
        status: the HTTP status of the response.
        headers: the headers of the response.
        finished: whether the response is complete.
    """

    methods: tuple[str, ...] = READING
    anonymous = False
    action = ""
    vary = "Origin"
    finished = False

    def __init__(
        self, application: web.Application, request: Request, context: HttpRequestContext, **arguments: Any
    ) -> None:
        # Not the constructor of Tornado, which makes a namespace for templates.
        self.application = application
        self.request = request
        self.context = context
        self.clear()
        self.initialize(**arguments)
        context.connection.set_close_callback(context.client_gone)

    def respond(self, *segments: str) -> None:
        """Admit the request and run the method. Only a method that waits becomes a task."""
        try:
            self.prepare()
            if self.finished:
                return
            method = self.request.method
            if method not in self.methods:
                raise errors.MethodNotAllowed(self.methods)
            work = getattr(self, method.lower())(*segments)
            if work is None:
                self._finish_once()
                return
        except Exception as error:
            self.fail(error)
            return
        self.context.service.start(self._complete(work))

    async def _complete(self, work: Awaitable[None]) -> None:
        try:
            await work
            self._finish_once()
        except asyncio.CancelledError as error:  # of what it waited for: nothing cancels a handler
            self.fail(RuntimeError("cancelled"), error)
        except Exception as error:
            self.fail(error)

    def _finish_once(self) -> None:
        if not self.finished:
            self.finish()

    def prepare(self) -> None:
        """Admit the request.

        Raises:
            SignalError: why it is refused.
        """
        context = self.context
        log, headers = context.service.log, self.request.headers
        context.request_id = log.request_id(headers, context.remote_ip)
        context.traceparent = log.traceparent(headers)
        context.admit(self.find_origin)
        if self.action and context.service.authority is not None and self.request.method != "OPTIONS":
            context.authorize(self.action, self.find_token())

    def find_origin(self) -> str:
        """Return the Origin, or an empty text for an anonymous request.

        Raises:
            InvalidParameter: as `HttpRequestContext.find_origin`.
        """
        return self.context.find_page_origin() if self.anonymous else self.context.find_origin()

    def find_token(self) -> str:
        """Return the token of the header `Authorization`, or an empty text."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""

    def options(self, *path_args: str) -> None:
        """Respond to a preflight request on any path (docs/decisions.md#cors)."""
        methods = ", ".join(self.methods)
        asked = self.request.headers.get("Access-Control-Request-Headers")
        self.set_status(204)
        self.clear_header("Content-Type")
        self.set_header("Allow", methods)
        self.set_header("Access-Control-Allow-Methods", methods)
        self.set_header("Access-Control-Allow-Headers", asked or "Content-Type")
        self.set_header("Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S))

    # The response

    def clear(self) -> None:
        self.status = HTTPStatus.OK.value
        self.headers = ResponseHeaders(DEFAULT_HEADERS)
        self.pieces = b""

    def set_status(self, status_code: int, reason: str | None = None) -> None:
        self.status = status_code

    def set_header(self, name: str, value: str) -> None:  # type: ignore[override]
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"invalid value of the header {name}")
        self.headers[name] = value

    def clear_header(self, name: str) -> None:
        self.headers.pop(name, None)

    def write(self, chunk: bytes) -> None:  # type: ignore[override]
        if self.request.method != "HEAD":
            self.context.sent_bytes += len(chunk)
        self.pieces = self.pieces + chunk if self.pieces else chunk

    def flush(self, include_footers: bool = False) -> "asyncio.Future[None]":
        connection: httputil.HTTPConnection = self.context.connection
        chunk, self.pieces = self.pieces, b""
        if self.context.begun:
            return connection.write(chunk)
        self.context.begun = True
        self._set_common_headers(self.context)
        start_line = httputil.ResponseStartLine("", self.status, "")
        return connection.write_headers(start_line, cast(httputil.HTTPHeaders, self.headers), chunk)

    def finish(self, chunk: bytes | None = None) -> "asyncio.Future[None]":  # type: ignore[override]
        if chunk is not None:
            self.write(chunk)
        if not self.context.begun and self.status not in NO_CONTENT:
            self.headers["Content-Length"] = str(len(self.pieces))
        sent = self.flush()
        self.context.connection.finish()
        self.finished = True
        self.on_finish()
        return sent

    def detach(self) -> Any:
        self.finished = True
        return self.context.connection.detach()

    def _set_common_headers(self, context: HttpRequestContext) -> None:
        """Set the common headers. Doing it at the end saves memory while thousands of requests wait."""
        context.status = self.status
        headers, service = self.headers, context.service
        headers["Date"] = service.clock.http_date(context.now_ms)
        headers["Vary"] = self.vary
        headers["X-Request-Id"] = context.request_id
        if context.origin:
            headers.update(cors(context.origin, service.settings.allowed_origins))

    def on_finish(self) -> None:
        self.context.ended()

    # Errors

    def fail(self, error: Exception, cause: BaseException | None = None) -> None:
        """Send an error response. After a part of the response, close the connection instead."""
        error.__cause__ = cause or error.__cause__
        self.context.count_error(error)
        if self.finished:
            return
        if self.context.begun:
            self.cut_off()
            return
        self.clear()
        self.vary = "Origin"
        self.status, headers, body = error_response(error)
        try:
            for name, value in headers:
                self.set_header(name, value)
        except ValueError as invalid:
            self.context.count_error(invalid)
            body = b""
        if getattr(error, "persists", False):
            self.set_header("Connection", "close")
        self.finish(body)

    def cut_off(self) -> None:
        """End the response with its connection."""
        self.context.connection.close()
        self.context.ended()


class Unknown(Handler):
    """Handler of unknown paths."""

    methods = ("OPTIONS",)

    def prepare(self) -> None:
        super().prepare()
        if self.request.method != "OPTIONS":
            raise errors.PathNotFound


class Document(Handler):
    """Handler of the documents that describe the API."""

    anonymous = True

    def initialize(self, body: bytes) -> None:
        self.body = body

    def get(self) -> None:
        self.write(self.body)

    head = get


class OperationHandler(Handler):
    """An operation over HTTP, with the topic if it has one in its path."""

    def initialize(self, operation: Operation, door: str = "") -> None:
        self.operation = operation
        self.action = operation.action
        self.door = door

    async def answer(self, segment: str | None = None) -> None:
        """Check the parameters and answer with the result, as fast as the client reads it if it is long."""
        operation = self.operation
        if operation.secret:
            self.set_header("Cache-Control", "no-store")
        work = operation.perform(self.context, **self._find_values(segment))
        del segment
        result = work if isinstance(work, bytes) else await work
        if isinstance(result, bytes):
            self.write(result)
            return
        async with aclosing(result):
            while await self._write_next(result):
                await self.flush()
                if self.request.method == "HEAD":  # a HEAD response has no body, and this one no length
                    return
                await self.context.turn()

    async def _write_next(self, pieces: Pieces) -> bool:
        """Write the next piece of a result, and return whether others follow."""
        piece, last = await anext(pieces)
        self.write(piece)
        return not last

    def _find_values(self, segment: str | None) -> dict[str, Any]:
        context, operation = self.context, self.operation
        values = {} if segment is None else check(operation.in_path, {"topic": topic_of(segment)}, context)
        if operation.method == "POST":
            fields = context.json_body()
        elif self.request.query:
            fields = query_fields(self.request.query_arguments, operation.fields)
        else:
            fields = {}
        return values | check(operation.fields, fields, context)


class Query(OperationHandler):
    """An operation that is asked for with GET."""

    def prepare(self) -> None:
        """Redirect a navigation without an Origin to a page (docs/decisions.md#browser-navigation)."""
        if not (self.door and self.context.navigates):
            super().prepare()
            return
        self.anonymous = True
        super().prepare()
        self.clear_header("Content-Type")
        self.vary = "Origin, Sec-Fetch-Mode, Sec-Fetch-Dest"
        self.set_status(303)
        self.set_header("Location", self.door)
        self.finish()

    get = head = OperationHandler.answer


class Command(OperationHandler):
    """An operation that is asked for with POST."""

    methods = ("POST", "OPTIONS")
    post = OperationHandler.answer
