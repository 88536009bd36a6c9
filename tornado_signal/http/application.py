"""From what comes on connections to the endpoints: each request is received, routed, and worked on in its turn."""

import asyncio
from typing import Final

from tornado import httputil

from .. import errors
from .request import Endpoint, Request
from .site import Site

MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024  # of all bodies together that have not come whole
PREFLIGHT_MAX_AGE_S: Final = 7200


class Application(httputil.HTTPServerConnectionDelegate):
    """The routes, and the requests that are being worked on. Needs a running event loop.

    Args:
        site: what all requests share.
        endpoints: by their paths, in which `{topic}` stands for any first segment of two.
        unknown: the endpoint of every other path.

    Attributes:
        unfinished_bytes: what is kept of bodies that have not come whole.
    """

    def __init__(self, site: Site, endpoints: dict[str, Endpoint], unknown: Endpoint) -> None:
        self.site = site
        self.endpoints = endpoints
        self.unknown = unknown
        self.unfinished_bytes = 0

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> "Reception":
        return Reception(self, request_conn)

    def find(self, path: str) -> Endpoint:
        endpoint = self.endpoints.get(path)
        if endpoint is None and path.count("/") == 2:
            endpoint = self.endpoints.get("/{topic}/" + path.rpartition("/")[2])
        return endpoint or self.unknown

    def submit(self, request: Request) -> None:
        """Start the work for a request, when it is its client's turn.

        What is refused for its body is answered at once, before the client is told to go on sending that.
        """
        if request.refusal is not None:
            self.site.start(serve(request))
        else:
            self.site.queue.submit(request.client, lambda: self.site.start(serve(request)))


async def serve(request: Request) -> None:
    """Answer a request, whatever comes.

    It is never left without an answer: nothing but the end of the process cancels this task, so a cancellation in it is
    of what it waited for.
    """
    endpoint = request.endpoint
    try:
        request.begin()
        if endpoint.door and request.navigates:
            request.admit_page()
            request.redirect(endpoint.door)
            return
        if endpoint.page:
            request.admit_page()
        else:
            request.admit()
        if request.method == "OPTIONS":
            preflight(request)
        elif request.method in endpoint.methods:
            await endpoint.answer(request)
        else:
            raise errors.PathNotFound if endpoint.unknown else errors.MethodNotAllowed(endpoint.methods)
    except (Exception, asyncio.CancelledError) as error:
        try:
            request.fail(error)
        except Exception as second:
            request.cut_off(second)


def preflight(request: Request) -> None:
    """Answer OPTIONS, on every path (contract B14)."""
    methods = ", ".join(request.endpoint.methods)
    headers = request.response_headers()
    del headers["Content-Type"]
    headers["Allow"] = methods
    headers["Access-Control-Allow-Methods"] = methods
    headers["Access-Control-Allow-Headers"] = request.headers.get("Access-Control-Request-Headers") or "Content-Type"
    headers["Access-Control-Max-Age"] = str(PREFLIGHT_MAX_AGE_S)
    request.respond(b"", headers, 204)


class Reception(httputil.HTTPMessageDelegate):
    """A request that is being received."""

    def __init__(self, application: Application, connection: httputil.HTTPConnection) -> None:
        self._application = application
        self._connection = connection
        self._max_bytes = application.site.service.settings.max_body_bytes
        self._body: bytes | bytearray = b""
        self._unfinished_bytes = 0  # of the body, as long as it is not whole
        self._submitted = False

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Request line and headers have come; of what says that it is too large the body need not."""
        assert isinstance(start_line, httputil.RequestStartLine)
        self._start_line = start_line
        self._headers = headers
        self._length = int(headers.get("Content-Length", "0"))
        if self._length > self._max_bytes:
            self._submit(errors.BodyTooLarge())

    def data_received(self, chunk: bytes) -> None:
        if self._submitted:
            return
        if not self._body:
            self._body = chunk
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)  # one that comes in pieces is not copied for each of them
            self._body += chunk
        if len(self._body) > self._max_bytes:
            self._submit(errors.BodyTooLarge())
        elif len(self._body) != self._length:
            self._count(len(self._body))
            if self._application.unfinished_bytes - len(self._body) > MAX_UNFINISHED_BYTES:
                self._submit(errors.Unavailable("unfinished bodies"))

    def finish(self) -> None:
        if not self._submitted:
            self._submit(None)

    def on_connection_close(self) -> None:
        self._count(0)
        self._body = b""

    def _submit(self, refusal: errors.SignalError | None) -> None:
        self._submitted = True
        self._count(0)
        body, self._body = b"" if refusal else self._body, b""
        application = self._application
        endpoint = application.find(self._start_line.path.partition("?")[0])
        application.submit(
            Request(application.site, self._connection, self._start_line, self._headers, body, endpoint, refusal)
        )

    def _count(self, unfinished_bytes: int) -> None:
        self._application.unfinished_bytes += unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = unfinished_bytes
