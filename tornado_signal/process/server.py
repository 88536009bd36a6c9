"""The server: startup, service and shutdown."""

import asyncio
import faulthandler
import functools
import logging
import os
import socket
from collections.abc import Callable

from tornado import web
from tornado.ioloop import PeriodicCallback

from .. import COMMIT
from ..auth import open_authority
from ..errors import OperatorError
from ..http.application import Application, Route
from ..http.errors import make_refusal
from ..lifecycle import CLOSED, LEAVING, SERVING, Lifecycle
from ..limits.per_address import Limits
from ..metrics import RequestMetrics
from ..protocols.routes import protocol_routes
from ..relay import Relay, open_relay
from ..service.ice import open_ice_servers
from ..service.operations import Operation
from ..service.request_log import RequestLog
from ..service.service import Service
from ..settings.settings import Settings, merge
from ..stores import check_files, open_store
from ..system.clock import Clock
from ..system.lag import Lag
from ..system.notify import Notifier
from ..system.secrets import admin_token
from ..system.sockets import url
from ..tracing import open_tracing
from ..transport import Server, ServerState
from ..webhooks import Webhooks, open_target
from ..websocket.endpoint import websocket_routes
from ..websocket.presence import Holds
from .balance import PERIOD_S
from .handover import Inherited, watch_pipe
from .lifecycle import drain, handle_signals, on_hangup, run_until_closed
from .listeners import load_admin_application, log_start, make_admin_server, open_all_sockets, open_tls
from .operator import make_control, server_name
from .reload import RELOAD_FAILED, make_live_settings, reload
from .tuning import raise_descriptor_limit, tune_gc, tune_malloc

log = logging.getLogger(__name__)

STATUS_S = 5.0  # between two reports to the service manager
FLUSH_S = 2.0  # for the last spans, when the server stops
ADDRESSES_TO_FILL = 8  # at least this many addresses are needed to fill the store


def all_routes(holds: Holds, relay: Relay, operations: tuple[Operation, ...], settings: Settings) -> dict[str, Route]:
    """Return the routes of WebSockets and of the protocols of other libraries."""
    return {**websocket_routes(holds, operations), **protocol_routes(relay, settings)}


async def serve(settings: Settings, read: Callable[[], Settings], inherited: Inherited | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        settings: the settings at the start.
        read: re-reads the settings.
        inherited: sockets passed by the supervisor. None to open them as configured.

    Raises:
        OperatorError: a resource cannot be used. Nothing has been served.
    """
    tune_malloc()
    tune_gc()
    faulthandler.enable()  # SIGABRT from a watchdog logs where the loop is stuck
    lifecycle = Lifecycle()
    handle_signals(lifecycle)
    notifier = Notifier(os.environ)
    max_connections = raise_descriptor_limit()
    tls, token, authority = open_tls(settings), admin_token(settings), open_authority(settings)
    tracer = open_tracing(settings, inherited.worker if inherited else 0)
    target = open_target(settings)
    clock = Clock()
    store = await open_store(settings, clock)
    try:
        check_files(settings)
    except OperatorError as error:  # foreign files do not prevent serving an existing database
        log.warning("%s; serving the database nevertheless", error)
    public: list[socket.socket] = []
    try:
        public, admin = (inherited.public, inherited.admin) if inherited else open_all_sockets(settings)
        limits = Limits(settings, max_connections, lambda: store.capacity_bytes // ADDRESSES_TO_FILL)
        metrics = RequestMetrics()
        request_log = RequestLog(settings, metrics, tracer)
        ice = open_ice_servers(settings)
        service = Service(store, settings, clock, ice, COMMIT, limits, request_log, authority, lifecycle)
        relay = open_relay(store)
        application = Application(service, functools.partial(all_routes, Holds(service), relay))
        refusal = make_refusal(service.log)
        context = tls.context if tls else None
        state = ServerState(application, refusal, context, limits, settings.max_unsent_bytes)
        common = {"worker": inherited.worker} if inherited else {}
        webhooks = Webhooks(service)
        live = make_live_settings(settings, application, state, tls, webhooks, **common)
        server = Server(state)
        await server.start(public)
        control = make_control(service, relay, state, live, server_name(public), inherited.worker if inherited else 0)
        control.start()
        admin_application = web.Application()
        if admin:
            admin_application = load_admin_application(service, control, state, admin, token, tls)
        admin_server = make_admin_server(admin_application, refusal)
        await admin_server.start(admin)
        webhooks.use(target, settings)
        lag = Lag(metrics.loop_lag)
        urls = [url(listening, state.protocol) for listening in public]
        if inherited is None:
            log_start(urls, admin, settings)

        def status() -> str:
            if lifecycle.state >= LEAVING:
                return f"draining, {len(state.connections)} connections left"
            listed = "" if service.counts.value is None else f", {service.counts.value[0]} sessions listed"
            return f"listening on {', '.join(urls)}{listed}"

        async def report() -> None:
            notifier.alive(status())  # first: counting can take longer than the watchdog allows
            if notifier.listening or webhooks.needs_expiries:
                await service.counts.refresh()

        def on_reload() -> None:
            if lifecycle.state < LEAVING:
                notifier.reloading()
                try:
                    reload(live.current, read, live.apply, live.names)
                finally:
                    notifier.ready(status())

        def on_sent(sent: Settings) -> None:
            try:
                live.apply(merge(live.current, sent, live.names)[0])
            except OperatorError as error:
                log.error(RELOAD_FAILED, error)

        on_hangup(on_reload)
        if inherited is not None:
            leave = functools.partial(lifecycle.reach, LEAVING)
            following = asyncio.create_task(watch_pipe(inherited.supervisor_pipe, on_sent, leave))
            accepts = inherited.balance.accepts
            balancing = PeriodicCallback(lambda: server.accept(accepts(state.websockets)), PERIOD_S * 1000)
            balancing.start()
        reports = PeriodicCallback(report, notifier.pause_s(STATUS_S) * 1000)
        reports.start()
        if notifier.listening:
            await service.counts.refresh()
        notifier.ready(status())

        lifecycle.reach(SERVING)
        await lifecycle.reached(LEAVING)
        log.info("stopping: draining")
        notifier.stopping(status())
        lag.stop()
        await run_until_closed(lifecycle, drain(server, admin_server, service))
        at_once = lifecycle.state is CLOSED
        if at_once:
            log.info("stopping at once")
        lifecycle.reach(CLOSED)
        await server.close(0)
        await admin_server.close(0)
        await control.close()
        await webhooks.close()
        await relay.close()
        if tracer is not None and not at_once:
            await tracer.close(FLUSH_S)
        reports.stop()
        service.counts.close()
        if inherited is not None:
            following.cancel()
            balancing.stop()
    finally:
        for listening in public:
            listening.close()  # this removes the file of a Unix socket
        await store.close()
    log.info("stopped")
