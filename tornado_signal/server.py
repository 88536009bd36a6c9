"""The process: open the store, listen, sweep, tell the service manager, and on a signal drain and stop."""

import asyncio
import contextlib
import dataclasses
import faulthandler
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine

from tornado.ioloop import PeriodicCallback

from . import COMMIT
from .admin.application import make_admin_application
from .api.ice import open_ice_servers
from .errors import DamagedDatabase, OperatorError
from .http import make_application, make_refusal
from .http.application import Application
from .limits.per_address import AdminLimits, Limits
from .settings.settings import Settings
from .stores.leveldb.space import Space
from .stores.leveldb.store import Store
from .stores.leveldb.sweeper import Sweeper
from .stores.quotas import Quotas
from .system.activation import passed_sockets
from .system.clock import Clock
from .system.lag import Lag
from .system.notify import Notifier
from .system.sockets import open_sockets, url
from .system.tls import Tls
from .transport import Server

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
STATUS_S = 5.0  # between two reports to the service manager
LAST_REQUEST_S = 1.0  # for who is connected, when the server stops, to send one more
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
ADDRESSES_TO_FILL = 8  # that it takes at least to fill the store
DESCRIPTORS_KEPT = 800  # for LevelDB's files and all else


def open_store(settings: Settings) -> Store:
    """The store as configured. Needs a running event loop.

    Raises:
        DatabaseError: the data directory cannot be used.
    """
    return Store(
        settings.data_dir,
        timeout_ms=settings.session_timeout_ms,
        durability=settings.durability,
        codes=settings.codes,
        quotas=Quotas(
            settings.max_sessions_per_origin,
            settings.max_sessions_per_topic,
            settings.max_topics_per_origin,
            settings.max_candidates,
            settings.max_side_bytes,
        ),
        start_empty=settings.start_empty_if_damaged,
        space=Space(settings.data_dir, settings.max_store_bytes, settings.min_free_bytes),
    )


def room_for_connections() -> int:
    """How many connections this process has descriptors for, after asking for as many as it can have.

    Raises:
        OperatorError: for none.
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
    room_for_connections()
    open_tls(settings)
    open_ice_servers(settings)
    try:
        # Moving a damaged database aside is not for a check to do.
        await open_store(dataclasses.replace(settings, start_empty_if_damaged=False)).close()
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
        admin = admin or open_sockets(LOOPBACK, settings.admin_port, "--admin-port")
    # Last, because nobody would take away the file of a Unix socket if something failed after it.
    return public or open_sockets(settings.address, settings.port, "--port", settings.socket_mode), admin


def reload(tls: Tls | None) -> None:
    """Read again what can be read again."""
    if tls is None:
        log.info("nothing to read again: settings need a restart")
        return
    try:
        tls.read_again()
        log.info("certificate and key read again")
    except OperatorError as error:
        log.error("the certificate that is in use stays: %s", error)


class Orders:
    """What signals ask of the process. Needs a running event loop.

    Attributes:
        stop: whether it is to stop (SIGTERM, SIGINT).
        hurry: whether that may take no time (either of them again).
        reload: called on SIGHUP.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.reload: Callable[[], None] = lambda: None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._asked_to_stop)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())

    def _asked_to_stop(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


async def drain(server: Server, admin_server: Server, application: Application) -> None:
    """Let nobody in any more, and answer everybody who is.

    Who waits for news gets an ordinary answer, and whoever was accepted has time for a request. New connections
    are for the next process, if something holds the sockets meanwhile.
    """
    application.stopping = True
    await server.accept_no_more()
    application.store.watches.end()
    await server.serve_the_rest(LAST_REQUEST_S)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(application.drain(), DRAIN_LIMIT_S)
    await server.close(CLOSE_LIMIT_S)
    await admin_server.close(CLOSE_LIMIT_S)


async def unless(event: asyncio.Event, work: Coroutine[None, None, None]) -> None:
    """Work until it is done, or the event happens."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(event.wait())
    await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if working.done():
        working.result()
    working.cancel()


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OperatorError: something cannot be used; nothing has been served then.
    """
    faulthandler.enable()  # a watchdog's SIGABRT leaves in the log where the loop was stuck
    orders = Orders()
    notifier = Notifier(os.environ)
    room = room_for_connections()
    tls = open_tls(settings)
    store = open_store(settings)
    public: list[socket.socket] = []
    try:
        public, admin = open_all_sockets(settings)
        clock = Clock(store.created_ms)
        limits = Limits(settings, room, lambda: store.space.capacity_bytes // ADDRESSES_TO_FILL)
        application = make_application(store, clock, settings, COMMIT, limits)
        refusal = make_refusal(settings, application.ledger)
        server = Server(
            application,
            refusal,
            tls.context if tls else None,
            limiter=limits,
            max_unsent_bytes=settings.max_unsent_bytes,
            max_read_ahead_bytes=settings.max_read_ahead_bytes,
        )
        await server.start(public)
        admin_application = make_admin_application(application, server.state)
        admin_server = Server(admin_application, refusal, limiter=AdminLimits())
        await admin_server.start(admin)
        sweeper = Sweeper(store, clock)
        periodic = [PeriodicCallback(each, settings.sweep_interval_ms) for each in (sweeper.settle, sweeper.sweep)]
        for each in periodic:
            each.start()
        lag = Lag(store.metrics.loop_lag)
        for listening in public:
            log.info("listening on %s", url(listening, server.state.protocol))
        for listening in admin:
            log.info("admin listener on %s", url(listening, admin_server.state.protocol))

        where = ", ".join(url(listening, server.state.protocol) for listening in public)

        def status() -> str:
            if orders.stop.is_set():
                return f"draining, {len(server.state.connections)} connections left"
            return f"listening on {where}, {store.listed_count} sessions listed"

        def read_again() -> None:
            if not orders.stop.is_set():
                notifier.reloading()
                try:
                    reload(tls)
                finally:
                    notifier.ready(status())

        orders.reload = read_again
        telling = PeriodicCallback(lambda: notifier.alive(status()), notifier.pause_s(STATUS_S) * 1000)
        telling.start()
        notifier.ready(status())

        await orders.stop.wait()
        log.info("stopping: draining")
        notifier.stopping(status())
        for each in periodic:
            each.stop()
        lag.stop()
        await unless(orders.hurry, drain(server, admin_server, application))
        if orders.hurry.is_set():
            log.info("stopping at once")
        await server.close(0)
        await admin_server.close(0)
        telling.stop()
    finally:
        for listening in public:
            listening.close()  # a Unix socket's file goes with it
        await store.close()
    log.info("stopped")
