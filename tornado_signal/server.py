"""The process: open the store, listen, sweep, and on a signal drain and stop."""

import asyncio
import contextlib
import logging
import resource
import signal
import socket

from tornado.ioloop import PeriodicCallback

from . import COMMIT
from .clock import Clock
from .errors import OperatorError
from .handlers import make_application, make_refusal
from .handlers.admin import make_admin_application
from .limits import Limits
from .quotas import Quotas
from .settings import Settings
from .sockets import open_sockets, url
from .store import Store
from .sweeper import Sweeper
from .tls import Tls
from .transport import Server

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
DRAIN_LIMIT_S = 10.0
CLOSE_LIMIT_S = 2.0
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
        ),
    )


def descriptors() -> int:
    """How many files and sockets this process may have open, after asking for as many as it can have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1_000_000


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
    open_tls(settings)
    await open_store(settings).close()
    for listening in open_all_sockets(settings)[0]:
        listening.close()


def open_all_sockets(settings: Settings) -> tuple[list[socket.socket], list[socket.socket]]:
    """The public and the admin listener's sockets; none of the latter when it is off."""
    admin = []
    if settings.admin_port is not None:
        admin = open_sockets(LOOPBACK, settings.admin_port, "--admin-port")
    return open_sockets(settings.address, settings.port, "--port", settings.socket_mode), admin


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


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        OperatorError: something cannot be used; nothing has been served then.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    tls = open_tls(settings)
    loop.add_signal_handler(signal.SIGHUP, reload, tls)
    store = open_store(settings)
    public: list[socket.socket] = []
    try:
        public, admin = open_all_sockets(settings)
        clock = Clock(store.created_ms)
        limits = Limits(settings, descriptors() - DESCRIPTORS_KEPT)
        application = make_application(store, clock, settings, COMMIT, limits)
        refusal = make_refusal(settings)
        server = Server(application, refusal, tls.context if tls else None, gate=limits)
        await server.start(public)
        admin_server = Server(make_admin_application(application), refusal)
        await admin_server.start(admin)
        sweeping = PeriodicCallback(Sweeper(store, clock).sweep, settings.sweep_interval_ms)
        sweeping.start()
        for listening in public:
            log.info("listening on %s", url(listening, server.protocol))
        for listening in admin:
            log.info("admin listener on %s", url(listening, admin_server.protocol))

        await stop.wait()
        log.info("stopping: draining")
        sweeping.stop()
        server.stop()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(application.drain(), DRAIN_LIMIT_S)
        await server.close(CLOSE_LIMIT_S)
        await admin_server.close(CLOSE_LIMIT_S)
    finally:
        for listening in public:
            listening.close()  # a Unix socket's file goes with it
        await store.close()
    log.info("stopped")
