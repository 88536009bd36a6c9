"""The shared state of all requests: store, limits, queues and life cycle."""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from ..auth import Authority, Bearer, Grant
from ..errors import Unavailable
from ..limits.fair_queue import FairQueue
from ..limits.forwarded import trusted
from ..limits.per_address import Limits
from ..limits.recent import OTHERS, RecentCounts
from ..metrics import Family
from ..settings.origins import AllowedOrigins
from ..settings.settings import LiveSettings, Settings
from ..stores import Store
from ..system.clock import Clock
from ..system.hourly import HourlyWarnings
from ..system.lifecycle import DRAINING, Lifecycle
from .event_batches import EventBatchCache
from .ice import IceServers, ProvidedServers
from .refusals import Refusals
from .reports import ConnectionReports
from .request_log import RequestLog

log = logging.getLogger(__name__)

MAX_SERVED: Final = 1000  # requests that are counted together
MAX_REFUSED_ORIGINS: Final = 50  # refused origins logged per hour, without those that are similar to an allowed one

TOKEN_EXPIRED: Final = "token expired"
"""The reason of the close frame when a token has expired."""
NO_TOKEN: Final = "no token was presented in time"
"""The reason of the close frame when the time for the first token has passed."""

# A task starts its work when it is created, where Python can do that.
EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}


class WaitingRequest(Protocol):
    """A request that waits, or an event stream."""

    origin: str
    grant: Grant | None

    def disconnect(self) -> bool:
        """Close its connection and return True, unless the connection also has other requests."""


class HeldOffer(Protocol):
    """An offer that a connection holds. `key` has its origin and code. `topic` is None if it is unknown."""

    key: tuple[str, bytes]
    topic: str | None


class ConnectionObserver(Protocol):
    """Observer of WebSockets, of all protocols."""

    def opened(self, protocol: str, connection: str, origin: str, address: str) -> Callable[[int], None] | None:
        """Report a new connection. It must neither wait nor raise.

        `connection` is the id of its handshake. The result is called with the close code at the end of the connection.
        """

    def metric_families(self) -> Iterator[Family]:
        """Yield the observer's own metrics."""


@dataclass(eq=False)
class Service:
    """The shared state of all requests. It needs a running event loop."""

    store: Store
    live: LiveSettings
    clock: Clock  # the clock for the time of requests
    ice: IceServers
    version: str  # the commit that the server was built from
    limits: Limits
    log: RequestLog  # the request log and its counters
    authority: Authority | None = None  # verifies tokens, or None if requests need none
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    provided: ProvidedServers = field(default_factory=ProvidedServers)  # the servers of the TURN provider
    reports: ConnectionReports = field(default_factory=ConnectionReports)  # of clients about their connections
    running: int = 0  # the number of requests in progress or queued
    # The waiting requests, each with its topic, which is empty for those that wait for a session.
    waits: dict[WaitingRequest, str] = field(default_factory=dict)
    idle: asyncio.Event = field(default_factory=asyncio.Event)  # set when no request is left while the service drains
    event_batches: EventBatchCache = field(default_factory=EventBatchCache)  # the latest events of topics
    queue: FairQueue = field(default_factory=FairQueue)  # starts requests, round-robin by client
    # Resumes requests that have waited, so that thousands of them do not delay a new one.
    resuming: FairQueue = field(default_factory=FairQueue)
    refusals: Refusals = field(init=False)  # the reasons of refusals now, for the log
    recent_origins: RecentCounts[str] = field(init=False)  # requests of the last minutes by origin
    # Requests that the counts of the last minutes do not contain yet, by client, origin (or None) and status.
    served: list[tuple[str, str | None, int]] = field(default_factory=list)
    refused_origins: RecentCounts[str] = field(init=False)  # the same of origins that are not in `--allowed-origins`
    observer: ConnectionObserver | None = None  # the observer of WebSockets, or None
    proxy_reported: bool = False  # whether a proxy whose clients have no limits has been logged
    null_origin_reported: bool = False  # whether a client with the origin `null` has been logged
    origin_warnings: HourlyWarnings = field(default_factory=HourlyWarnings)  # about proxies, by what they change
    client_warnings: HourlyWarnings = field(default_factory=HourlyWarnings)
    refused_origin_warnings: HourlyWarnings = field(default_factory=lambda: HourlyWarnings(MAX_REFUSED_ORIGINS))
    similar_origin_warnings: HourlyWarnings = field(default_factory=HourlyWarnings)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.log.metrics.refusals)
        self.recent_origins = RecentCounts(lambda origin: OTHERS, OTHERS)
        self.refused_origins = RecentCounts(lambda origin: OTHERS, OTHERS)

    @property
    def settings(self) -> Settings:
        return self.live.current

    def report_proxy(self, address: str) -> None:
        """Log once that a proxy, at an address without limits of its own, is not a trusted one."""
        if not (self.limits.client(address).limited or trusted(address, self.settings.trusted_proxies)):
            self.proxy_reported = True
            log.warning(
                "a proxy that --trusted-proxies does not name forwards requests; "
                "its clients have no limits per address, because its own address has none"
            )

    def report_client(self, address: str, warning: str) -> None:
        """Log a mistake of a client, once an hour for each address."""
        if self.client_warnings.due(address, self._loop.time()):
            log.warning("%s", warning)

    def report_null_origin(self) -> None:
        """Log once that a page has an origin that any site can have (docs/security.md#the-origin-null)."""
        self.null_origin_reported = True
        log.warning(
            "a page with the origin null is served, which file:// pages, sandboxed frames and Electron applications of "
            "all sites share; serve pages from a host, or decide with --allowed-origins whether to serve null"
        )

    def refuse_origin(self, origin: str, allowed: AllowedOrigins) -> None:
        """Count a request of an origin that is not allowed, and log the origin once an hour.

        Clients can invent origins, but only few that are similar to an allowed one. These are always logged.
        """
        self.refused_origins.count(origin, HTTPStatus.FORBIDDEN)
        similar = allowed.find_similar(origin)
        warnings = self.refused_origin_warnings if similar is None else self.similar_origin_warnings
        if warnings.due(origin, self._loop.time()):
            reason = "does not list it" if similar is None else f"lists only {similar}, which is another origin"
            log.warning("pages of %s are refused: --allowed-origins %s; add it if they are yours", origin, reason)

    def report_origin(self, seen: str, own: str | None) -> None:
        """Log once an hour that pages of this host have another origin than this server knows.

        `own` is the origin of this server by the headers Host and X-Forwarded-*.
        """
        if (own or "").partition("://")[2] != seen.partition("://")[2]:
            cause, remedy = "Host", "let it forward the Host header (nginx: proxy_set_header Host $http_host;"
            remedy += " Apache: ProxyPreserveHost On)"
        else:
            cause, remedy = "scheme", "let it set X-Forwarded-Proto, and name it in --trusted-proxies"
        if self.origin_warnings.due(cause, self._loop.time()):
            log.warning("a proxy changes the %s of requests for pages of this host; %s", cause, remedy)

    def count_served(self) -> None:
        """Move the requests in `served` to the counts of the last minutes."""
        for (client, origin, status), number in Counter(self.served).items():
            self.limits.recent.count(client, status, number)
            if origin is not None:
                self.recent_origins.count(origin, status, number)
        self.served.clear()

    def rotate_recent(self) -> None:
        """Begin the next slice of the requests of the last minutes."""
        self.count_served()
        for recent in (self.limits.recent, self.recent_origins, self.refused_origins, self.log.recent_refusals):
            recent.rotate()

    def store_ahead_s(self) -> float:
        """Return how far the store's time is ahead of this machine's clock, in seconds."""
        return self.store.now_ms() / 1000 - self.clock.wall_s()

    def charge_publisher(self, address: str, units: int) -> bool:
        """Charge a client for what another process has published for it. Return whether its rate allows that."""
        retry_after_s = self.limits.charge_request(self.limits.client(address), self.clock.now_ms(), units)
        if retry_after_s:
            self.log.count_refusal(HTTPStatus.TOO_MANY_REQUESTS, "requests of an address")
            self.limits.count_recent(address, HTTPStatus.TOO_MANY_REQUESTS)
        return not retry_after_s

    def make_bearer(self, grant: Grant | None, end: Callable[[], None]) -> Bearer | None:
        """Have `end` called soon after a grant expires. Return None if requests need no token."""
        if self.authority is None:
            return None
        return self.authority.make_bearer(grant, self.clock.wall_s, end)

    def start(self, work: Coroutine[None, None, object]) -> None:
        """Start work for a client. It is given up if Redis does not respond."""
        task = asyncio.Task(self._run(work), loop=self._loop, **EAGER)
        if not task.done():
            self._tasks.add(task)

    def finish(self, work: Coroutine[None, None, object]) -> None:
        """Do work that waits for nothing, without a task. Raise RuntimeError if it waits."""
        try:
            work.send(None)
        except StopIteration:
            return
        work.close()
        raise RuntimeError("work that waits needs a task")

    async def _run(self, work: Coroutine[None, None, object]) -> None:
        try:
            await work
        except Unavailable:
            pass
        finally:  # a callback of the task would take another event-loop iteration
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task(self._loop)))

    async def drain(self) -> None:
        """Refuse further requests (503) and wait for the responses to those that are being worked on."""
        self.lifecycle.reach(DRAINING)
        self.store.end_watches()
        if self.running:
            await self.idle.wait()
        if self._tasks:  # several responses may go in one message, after the last of them
            await asyncio.wait(self._tasks)
