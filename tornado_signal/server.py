"""The process: open the store, listen, tell the service manager, and on a signal drain and stop."""

import asyncio
import base64
import contextlib
import ctypes
import dataclasses
import faulthandler
import functools
import gc
import logging
import os
import pickle
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tornado import web
from tornado.ioloop import PeriodicCallback

from . import COMMIT
from .errors import DamagedDatabase, OperatorError
from .http.application import Application
from .http.errors import make_refusal
from .limits.per_address import AdminConnectionLimiter, Limits
from .metrics import RequestMetrics
from .service.ice import open_ice_servers
from .service.request_log import RequestLog
from .service.service import Service
from .settings.settings import Settings, merge
from .settings.sources import ConfigError
from .stores import check_files, open_store, quotas_of, where
from .stores.latest_counts import LatestCounts
from .system import logs
from .system.activation import passed_sockets
from .system.balance import PERIOD_S, Balance
from .system.clock import Clock
from .system.lag import Lag
from .system.notify import Notifier
from .system.secrets import admin_token, redis_passwords
from .system.sockets import is_local, open_sockets, url
from .system.tls import Tls
from .transport import Server, ServerState
from .transport.state import Refusal
from .websocket.endpoint import websocket_routes
from .websocket.presence import Holds

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
KEPT = "what is in use stays: %s"
MAX_ENCODED_BYTES = 1 << 24
DESCRIPTORS_KEPT = 800  # for LevelDB's files and everything but connections


class Inherited(NamedTuple):
    """What a process has from the one that started it.

    Attributes:
        worker: the number of the process.
        public: the public listener's sockets.
        admin: the admin listener's.
        lifeline: a descriptor on which settings come, as `encode` makes them; at its end the process is to stop.
        balance: decides whether the process accepts connections.
    """

    worker: int
    public: list[socket.socket]
    admin: list[socket.socket]
    lifeline: int
    balance: Balance


def encode(value: object) -> bytes:
    """What the supervisor sends to a worker, as a line."""
    return base64.b64encode(pickle.dumps(value)) + b"\n"


def decode(line: bytes) -> Any:
    """Inverse of `encode`."""
    return pickle.loads(base64.b64decode(line))


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


async def check(settings: Settings) -> list[str]:
    """Open everything that `serve` needs and close it again.

    Returns:
        What can be used, a line for each.

    Raises:
        OperatorError: something cannot be used.
    """
    done = [f"open files: room for {raise_descriptor_limit()} connections"]
    if open_tls(settings) is not None:
        done.append(f"certificate and key: {settings.tls_certificate}, {settings.tls_key}")
    if admin_token(settings):
        done.append(f"admin token: {settings.admin_token_file}")
    ice = open_ice_servers(settings)
    if ice.stun or ice.turn_urls:
        done.append(f"ICE servers: {', '.join((*ice.stun, *ice.turn_urls))}, not asked")
    check_files(settings)
    try:
        # A check does not move a damaged database aside.
        store = await open_store(dataclasses.replace(settings, start_empty_if_damaged=False), Clock())
        counts = LatestCounts(store)
        await counts.refresh()
        counts.close()
        await store.close()
        found = "{} sessions listed in {} topics".format(*counts.value) if counts.value else "too much to count at once"
        done.append(f"store: {where(settings)}, {found}")
    except DamagedDatabase as error:
        if not settings.start_empty_if_damaged:
            raise
        log.warning("%s; the server will move it aside and start empty", error)
    public, admin = open_all_sockets(settings)
    for name, sockets in (("listener", public), ("admin listener", admin)):
        for listening in sockets:
            done.append(
                f"{name}: {url(listening, 'https' if settings.tls_certificate and sockets is public else 'http')}"
            )
            listening.close()
    return done


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


def load_admin_application(
    service: Service, state: ServerState, sockets: list[socket.socket], token: bytes, tls: Tls | None
) -> web.Application:
    """The application of the admin listener on some sockets; what it is made with takes a while to load."""
    from .admin.application import Access, make_admin_application

    local = all(map(is_local, sockets))
    if not (local or token) and service.settings.store == "leveldb":
        log.info("the admin listener is for other machines, too: without --admin-token-file it does no maintenance")
    return make_admin_application(service, state, Access(token, local), tls)


def make_admin_server(application: web.Application, refusal: Refusal) -> Server:
    """Make the server of the admin listener. Without a free place, a new connection replaces an idle one."""
    limiter = AdminConnectionLimiter()
    server = Server(ServerState(application, refusal, limiter=limiter))
    limiter.make_room = server.make_room
    return server


def tell_where(urls: list[str], admin: list[socket.socket]) -> None:
    """Log where the process can be reached: the public listener's URLs, and the admin listener's sockets."""
    for each in urls:
        log.info("listening on %s", each)
    for listening in admin:
        log.info("admin listener on %s", url(listening, "http"))


class Running:
    """A server that runs, as far as settings can be applied to it.

    Args:
        application: that of the public listener.
        transport: what that listener's connections share.
        tls: its certificate.
        common: fields of every line of the log.

    Attributes:
        settings: those that count at present.
    """

    def __init__(self, application: Application, transport: ServerState, tls: Tls | None, **common: object) -> None:
        self._application = application
        self._transport = transport
        self._tls = tls
        self._common = common
        self.settings = application.service.settings

    def apply(self, settings: Settings) -> None:
        """Apply what differs from the settings that count at present, and read certificate, key and secrets again.

        Raises:
            OperatorError: one of the files cannot be used; nothing has changed then.
        """
        ice = open_ice_servers(settings)
        passwords = redis_passwords(settings)
        if self._tls is not None and settings.tls_certificate is not None and settings.tls_key is not None:
            self._tls.reload(settings.tls_certificate, settings.tls_key)
        self.settings = settings
        service = self._application.service
        service.settings = service.log.settings = settings
        service.ice = ice
        service.store.allow(quotas_of(settings))
        service.store.use_passwords(*passwords)
        service.limits.apply(settings)
        self._transport.unsent.most_bytes = settings.max_unsent_bytes
        self._transport.unfinished.most_bytes = settings.max_read_ahead_bytes
        self._application.make_routes()
        logs.set_up(settings.log_level, settings.log_format, **self._common)


def reload(running: Settings, read: Callable[[], Settings], apply: Callable[[Settings], None]) -> None:
    """Read the settings again and apply what can be applied without a restart; all of it, or nothing.

    Args:
        running: those that count at present.
        read: reads the settings.
        apply: applies those that the server is to have.
    """
    try:
        settings, applied, waiting = merge(running, read())
        apply(settings)
    except (ConfigError, OperatorError) as error:
        log.error(KEPT, error)
        return
    also = ", certificate and key" if settings.tls_certificate else ""
    also += ", passwords of Redis" if settings.redis_password_file or settings.redis_sentinel_password_file else ""
    log.info("settings%s read again, applied: %s", also, ", ".join(applied) or "nothing new")
    if waiting:
        log.warning("settings that have changed and need a restart: %s", ", ".join(waiting))


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

    async def follow(self, lifeline: int, apply: Callable[[Settings], None]) -> None:
        """Apply settings as they come on a descriptor, and set `stop` when it is at its end."""
        reader = asyncio.StreamReader(limit=MAX_ENCODED_BYTES)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(lifeline, "rb"))
        while (line := await reader.readline()).endswith(b"\n"):
            apply(decode(line))
        self.stop.set()

    def _on_stop(self) -> None:
        (self.force_stop if self.stop.is_set() else self.stop).set()


async def drain(server: Server, admin_server: Server, service: Service) -> None:
    """Accept no more connections, and answer those that are open.

    Before that, load balancers have the time that is set for them to send their clients elsewhere. A waiting request
    gets its normal response, and an open connection has time for one more request. New connections are for the next
    process, if the service manager keeps the sockets open.
    """
    service.stopping = True
    if delay_ms := service.settings.drain_delay_ms:
        service.leaving = True
        await asyncio.sleep(delay_ms / 1000)
    await server.accept_no_more()
    service.store.end_watches()
    server.close_websockets(CLOSE_WEBSOCKETS_S)
    await server.serve_the_rest(LAST_REQUEST_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(service.drain(), DRAIN_LIMIT_S)
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


async def serve(settings: Settings, read: Callable[[], Settings], inherited: Inherited | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: those of the process.
        read: reads them again.
        inherited: what the process has to serve on; None to open it as configured.

    Raises:
        OperatorError: something cannot be used; nothing has been served then.
    """
    return_freed_memory()
    collect_rarely()
    faulthandler.enable()  # a watchdog's SIGABRT leaves in the log where the loop was stuck
    signals = Signals()
    notifier = Notifier(os.environ)
    max_connections = raise_descriptor_limit()
    tls, token = open_tls(settings), admin_token(settings)
    clock = Clock()
    store = await open_store(settings, clock)
    try:
        check_files(settings)
    except OperatorError as error:  # a database is there as well: its sessions are worth more than order
        log.warning("%s; serving the database beside it", error)
    public: list[socket.socket] = []
    try:
        public, admin = (inherited.public, inherited.admin) if inherited else open_all_sockets(settings)
        limits = Limits(settings, max_connections, lambda: store.capacity_bytes // ADDRESSES_TO_FILL)
        metrics = RequestMetrics()
        request_log = RequestLog(settings, metrics)
        service = Service(store, settings, clock, open_ice_servers(settings), COMMIT, limits, request_log)
        application = Application(service, functools.partial(websocket_routes, Holds(service)))
        refusal = make_refusal(service.log)
        context = tls.context if tls else None
        state = ServerState(
            application, refusal, context, limits, settings.max_unsent_bytes, settings.max_read_ahead_bytes
        )
        running = Running(application, state, tls, **({"worker": inherited.worker} if inherited else {}))
        server = Server(state)
        await server.start(public)
        admin_application = load_admin_application(service, state, admin, token, tls) if admin else web.Application()
        admin_server = make_admin_server(admin_application, refusal)
        await admin_server.start(admin)
        lag = Lag(metrics.loop_lag)
        urls = [url(listening, state.protocol) for listening in public]
        if inherited is None:
            tell_where(urls, admin)

        def status() -> str:
            if signals.stop.is_set():
                return f"draining, {len(state.connections)} connections left"
            listed = "" if service.counts.value is None else f", {service.counts.value[0]} sessions listed"
            return f"listening on {', '.join(urls)}{listed}"

        async def report() -> None:
            notifier.alive(status())  # first: the watchdog does not wait for a count
            if notifier.listening:
                await service.counts.refresh()

        def on_reload() -> None:
            if not signals.stop.is_set():
                notifier.reloading()
                try:
                    reload(running.settings, read, running.apply)
                finally:
                    notifier.ready(status())

        def on_sent(sent: Settings) -> None:
            try:
                running.apply(merge(running.settings, sent)[0])
            except OperatorError as error:
                log.error(KEPT, error)

        signals.reload = on_reload
        if inherited is not None:
            following = asyncio.create_task(signals.follow(inherited.lifeline, on_sent))
            accepts = inherited.balance.accepts
            balancing = PeriodicCallback(lambda: server.accept(accepts(state.websockets)), PERIOD_S * 1000)
            balancing.start()
        reports = PeriodicCallback(report, notifier.pause_s(STATUS_S) * 1000)
        reports.start()
        if notifier.listening:
            await service.counts.refresh()
        notifier.ready(status())

        await signals.stop.wait()
        log.info("stopping: draining")
        notifier.stopping(status())
        lag.stop()
        await run_until(signals.force_stop, drain(server, admin_server, service))
        if signals.force_stop.is_set():
            log.info("stopping at once")
        await server.close(0)
        await admin_server.close(0)
        reports.stop()
        service.counts.close()
        if inherited is not None:
            following.cancel()
            balancing.stop()
    finally:
        for listening in public:
            listening.close()  # a Unix socket's file goes with it
        await store.close()
    log.info("stopped")
