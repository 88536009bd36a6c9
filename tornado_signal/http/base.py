"""Tornado's request handlers for what is sent in another form than JSON: streams and files.

They are made and run by Tornado. Their requests have been admitted before; see `application.serve`.
"""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from tornado import httputil, web

from .request import Request


class HandlerRequest(httputil.HTTPServerRequest):
    """Tornado's request, made of one that has been admitted. Its query is that one's to read.

    Attributes:
        admitted: that one.
    """

    def __init__(self, admitted: Request) -> None:
        line = admitted.start_line._replace(path=admitted.path)
        super().__init__(connection=admitted.connection, start_line=line, headers=admitted.headers)
        self.admitted = admitted


class Handler(web.RequestHandler):
    """A handler whose errors are JSON, and whose responses pages of the request's origin may read."""

    request: HandlerRequest

    @property
    def call(self) -> Request:
        return self.request.admitted

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        for name, value in self.call.response_headers().get_all():
            self.set_header(name, value)

    def write(self, chunk: bytes) -> None:  # type: ignore[override]
        if self.request.method != "HEAD":
            self.call.sent_bytes += len(chunk)
        super().write(chunk)

    def flush(self, include_footers: bool = False) -> "Awaitable[None]":  # type: ignore[override]
        self.call.begun = True
        self.call.status = self.get_status()
        return super().flush(include_footers)

    def compute_etag(self) -> None:
        """What has an ETag says it itself."""

    def on_connection_close(self) -> None:
        self.call.client_gone()

    def prepare(self) -> None:
        """Let go of what templates need: it refers back to the handler, which would wait for the garbage collector."""
        self.ui.clear()

    def on_finish(self) -> None:
        self.call.ended()

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """It is logged where it becomes a response."""

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        self.call.fail(kwargs["exc_info"][1])


def run_by_tornado(application: web.Application) -> Callable[[Request], Awaitable[None]]:
    """A function that has admitted requests answered by the handlers of an application."""

    async def answer(request: Request) -> None:
        delegate = application.find_handler(HandlerRequest(request))
        delegate.headers_received(request.start_line, request.headers)
        delegate.finish()

    return answer
