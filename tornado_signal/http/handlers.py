"""Tornado's request handlers: what all of them share, the operations, and the documents."""

import asyncio
from collections.abc import Awaitable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final

from tornado import web

from .. import errors
from ..service import wire
from ..service.operations import Operation, Pieces, check
from .call import HttpCall
from .errors import cors, error_response
from .fields import query_fields, topic_of

PREFLIGHT_MAX_AGE_S: Final = 7200
READING: Final = ("GET", "HEAD", "OPTIONS")


class Handler(web.RequestHandler):
    """Base handler. It admits requests first, and responds with JSON, also to errors.

    Attributes:
        methods: the supported methods.
        anonymous: whether browsers load it without an Origin (docs/decisions.md).
        vary: the request headers that the response depends on.
        call: the request as a call of the service.
    """

    methods: tuple[str, ...] = READING
    anonymous = False
    vary = "Origin"
    call: HttpCall
    client_left = False

    def initialize(self, call: HttpCall) -> None:
        """Take the call that the request is."""
        self.call = call
        if self.client_left:
            call.client_gone()
        self.ui.clear()  # breaks a reference cycle of Tornado's templates

    def prepare(self) -> None:
        """Admit the request.

        Raises:
            SignalError: why it is refused.
        """
        call = self.call
        call.request_id = call.service.log.request_id(self.request.headers, call.remote_ip)
        call.admit(call.find_page_origin if self.anonymous else call.find_origin)

    def options(self, *path_args: str) -> None:
        """Respond to a preflight request on any path (docs/decisions.md#cors)."""
        methods = ", ".join(self.methods)
        asked = self.request.headers.get("Access-Control-Request-Headers")
        self.set_status(204)
        self.clear_header("Content-Type")
        self.set_header("Allow", methods)
        self.set_header("Access-Control-Allow-Methods", methods)
        self.set_header("Access-Control-Allow-Headers", asked or "Content-Type")
        self.set_header("Access-Control-Max-Age", PREFLIGHT_MAX_AGE_S)

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", wire.JSON)

    def decode_argument(self, value: bytes, name: str | None = None) -> Any:
        """Leave a part of the path as it is: the Origin is checked before it."""
        return value

    def compute_etag(self) -> None:
        """Disable Tornado's automatic ETag. Handlers set their own."""

    def write(self, chunk: bytes) -> None:  # type: ignore[override]
        if self.request.method != "HEAD":
            self.call.sent_bytes += len(chunk)
        super().write(chunk)

    def flush(self, include_footers: bool = False) -> "Awaitable[None]":  # type: ignore[override]
        if not self.call.begun:
            self.call.begun = True
            self._set_common_headers(self.call)
        return super().flush(include_footers)

    def _set_common_headers(self, call: HttpCall) -> None:
        """Set the common headers. Doing it at the end saves memory while thousands of requests wait."""
        call.status = self.get_status()
        if call.waited:  # Tornado has set the time of the request
            self.set_header("Date", call.service.clock.http_date(call.now_ms))
        self.set_header("Vary", self.vary)
        self.set_header("X-Request-Id", call.request_id)
        if call.origin:
            for name, value in cors(call.origin, call.service.settings.allowed_origins):
                self.set_header(name, value)

    def on_connection_close(self) -> None:
        if hasattr(self, "call"):
            self.call.client_gone()
        else:  # Tornado's constructor calls this before `initialize`
            self.client_left = True

    def on_finish(self) -> None:
        self.call.ended()

    # Errors

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Send an error response. After a part of the response, close the connection instead."""
        error = self._translate(kwargs["exc_info"][1])
        self.call.count_error(error)
        if self.call.begun:
            self.cut_off()
        else:
            super().send_error(status_code, exc_info=(type(error), error, None))

    def cut_off(self) -> None:
        """End the response with its connection."""
        self.request.connection.close()  # type: ignore[union-attr]
        self.call.ended()

    def _translate(self, error: BaseException) -> BaseException:
        """Return our error for the one that Tornado raises, which may come before the request is admitted."""
        if not isinstance(error, web.HTTPError):
            return error
        try:
            if not self.call.request_id:
                self.prepare()
        except errors.SignalError as refusal:
            return refusal
        return errors.MethodNotAllowed(self.methods)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write the body of an error response."""
        error = kwargs["exc_info"][1]
        status, headers, body = error_response(error)
        self.vary = "Origin"
        self.set_status(status)
        for name, value in headers:
            self.set_header(name, value)
        if getattr(error, "persists", False):
            self.set_header("Connection", "close")
        self.write(body)

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """`send_error` counts and logs it."""


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

    def initialize(self, call: HttpCall, body: bytes) -> None:  # type: ignore[override]
        super().initialize(call)
        self.body = body

    def get(self) -> None:
        self.write(self.body)

    head = get


class OperationHandler(Handler):
    """An operation over HTTP, with the topic if it has one in its path."""

    def initialize(self, call: HttpCall, operation: Operation, door: str = "") -> None:  # type: ignore[override]
        super().initialize(call)
        self.operation = operation
        self.door = door

    async def answer(self, segment: str | None = None) -> None:
        """Check the parameters and answer with the result, as fast as the client reads it if it is long."""
        call, operation = self.call, self.operation
        try:
            work = operation.perform(call, **self._find_values(segment))
            del segment
            result = await work
            if operation.secret:
                self.set_header("Cache-Control", "no-store")
            if isinstance(result, bytes):
                self.write(result)
                return
            async with aclosing(result):
                while await self._write_next(result):
                    await self.flush()
                    if self.request.method == "HEAD":  # a HEAD response has no body, and this one no length
                        return
                    await call.turn()
        except asyncio.CancelledError as error:  # of what it waited for: nothing cancels a handler
            raise RuntimeError("cancelled") from error

    async def _write_next(self, pieces: Pieces) -> bool:
        """Write the next piece of a result, and return whether others follow."""
        piece, last = await anext(pieces)
        self.write(piece)
        return not last

    def _find_values(self, segment: str | None) -> dict[str, Any]:
        call, operation = self.call, self.operation
        values = {} if segment is None else check(operation.in_path, {"topic": topic_of(segment)}, call)
        if operation.method == "POST":
            fields = call.json_body()
        else:
            fields = query_fields(self.request.query_arguments, operation.fields)
        return values | check(operation.fields, fields, call)


class Query(OperationHandler):
    """An operation that is asked for with GET."""

    def prepare(self) -> None:
        """Redirect a navigation without an Origin to a page (docs/decisions.md#browser-navigation)."""
        if not (self.door and self.call.navigates):
            super().prepare()
            return
        self.anonymous = True
        super().prepare()
        self.clear_header("Content-Type")
        self.vary = "Origin, Sec-Fetch-Mode, Sec-Fetch-Dest"
        self.redirect(self.door, status=303)

    get = head = OperationHandler.answer


class Command(OperationHandler):
    """An operation that is asked for with POST."""

    methods = ("POST", "OPTIONS")
    post = OperationHandler.answer
