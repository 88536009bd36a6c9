"""The public application: routes to Tornado's handlers, each run at its client's turn with its body received."""

import asyncio
import math
import types
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, cast

from tornado import gen, httputil, web

from .. import errors
from ..service import wire
from ..service.operations import SUBSCRIPTIONS, Operation, declare
from ..service.schemas import NOTHING
from ..service.service import Service
from ..settings.settings import Settings
from ..system import assets
from .files import File
from .handlers import Command, Document, Handler, Notice, Query, Unknown
from .openapi import make_document
from .request import Request
from .streams import Stream

MAX_QUERY_FIELDS: Final = 32  # no operation has more than five
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024  # of all bodies together that are being received


@dataclass(frozen=True)
class Route:
    """The handler of a path."""

    pattern: str  # the name of the path in logs and metrics
    handler: type[Handler]
    arguments: dict[str, Any] = field(default_factory=dict)  # the arguments of its `initialize`


def start_coroutine(coroutine: "types.CoroutineType[Any, Any, Any]") -> "asyncio.Task[Any]":
    """Start a coroutine as Tornado does, but without a search for what it is. That is 5 % of a request.

    The task is kept alive by the future that it awaits. A set of tasks and a callback that removes them would cost 3 %.
    """
    return asyncio.get_running_loop().create_task(coroutine)


cast(Any, gen.convert_yielded).register(types.CoroutineType, start_coroutine)  # documented there


MakeRoutes = Callable[[tuple[Operation, ...], Settings], Mapping[str, Route]]

UNKNOWN: Final = Route("unknown", Unknown)
TOPIC: Final = "/{topic}/"  # in the templates of paths whose last but one segment is a topic
BELOW: Final = "/*"  # ends the templates of all paths below another one


class Application(web.Application):
    """The routes, and the size of bodies in transit. It needs a running event loop.

    `make_others` returns more routes by path. `topic_routes` are by the templates of their paths. `below_routes` are
    those of WebSockets, and of other requests without a route, by the first segment of the path.
    """

    def __init__(self, service: Service, make_others: MakeRoutes | None = None) -> None:
        super().__init__()
        self.service = service
        self.unfinished_bytes = 0
        self._make_others = make_others or (lambda operations, settings: {})
        self.make_routes(service.settings)

    def make_routes(self, settings: Settings) -> None:
        """Make the routes for some settings: operations, subscriptions, files, documents, and others."""
        documented = assets.CLIENT | (assets.DEMO if settings.demo else {})
        readable = assets.READABLE if settings.readable_module else {}
        files = assets.load(documented | assets.VERSIONED | assets.MAPS | readable)
        operations = declare(settings)
        handlers = {("GET", False): Query, ("POST", False): Command, ("POST", True): Notice}
        routes = {
            operation.path: Route(
                operation.pattern, handlers[operation.method, operation.result is NOTHING], {"operation": operation}
            )
            for operation in operations
        }
        if settings.demo:
            version = routes["/"]
            routes["/"] = replace(version, arguments={**version.arguments, "navigation_redirect": assets.DEMO_PAGE})
        routes |= {
            subscription.path: Route(subscription.pattern, Stream, {"subscription": subscription})
            for subscription in SUBSCRIPTIONS
        }
        routes |= dict.fromkeys(files, Route("files", File, {"assets": files}))
        anonymous = None if settings.auth_keys is None else settings.auth_anonymous
        media_types = {path: media_type for path, (_, media_type) in documented.items()}
        document = make_document(operations, media_types, anonymous)
        routes["/openapi.json"] = document_route("/openapi.json", document)
        routes |= self._make_others(operations, settings)
        self.topic_routes = {path: route for path, route in routes.items() if TOPIC in path}
        below = [path for path in routes if path.endswith(BELOW)]
        self.below_routes = {path.removesuffix(BELOW).removeprefix("/"): routes[path] for path in below}
        self.routes = {path: route for path, route in routes.items() if path not in {*self.topic_routes, *below}}

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> "RequestReader":
        return RequestReader(self, request_conn)

    def find_handler(self, request: httputil.HTTPServerRequest, **kwargs: Any) -> Any:
        """Return Tornado's delegate for the handler of a request, which a `RequestReader` has made."""
        route, segments = self._find_route(request)
        request.pattern = route.pattern  # type: ignore[attr-defined]
        return self.get_handler_delegate(request, route.handler, route.arguments, segments)  # type: ignore[arg-type]

    def _find_route(self, request: httputil.HTTPServerRequest) -> tuple[Route, list[str]]:
        path = request.path
        route = self.routes.get(path)
        if route is not None:
            return route, []
        parent, _, last = path.rpartition("/")
        parent, slash, topic = parent.rpartition("/")
        route = self.topic_routes.get(f"{parent}{slash}{{topic}}/{last}")
        if route is None or "Upgrade" in request.headers:
            below = self.below_routes.get(path[1:].partition("/")[0])
            if below is not None:
                return below, []
        return (UNKNOWN, []) if route is None else (route, [topic])

    def run(self, request: Request, start_line: httputil.RequestStartLine, body: bytes) -> None:
        """Have Tornado run the handler of a request whose body has been received."""
        try:
            handler = self.find_handler(request)
            prepared = handler.headers_received(start_line, request.headers)
            if prepared is not None:  # by a handler with `stream_request_body`, which gets the body whole
                self.service.start(deliver(request, handler, prepared, body))
                return
            if body:
                handler.data_received(body)
            handler.finish()
        except BaseException:
            request.connection.close()
            request.ended()
            raise

    def log_request(self, handler: web.RequestHandler) -> None:
        """Do nothing: `Request.ended` writes the log."""


class RequestReader(httputil.HTTPMessageDelegate):
    """A request that is being received."""

    _start_line: httputil.RequestStartLine
    _headers: httputil.HTTPHeaders

    def __init__(self, application: Application, connection: httputil.HTTPConnection) -> None:
        self._application = application
        self._connection = connection
        self._max_bytes = application.service.live.current.max_body_bytes
        self._body: bytes | bytearray = b""
        self._unfinished_bytes = 0  # of the body, as long as it is not complete
        self._length = 0  # the announced one, 0 without
        self._submitted = False  # whether it was passed on; the rest of the body is ignored

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a body whose Content-Length is too large before `100 Continue` is sent.

        Raise HTTPInputError if the query has too many fields. Tornado copies them before the rate is checked.
        """
        assert isinstance(start_line, httputil.RequestStartLine)
        if start_line.path.count("&") >= MAX_QUERY_FIELDS:
            raise httputil.HTTPInputError("too many fields in the query")
        self._start_line, self._headers = start_line, headers
        if (length := headers.get("Content-Length")) is not None:
            self._length = int(length)
            if self._length > self._max_bytes:
                self._refuse_body()

    def _refuse_body(self) -> None:
        cast(Any, self._connection).set_max_body_size(math.inf)  # the server would refuse it without a handler
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
            self._refuse_body()
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

    def _submit(self, error: errors.SignalError | None) -> None:
        """Have the request answered at its client's turn, or at once if its body is refused."""
        self._submitted = True
        if self._unfinished_bytes:
            self._count(0)
        body, self._body = self._body, b""
        application = self._application
        request = Request(application.service, self._connection, self._start_line, self._headers)
        request.received_bytes = len(body)
        if error is not None:
            request.body_error = error
            application.run(request, self._start_line, b"")
        else:
            queue = application.service.queue
            if queue.may_start(request.began_s):
                queue.context.run(application.run, request, self._start_line, bytes(body))
            else:
                queue.submit(request.client, partial(application.run, request, self._start_line, bytes(body)))

    def _count(self, unfinished_bytes: int) -> None:
        self._application.unfinished_bytes += unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = unfinished_bytes


async def deliver(
    request: Request, handler: httputil.HTTPMessageDelegate, prepared: Awaitable[None], body: bytes
) -> None:
    """Pass a body to a handler with `stream_request_body`, unless its `prepare` has responded."""
    try:
        await prepared
        if body and not request.over and (work := handler.data_received(body)) is not None:
            await work
        if not request.over:
            handler.finish()
    except BaseException:
        request.connection.close()
        request.ended()
        raise


def document_route(path: str, document: dict[str, Any]) -> Route:
    return Route(path, Document, {"body": wire.encode(document)})
