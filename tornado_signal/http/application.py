"""The public application: routes to Tornado's handlers, each run at its client's turn with its body received."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tornado import httputil, web

from .. import errors
from ..service import wire
from ..service.operations import SUBSCRIPTIONS, Operation, declare
from ..service.service import Service
from ..settings.settings import Settings
from ..system import assets
from .files import File
from .handlers import Command, Document, Handler, Query, Unknown
from .openapi import make_document
from .request import Request
from .request_context import HttpRequestContext
from .streams import Stream

MAX_QUERY_FIELDS: Final = 32  # no operation has more than five
MAX_UNFINISHED_BYTES: Final = 64 * 1024 * 1024  # of all bodies together that are being received


@dataclass(frozen=True)
class Route:
    """The handler of a path.

    Attributes:
        pattern: the name of the path in logs and metrics.
        handler: the class of the handler.
        arguments: arguments of its `initialize` in addition to the context.
    """

    pattern: str
    handler: type[Handler]
    arguments: Mapping[str, Any] = field(default_factory=dict)


MakeRoutes = Callable[[tuple[Operation, ...], Settings], Mapping[str, Route]]

UNKNOWN: Final = Route("unknown", Unknown)


class Application(httputil.HTTPServerConnectionDelegate):
    """The routes, and the size of bodies in transit. It needs a running event loop.

    Args:
        service: the shared state of all requests.
        make_others: returns more routes by path, given the declared operations and the settings.

    Attributes:
        service: as given.
        routes: the routes by path. `{topic}` stands for any first segment of two.
        unfinished_bytes: the size of all bodies in transit.
    """

    def __init__(self, service: Service, make_others: MakeRoutes | None = None) -> None:
        self.service = service
        self.unfinished_bytes = 0
        self._make_others = make_others or (lambda operations, settings: {})
        self._tornado = web.Application()
        self.make_routes(service.settings)

    def make_routes(self, settings: Settings) -> None:
        """Make the routes for some settings: operations, subscriptions, files, documents, and others."""
        files = assets.load(assets.CLIENT | (assets.DEMO if settings.demo else {}))
        operations = declare(settings)
        routes = {
            operation.path: Route(
                operation.pattern, Command if operation.method == "POST" else Query, {"operation": operation}
            )
            for operation in operations
        }
        if settings.demo:
            version = routes["/"]
            routes["/"] = replace(version, arguments={**version.arguments, "door": assets.DEMO_PAGE})
        routes |= {
            subscription.path: Route(subscription.pattern, Stream, {"subscription": subscription})
            for subscription in SUBSCRIPTIONS
        }
        routes |= dict.fromkeys(files, Route("files", File, {"assets": files}))
        anonymous = None if settings.auth_keys is None else settings.auth_anonymous
        document = make_document(operations, {path: asset.media_type for path, asset in files.items()}, anonymous)
        routes["/openapi.json"] = document_route("/openapi.json", document)
        self.routes = {**routes, **self._make_others(operations, settings)}

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> "RequestReader":
        return RequestReader(self, request_conn)

    def run(self, context: HttpRequestContext, route: Route, topic: str | None) -> None:
        """Have the handler of a route answer a request whose body has come."""
        handler = route.handler(self._tornado, context.request, context, **route.arguments)
        handler.respond(*(() if topic is None else (topic,)))

    def find_route(self, path: str) -> tuple[Route, str | None]:
        """Return the route of a path, and the segment that is the topic, percent-encoded, if there is one."""
        route = self.routes.get(path)
        if route is not None:
            return route, None
        if path.count("/") == 2:
            _, topic, last = path.split("/")
            route = self.routes.get("/{topic}/" + last)
            if route is not None:
                return route, topic
        return UNKNOWN, None


class RequestReader(httputil.HTTPMessageDelegate):
    """A request that is being received."""

    _request: Request

    def __init__(self, application: Application, connection: httputil.HTTPConnection) -> None:
        self._application = application
        self._connection = connection
        self._max_bytes = application.service.settings.max_body_bytes
        self._body: bytes | bytearray = b""
        self._unfinished_bytes = 0  # of the body, as long as it is not complete
        self._length = 0
        self._submitted = False

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Refuse a body whose Content-Length is too large before `100 Continue` is sent.

        Raises:
            HTTPInputError: the query has too many fields, which Tornado would copy before admission.
        """
        assert isinstance(start_line, httputil.RequestStartLine)
        if start_line.path.count("&") >= MAX_QUERY_FIELDS:
            raise httputil.HTTPInputError("too many fields in the query")
        self._request = Request(self._connection, start_line, headers)
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
        """Have the request answered at its client's turn, or at once if its body is refused."""
        self._submitted = True
        if self._unfinished_bytes:
            self._count(0)
        body, self._body = b"" if refusal else self._body, b""
        application, request = self._application, self._request
        route, topic = application.find_route(request.path)
        context = HttpRequestContext(application.service, request, route.pattern)
        if refusal is not None:
            context.refusal = refusal
            application.run(context, route, topic)
        else:
            request.body = bytes(body)
            application.service.queue.submit(context.client, lambda: application.run(context, route, topic))

    def _count(self, unfinished_bytes: int) -> None:
        self._application.unfinished_bytes += unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = unfinished_bytes


def document_route(path: str, document: dict[str, Any]) -> Route:
    """Return the route of a document that describes the API."""
    return Route(path, Document, {"body": wire.encode(document)})
