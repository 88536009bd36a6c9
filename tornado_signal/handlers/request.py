"""From a parsed HTTP request to its handler: the same for every transport that speaks Tornado's interfaces."""

import asyncio
import functools
import urllib.parse
from typing import Any

from tornado import httputil, web

from ..clock import Clock
from ..settings import Settings
from ..store import Store

MAX_BODY_BYTES = 256 * 1024


class Request(httputil.HTTPServerRequest):
    """Tornado's request, with nothing parsed that nobody asks for.

    Attributes:
        too_large: whether the body was over the limit, and therefore not kept.
    """

    # Not calling Tornado's: it parses the query twice and refuses some of them before a handler could answer in JSON.
    def __init__(
        self,
        start_line: httputil.RequestStartLine,
        headers: httputil.HTTPHeaders,
        connection: httputil.HTTPConnection,
    ) -> None:
        self.method, self.uri, self.version = start_line
        self.path, _, self.query = start_line.path.partition("?")
        self.headers = headers
        self.connection = connection
        self.body = b""
        self.too_large = False
        context: Any = getattr(connection, "context", None)
        self.remote_ip = context.remote_ip
        self.protocol = context.protocol

    @functools.cached_property
    def query_fields(self) -> dict[str, list[str]]:
        """The query's parameters, each with its values in their order."""
        return urllib.parse.parse_qs(self.query, keep_blank_values=True)

    def _parse_body(self) -> None:
        """Tornado's hook for forms; every body here is JSON, whatever its Content-Type says (contract B2)."""


class Exchange(httputil.HTTPMessageDelegate):
    """One request on its way in: its body is collected, up to the limit, and its handler run."""

    def __init__(self, application: "Application", connection: httputil.HTTPConnection) -> None:
        self._application = application
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._started = False
        self.request: Request

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Make the request; one that says that it is too large need not come whole."""
        assert isinstance(start_line, httputil.RequestStartLine)
        self.request = Request(start_line, headers, self._connection)
        if int(headers.get("Content-Length", "0")) > MAX_BODY_BYTES:
            self._refuse()

    def data_received(self, chunk: bytes) -> None:
        """Keep a piece of the body."""
        if self._started:
            return
        self._size += len(chunk)
        if self._size > MAX_BODY_BYTES:
            self._refuse()
        else:
            self._chunks.append(chunk)

    def finish(self) -> None:
        """The request is complete."""
        if not self._started:
            self.request.body = b"".join(self._chunks)
            self._application.run(self.request)

    def on_connection_close(self) -> None:
        """The client went away in the middle of its request."""

    def _refuse(self) -> None:
        self._started = self.request.too_large = True
        self._chunks.clear()
        self._application.run(self.request)


class Application(web.Application):
    """The routes, and what the handlers share.

    Args:
        fixed: handlers by whole path.
        by_topic: handlers by the last segment of `/:topic/…`.
        fallback: the handler of every other path.
        store: the sessions.
        clock: read once for each request.
        settings: as configured.
        version: what GET / says.
    """

    def __init__(
        self,
        fixed: dict[str, type[web.RequestHandler]],
        by_topic: dict[str, type[web.RequestHandler]],
        fallback: type[web.RequestHandler],
        *,
        store: Store,
        clock: Clock,
        settings: Settings,
        version: str,
    ) -> None:
        super().__init__(log_function=lambda handler: None)
        self.fixed = fixed
        self.by_topic = by_topic
        self.fallback = fallback
        self.store = store
        self.clock = clock
        self.configured = settings
        self.version = version
        self.draining = False
        self._running = 0
        self._idle = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> Exchange:
        """Tornado's entry for a request on a connection."""
        return Exchange(self, request_conn)

    async def drain(self) -> None:
        """Take no more requests (503) and wait for the answers of those that are being worked on."""
        self.draining = True
        self.store.watches.end()
        if self._running:
            await self._idle.wait()

    def run(self, request: Request) -> None:
        """Find the handler of a request and start it."""
        handler_class = self.fixed.get(request.path)
        arguments: list[Any] = []
        if handler_class is None:
            handler_class = self.fallback
            if request.path.count("/") == 2:
                _, topic, last = request.path.split("/")
                if last in self.by_topic:
                    handler_class, arguments = self.by_topic[last], [topic]
        self._loop.create_task(self._work(handler_class(self, request), arguments))

    async def _work(self, handler: web.RequestHandler, arguments: list[Any]) -> None:
        self._running += 1
        try:
            await handler._execute([], *arguments)
        finally:
            self._running -= 1
            if self.draining and not self._running:
                self._idle.set()
