"""The server: startup, service and shutdown."""

import asyncio
import faulthandler
import functools
import gc
import logging
import os
import socket
from collections.abc import Awaitable, Callable

from .. import COMMIT
from ..auth import Authority
from ..errors import OperatorError
from ..http.application import Application, Route
from ..http.error_responses import make_error_responder
from ..limits.per_address import Limits
from ..limits.recent import SLICE_S
from ..operator.control import Control, server_name
from ..operator.fullness import CHECK_S, describe_full
from ..operator.handlers import AdminPolicy
from ..outgoing.turn import Refresher
from ..outgoing.webhooks import Webhooks
from ..protocols.routes import protocol_routes
from ..relay.opening import Relay, open_relay
from ..service.operations import Operation
from ..service.request_log import RequestLog
from ..service.service import Service
from ..settings.settings import LiveSettings, Settings
from ..stores import check_files, open_store
from ..system import logs
from ..system.clock import Clock, ClockWarning
from ..system.lifecycle import CLOSED, LEAVING, SERVING, Lifecycle
from ..system.loop import Lag, Repeating
from ..system.service_manager import Notifier
from ..system.sockets import url
from ..system.tls import Tls
from ..tracing import open_tracing
from ..transport import Server, ServerState
from ..websocket.presence import Presence
from ..websocket.routes import websocket_routes
from .draining import Stages, drain, handle_signals, run_until_closed
from .handover import PERIOD_S, Inherited, watch_pipe
from .listeners import log_start, open_all_sockets, start_admin_server
from .reload import Reloader, Resources, read_resources, reload_status
from .tuning import GarbageCollection, raise_descriptor_limit, tune_malloc

log = logging.getLogger(__name__)

STATUS_S = 5.0  # between two reports to the service manager
FLUSH_S = 2.0  # for the last spans, when the server stops
ADDRESSES_TO_FILL = 8  # at least this many addresses are needed to fill the store


def all_routes(
    presence: Presence, relay: Relay, operations: tuple[Operation, ...], settings: Settings
) -> dict[str, Route]:
    return {**websocket_routes(presence, operations), **protocol_routes(relay, settings.protocols)}


async def serve(settings: Settings, read: Callable[[], Settings], inherited: Inherited | None = None) -> None:
    """Serve until SIGTERM or SIGINT.

    `inherited` has the sockets passed by the supervisor. None opens them as configured. If a resource cannot be used,
    raise OperatorError before anything has been served.
    """
    tune_malloc()
    gc.freeze()  # the imported modules are never scanned
    faulthandler.enable()  # SIGABRT from a watchdog logs where the loop is stuck
    lifecycle = Lifecycle()
    handle_signals(lifecycle)
    stages = Stages()
    try:
        await ServingProcess(settings, lifecycle, inherited).open(stages, read)
        lifecycle.reach(SERVING)
        await lifecycle.reached(LEAVING)
        log.info("stopping: draining")
    finally:
        await stages.close()
    log.info("stopped")


class ServingProcess:
    """The parts of a process that serves clients, and how they are opened."""

    def __init__(self, settings: Settings, lifecycle: Lifecycle, inherited: Inherited | None) -> None:
        self.live = LiveSettings(settings)
        self._lifecycle = lifecycle
        self._inherited = inherited
        self._worker = inherited.worker if inherited else 0
        self._notifier = Notifier(os.environ)
        self._counts: tuple[int, int] | None = None  # the numbers of sessions and topics, for the service manager
        self._urls: list[str] = []
        self._at_once = False

    async def open(self, stages: Stages, read: Callable[[], Settings]) -> None:
        """Open everything. Each part is added to the stages, which close it again."""
        settings, lifecycle, inherited = self.live.current, self._lifecycle, self._inherited
        max_connections = raise_descriptor_limit()
        resources = read_resources(settings)
        tracer = open_tracing(settings, self._worker)
        if tracer is not None:
            stages.opened("spans", functools.partial(self._close_spans, tracer.close))
        clock = Clock()
        store = await open_store(settings, clock)
        stages.opened("store", store.close)
        try:
            check_files(settings)
        except OperatorError as error:  # foreign files do not prevent serving an existing database
            log.warning("%s; serving the database nevertheless", error)
        public, admin = (inherited.public, inherited.admin) if inherited else open_all_sockets(settings)
        stages.opened("sockets", functools.partial(_close_sockets, public))

        limits = Limits(settings, max_connections, lambda: store.capacity_bytes // ADDRESSES_TO_FILL)
        request_log = RequestLog(self.live, tracer.record if tracer else None)
        authority = None if resources.keys is None else Authority(resources.keys, settings)
        self.service = service = Service(
            store, self.live, clock, resources.ice, COMMIT, limits, request_log, authority, lifecycle
        )
        relay = open_relay(store.shared_redis, service.charge_publisher, self.live.current.hold_grace_ms)
        stages.opened("relay", relay.close)
        self.application = Application(service, functools.partial(all_routes, Presence(service), relay))
        error_responder = make_error_responder(request_log)
        self.admin_policy = AdminPolicy()
        self._protect_admin_listener(resources.admin_token, settings)
        self.tls = None if resources.certificate is None else Tls(resources.certificate)
        context = self.tls.context if self.tls else None
        self.state = ServerState(self.application, error_responder, limits, context)
        self._limit_connections(settings)
        self.webhooks = Webhooks(service)
        stages.opened("webhooks", self.webhooks.close)
        self.refresher = Refresher(service)
        self.reloader = Reloader(self.live, resources, self.use)
        stages.opened("garbage collection", GarbageCollection(lambda: len(self.state.connections)).stop)
        self.server = Server(self.state)
        limits.close_idle = self.server.close_idle
        service.refusals.cut_off = self.state.count_cut_off
        await self.server.start(public)
        stages.opened("public listener", functools.partial(self.server.close, 0))
        server = server_name(public)
        self.control = Control(service, relay, self.state, self.reloader.apply, server, self._worker, self.tls)
        self.control.start()
        stages.opened("operator", self.control.close)
        self.admin_server = await start_admin_server(self.control, admin, self.admin_policy, self.live, limits.full)
        stages.opened("admin listener", functools.partial(self.admin_server.close, 0))
        self.webhooks.use(resources.webhooks, settings)
        self.refresher.use(resources.turn_provider)
        self._urls = [url(listening, self.state.protocol) for listening in public]
        if inherited is None:
            log_start(self._urls, admin, settings, max_connections)
        else:
            self._join_supervisor(inherited, stages)
        await self._report(stages, read)
        lag = Lag(request_log.metrics.loop_lag.observe)
        stages.opened("requests", functools.partial(self._drain, lag))

    def _join_supervisor(self, inherited: Inherited, stages: Stages) -> None:
        """Take settings, the end and a share of new connections from the supervisor."""
        leave = functools.partial(self._lifecycle.reach, LEAVING)
        following = asyncio.create_task(watch_pipe(inherited.supervisor_pipe, self.reloader.follow, leave))
        accepts = inherited.balance.accepts
        balancing = Repeating(lambda: self.server.accept(accepts(self.state.websockets)), PERIOD_S)

        async def stop() -> None:
            following.cancel()
            await balancing.stop()

        stages.opened("supervisor", stop)

    async def _report(self, stages: Stages, read: Callable[[], Settings]) -> None:
        """Report to the service manager: now, regularly, and around reloads."""
        notifier = self._notifier

        async def count() -> None:
            if notifier.listening or self.webhooks.needs_expiries:
                self._counts = await self.service.store.counts()

        self.reloader.reload_on_hangup(read, self._lifecycle, notifier, self._status)
        if notifier.listening:
            self._counts = await self.service.store.counts()
        notifier.ready(self._status())
        pause_s = notifier.pause_s(STATUS_S)
        # Two, because counting can take longer than the watchdog allows.
        repeated = [
            Repeating(lambda: notifier.alive(self._status()), pause_s),
            Repeating(count, pause_s),
            Repeating(self.control.fullness.check, CHECK_S),
            Repeating(self.service.refusals.check, CHECK_S),
            Repeating(self.service.rotate_recent, SLICE_S),
            Repeating(self.control.rotate, SLICE_S),
            Repeating(ClockWarning(self.service.store_ahead_s).check, STATUS_S),
        ]

        async def stop() -> None:
            await self.refresher.close()
            for each in repeated:
                await each.stop()

        stages.opened("service manager", stop)

    def _status(self) -> str:
        if self._lifecycle.state >= LEAVING:
            return f"draining, {len(self.state.connections)} connections left"
        listed = "" if self._counts is None else f", {self._counts[0]} sessions listed"
        full = describe_full({"full": self.control.fullness.full, "turnProvider": self.service.provided.problem})
        full += "" if self.service.store.available else "; not ready: the store is unavailable"
        return f"listening on {', '.join(self._urls)}{listed}{full}{reload_status(self.live)}"

    def use(self, settings: Settings, resources: Resources) -> None:
        """Use other settings and files. Everything else is read from `live` when it is needed."""
        service = self.service
        logs.set_up(settings.log_level, settings.log_format, self._worker)
        if self.tls is not None and resources.certificate is not None:
            self.tls.certificate = resources.certificate
        if service.authority is not None and resources.keys is not None:
            service.authority.use(resources.keys, settings)
        service.ice = resources.ice
        self._protect_admin_listener(resources.admin_token, settings)
        service.store.use(settings)
        if service.store.shared_redis is not None:
            service.store.shared_redis.use_passwords(*resources.redis_passwords)
        service.limits.apply(settings)
        self._limit_connections(settings)
        self.webhooks.use(resources.webhooks, settings)
        self.refresher.use(resources.turn_provider)
        self.application.make_routes(settings)

    def _protect_admin_listener(self, token: bytes, settings: Settings) -> None:
        # Only the supervisor can connect to that of a worker, and it has checked the token.
        self.admin_policy.use(b"" if self._inherited else token, settings.admin_hosts)

    def _limit_connections(self, settings: Settings) -> None:
        self.state.limit_memory(settings.max_unsent_bytes)
        self.state.keep_alive_s = settings.keep_alive_s

    async def _drain(self, lag: Lag) -> None:
        """Complete the open requests, unless a second signal arrives."""
        self._notifier.stopping(self._status())
        lag.stop()
        await run_until_closed(self._lifecycle, drain(self.server, self.admin_server, self.service))
        self._at_once = self._lifecycle.state is CLOSED
        if self._at_once:
            log.info("stopping at once")
        self._lifecycle.reach(CLOSED)

    async def _close_spans(self, close: Callable[[float], Awaitable[None]]) -> None:
        if not self._at_once:
            await close(FLUSH_S)


async def _close_sockets(sockets: list[socket.socket]) -> None:
    """Close listening sockets. This also removes the file of a Unix socket."""
    for listening in sockets:
        listening.close()
