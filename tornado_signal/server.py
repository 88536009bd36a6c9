"""The process: open the store, listen, tell the service manager, and on a signal drain and stop."""

import asyncio
import contextlib
import ctypes
import dataclasses
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import NamedTuple

from tornado import web
from tornado.ioloop import PeriodicCallback

from . import COMMIT
from .api.call import Service
from .api.ice import open_ice_servers
from .api.operations import declare
from .errors import DamagedDatabase, OperatorError, Unavailable
from .http.errors import make_refusal
from .http.routes import make_application
from .http.site import Site
from .limits.per_address import AdminConnectionLimiter, Limits
from .metrics import RequestMetrics
from .settings.settings import Settings
from .stores import open_store
from .system.activation import passed_sockets
from .system.clock import Clock
from .system.lag import Lag
from .system.notify import Notifier
from .system.sockets import open_sockets, url
from .system.tls import Tls
from .transport import Server, ServerState
from .websocket.endpoint import websocket_endpoints

log = logging.getLogger(__name__)

STATUS_S = 5.0  # between two reports to the service manager
LAST_REQUEST_S = 1.0  # for connections that are open when the server stops, to send one more request
CLOSE_WEBSOCKETS_S = 2.0  # over which WebSockets are closed, so that not all clients come back at one moment
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
ADDRESSES_TO_FILL = 8  # the least number of addresses that can fill the store
# Of mallopt(3); setting one of them ends their growth.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BLOCK_BYTES = 128 * 1024
DESCRIPTORS_KEPT = 800  # for LevelDB's files and everything but connections


class Inherited(NamedTuple):
    """What a process has from the one that started it.

    Attributes:
        public: the public listener's sockets.
        admin: the admin listener's.
        lifeline: a descriptor that is at its end when the process is to stop.
    """

    public: list[socket.socket]
    admin: list[socket.socket]
    lifeline: int


def number_of_workers(settings: Settings) -> int:
    """How many processes are to serve: as many as the settings say, or one for each processor."""
    return len(os.sched_getaffinity(0)) if settings.workers == "auto" else settings.workers


def raise_descriptor_limit() -> int:
    """Raise the limit on open files as far as it goes; how many connections it leaves room for.

    Raises:
        OperatorError: it leaves room for none.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = (hard if hard != resource.RLIM_INFINITY else 1_000_000) - DESCRIPTORS_KEPT
    if room <= 0:
        raise OperatorError(
            f"{hard} open files are allowed, and {DESCRIPTORS_KEPT} of them are needed beside connections; "
            "allow more: LimitNOFILE= of a unit, ulimit -n of a shell"
        )
    return room


def return_freed_memory() -> None:
    """Have the C library return large blocks to the system as soon as they are free.

    By default it keeps them: after a minute of large answers an idle server would hold hundreds of megabytes. A C
    library without `mallopt` is left as it is.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            mallopt(option, LARGE_BLOCK_BYTES)


def collect_rarely() -> None:
    """Have Python look through all objects for unused ones ten times more rarely, and not at those of the start.

    Nothing else runs meanwhile: for a tenth of a second, with 5,000 WebSockets. What requests and connections leave
    is freed without it.
    """
    gc.freeze()
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, 10 * old)


def open_tls(settings: Settings) -> Tls | None:
    """Certificate and key, if there is to be HTTPS.

    Raises:
        OperatorError: they cannot be used.
    """
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return Tls(settings.tls_certificate, settings.tls_key)


async def check(settings: Settings) -> None:
    """Open everything that `serve` needs and close it again.

    Raises:
        OperatorError: something cannot be used.
    """
    raise_descriptor_limit()
    open_tls(settings)
    open_ice_servers(settings)
    try:
        # A check does not move a damaged database aside.
        await (await open_store(dataclasses.replace(settings, start_empty_if_damaged=False), Clock())).close()
    except DamagedDatabase as error:
        if not settings.start_empty_if_damaged:
            raise
        log.warning("%s; the server will move it aside and start empty", error)
    public, admin = open_all_sockets(settings)
    for listening in public + admin:
        listening.close()


def open_all_sockets(settings: Settings) -> tuple[list[socket.socket], list[socket.socket]]:
    """The public and the admin listener's sockets, as passed to the process or as configured.

    Returns:
        Both; none of the admin listener when it is off.
    """
    public, admin = passed_sockets(os.environ)
    if settings.admin_port is not None:
        admin = admin or open_sockets(settings.admin_address, settings.admin_port, "--admin-port")
    # Last: if something failed after it, the file of a Unix socket would stay behind.
    return public or open_sockets(settings.address, settings.port, "--port", settings.socket_mode), admin


def load_admin_application(site: Site, state: ServerState) -> web.Application:
    """The application of the admin listener; what it is made with takes a while to load."""
    from .admin.application import make_admin_application

    return make_admin_application(site, state)


def tell_where(urls: list[str], admin: list[socket.socket]) -> None:
    """Log where the process can be reached: the public listener's URLs, and the admin listener's sockets."""
    for each in urls:
        log.info("listening on %s", each)
    for listening in admin:
        log.info("admin listener on %s", url(listening, "http"))


def reload(tls: Tls | None) -> None:
    """Read certificate and key again; settings need a restart."""
    if tls is None:
        log.info("nothing to read again: settings need a restart")
        return
    try:
        tls.reload()
        log.info("certificate and key read again")
    except OperatorError as error:
        log.error("the certificate that is in use stays: %s", error)


class Signals:
    """The signals that the process has received. Needs a running event loop.

    Attributes:
        stop: set by SIGTERM and SIGINT.
        force_stop: set by a second one of them: stop without draining.
        reload: called on SIGHUP.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.force_stop = asyncio.Event()
        self.reload: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())

    def stop_at_end_of(self, lifeline: int) -> None:
        """Set `stop` when a descriptor is at its end."""
        loop = asyncio.get_running_loop()

        def at_end() -> None:
            loop.remove_reader(lifeline)
            self.stop.set()

        loop.add_reader(lifeline, at_end)

    def _on_stop(self) -> None:
        (self.force_stop if self.stop.is_set() else self.stop).set()


async def drain(server: Server, admin_server: Server, site: Site) -> None:
    """Accept no more connections, and answer those that are open.

    Before that, load balancers have the time that is set for them to send their clients elsewhere. A waiting request
    gets its normal response, and an open connection has time for one more request. New connections are for the next
    process, if the service manager keeps the sockets open.
    """
    site.stopping = True
    if delay_ms := site.service.settings.drain_delay_ms:
        site.service.leaving = True
        await asyncio.sleep(delay_ms / 1000)
    await server.accept_no_more()
    site.service.store.end_watches()
    server.close_websockets(CLOSE_WEBSOCKETS_S)
    await server.serve_the_rest(LAST_REQUEST_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(site.drain(), DRAIN_LIMIT_S)
    await server.close(CLOSE_LIMIT_S)
    await admin_server.close(CLOSE_LIMIT_S)


async def run_until(event: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Run until it is done, or cancel it when the event is set."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    working.cancel()


async def serve(settings: Settings, inherited: Inherited | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: those of the process.
        inherited: what the process has to serve on; None to open it as configured.

    Raises:
        OperatorError: something cannot be used; nothing has been served then.
    """
    return_freed_memory()
    collect_rarely()
    faulthandler.enable()  # a watchdog's SIGABRT leaves in the log where the loop was stuck
    signals = Signals()
    if inherited is not None:
        signals.stop_at_end_of(inherited.lifeline)
    notifier = Notifier(os.environ)
    max_connections = raise_descriptor_limit()
    tls = open_tls(settings)
    clock = Clock()
    store = await open_store(settings, clock)
    public: list[socket.socket] = []
    try:
        public, admin = (inherited.public, inherited.admin) if inherited else open_all_sockets(settings)
        limits = Limits(settings, max_connections, lambda: store.capacity_bytes // ADDRESSES_TO_FILL)
        metrics = RequestMetrics()
        service = Service(store, settings, clock, open_ice_servers(settings), COMMIT)
        application = make_application(service, limits, metrics, websocket_endpoints(declare(settings)))
        site = application.site
        refusal = make_refusal(settings, site.log)
        context = tls.context if tls else None
        state = ServerState(
            application, refusal, context, limits, settings.max_unsent_bytes, settings.max_read_ahead_bytes
        )
        server = Server(state)
        await server.start(public)
        admin_application = load_admin_application(site, state) if admin else web.Application()
        admin_server = Server(ServerState(admin_application, refusal, limiter=AdminConnectionLimiter()))
        await admin_server.start(admin)
        lag = Lag(metrics.loop_lag)
        urls = [url(listening, state.protocol) for listening in public]
        if inherited is None:
            tell_where(urls, admin)
        listed = 0

        async def count() -> None:
            nonlocal listed
            with contextlib.suppress(Unavailable):
                listed, _ = await store.counts()

        def status() -> str:
            if signals.stop.is_set():
                return f"draining, {len(state.connections)} connections left"
            return f"listening on {', '.join(urls)}, {listed} sessions listed"

        async def report() -> None:
            await count()
            notifier.alive(status())

        def on_reload() -> None:
            if not signals.stop.is_set():
                notifier.reloading()
                try:
                    reload(tls)
                finally:
                    notifier.ready(status())

        signals.reload = on_reload
        reports = PeriodicCallback(report, notifier.pause_s(STATUS_S) * 1000)
        reports.start()
        await count()
        notifier.ready(status())

        await signals.stop.wait()
        log.info("stopping: draining")
        notifier.stopping(status())
        lag.stop()
        await run_until(signals.force_stop, drain(server, admin_server, site))
        if signals.force_stop.is_set():
            log.info("stopping at once")
        await server.close(0)
        await admin_server.close(0)
        reports.stop()
    finally:
        for listening in public:
            listening.close()  # a Unix socket's file goes with it
        await store.close()
    log.info("stopped")
