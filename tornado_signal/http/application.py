"""From a parsed HTTP request to its handler: the same for every transport that speaks Tornado's interfaces."""

import asyncio
import contextvars
import functools
import urllib.parse
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from tornado import httputil, web

from .. import errors
from ..api.ice import IceServers
from ..limits import forwarded
from ..limits.fair_queue import FairQueue
from ..limits.per_address import Limits
from ..metrics import RequestMetrics
from ..settings.settings import Settings
from ..stores import Store
from ..system.clock import Clock
from .assets import Asset
from .request_log import Ledger
from .topic_steps import TopicSteps

if TYPE_CHECKING:
    from .base import Handler

MAX_UNFINISHED_BYTES = 64 * 1024 * 1024  # of all bodies together that have not come whole


class Request(httputil.HTTPServerRequest, httputil.HTTPMessageDelegate):
    """Tornado's request, which collects itself from the transport; nothing is parsed that nobody asks for.

    Attributes:
        refusal: why the body is not kept, if it is not.
    """

    connection: httputil.HTTPConnection
    method = ""
    body = b""
    refusal: errors.SignalError | None = None
    _unfinished_bytes = 0  # of the body, as long as it is not whole

    # Not calling Tornado's: it parses the query twice and refuses some of them before a handler could answer in JSON.
    def __init__(self, application: "Application", connection: httputil.HTTPConnection) -> None:
        self._application = application
        self._max_bytes = application.configured.max_body_bytes
        self.connection = connection
        context: Any = getattr(connection, "context", None)
        self.remote_ip = context.remote_ip
        self.protocol = context.protocol

    @functools.cached_property
    def query_fields(self) -> dict[str, list[str]]:
        """The query's parameters, each with its values in their order."""
        return urllib.parse.parse_qs(self.query, keep_blank_values=True)

    @property
    def client_address(self) -> str:
        """Who asks: the connection's other end, or whom the trusted proxies name.

        An IP address, or `unix`; see `forwarded.client_address`.
        """
        proxies = self._application.configured.trusted_proxies
        peer = self.remote_ip or ""
        return forwarded.client_address(peer, self.headers, proxies) if proxies or not peer else peer

    # From the transport

    def headers_received(
        self, start_line: httputil.RequestStartLine | httputil.ResponseStartLine, headers: httputil.HTTPHeaders
    ) -> None:
        """Request line and headers have come; of what says that it is too large the body need not."""
        self.method, self.uri, self.version = start_line  # type: ignore[assignment]
        self.path, _, self.query = self.uri.partition("?")
        self.headers = headers
        self._length = int(headers.get("Content-Length", "0"))
        if self._length > self._max_bytes:
            self._refuse(errors.BodyTooLarge())

    def data_received(self, chunk: bytes) -> None:
        """Keep a piece of the body."""
        if self.refusal is not None:
            return
        if self.body and isinstance(self.body, bytes):
            self.body = cast(bytes, bytearray(self.body))  # one that comes in pieces is not copied for each of them
        self.body += chunk
        if len(self.body) > self._max_bytes:
            self._refuse(errors.BodyTooLarge())
        elif len(self.body) != self._length:
            self._count(len(self.body))
            if self._application.unfinished_bytes - len(self.body) > MAX_UNFINISHED_BYTES:
                self._refuse(errors.Unavailable("unfinished bodies"))

    def finish(self) -> None:
        """The request is complete."""
        if self.refusal is None:
            self._count(0)
            self._application.run(self)

    def on_connection_close(self) -> None:
        """The client went away in the middle of its request."""
        self._count(0)
        self.body = b""

    def _refuse(self, refusal: errors.SignalError) -> None:
        self._count(0)
        self.refusal = refusal
        self.body = b""
        self._application.run(self, at_once=True)

    def _count(self, unfinished_bytes: int) -> None:
        self._application.unfinished_bytes += unfinished_bytes - self._unfinished_bytes
        self._unfinished_bytes = unfinished_bytes


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
        limits: what clients may ask for.
        assets: the files, by whole path.
        ice: the servers that peers are told of.

    Attributes:
        stopping: whether it is not ready for anybody new; whoever is here is served as ever.
        draining: whether every further request is refused.
        unfinished_bytes: what is kept of bodies that have not come whole.
        ledger: what becomes of the requests.
        metrics: the numbers of that.
    """

    def __init__(
        self,
        fixed: dict[str, type["Handler"]],
        by_topic: dict[str, type["Handler"]],
        fallback: type["Handler"],
        *,
        store: Store,
        clock: Clock,
        settings: Settings,
        version: str,
        limits: Limits,
        assets: dict[str, Asset],
        ice: IceServers,
    ) -> None:
        super().__init__(log_function=lambda handler: None)
        self.fixed = fixed
        self.by_topic = by_topic
        self.fallback = fallback
        self.store = store
        self.clock = clock
        self.configured = settings
        self.version = version
        self.limits = limits
        self.stopping = False
        self.assets = assets
        self.ice = ice
        self.draining = False
        self.unfinished_bytes = 0
        self.metrics = RequestMetrics()
        self.ledger = Ledger(settings, self.metrics, name_endpoints(fixed, by_topic, fallback))
        self.queue = FairQueue()
        self.topic_steps = TopicSteps()
        self._tasks: set[asyncio.Task[None]] = set()
        self._context = contextvars.copy_context()
        self._running = 0
        self._idle = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> Request:
        """Tornado's entry for a request on a connection."""
        return Request(self, request_conn)

    @property
    def running(self) -> int:
        """How many requests are being worked on, or are about to be."""
        return self._running

    async def drain(self) -> None:
        """Take no more requests (503) and wait for the answers of those that are being worked on."""
        self.draining = True
        self.store.end_watches()
        if self._running:
            await self._idle.wait()

    def run(self, request: Request, *, at_once: bool = False) -> None:
        """Find the handler of a request and start it, when it is its client's turn.

        What is refused for its body is answered at once, before the client is told to go on sending that.
        """
        segments: tuple[str, ...] = ()
        handler = self.fixed.get(request.path)
        if handler is None:
            handler = self.fallback
            if request.path.count("/") == 2:
                _, topic, last = request.path.split("/")
                if last in self.by_topic:
                    handler, segments = self.by_topic[last], (topic,)
        self._running += 1
        began_s = perf_counter()
        client = self.limits.client(request.client_address)

        def begin() -> None:
            work = handler(self, request, client, began_s).work(*segments)
            # What has its turn behind another request is begun by that one, and would see its context variables.
            task = self.loop.create_task(work, context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        if at_once:
            begin()
        else:
            self.queue.submit(client, begin)

    def ran(self, handler: "Handler") -> None:
        """A handler has come to its end, and its response with it."""
        self._running -= 1
        self.ledger.ended(handler)
        if self.draining and not self._running:
            self._idle.set()


def name_endpoints(
    fixed: dict[str, type["Handler"]], by_topic: dict[str, type["Handler"]], fallback: type["Handler"]
) -> dict[type, str]:
    """The patterns of paths, by handler; the one that has several is that of the files."""
    patterns = {**fixed, **{f"/:topic/{last}": handler for last, handler in by_topic.items()}, "unknown": fallback}
    names: dict[type, str] = {}
    for pattern, handler in patterns.items():
        names[handler] = "files" if handler in names else pattern
    return names
