"""The admin listener of one server: health, readiness, metrics, and maintenance of the store."""

import asyncio
import re
from collections.abc import Iterable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tornado import web

from ..errors import Unavailable
from ..lifecycle import DRAINING, LEAVING
from ..service.service import Service
from ..system.tls import Tls
from ..transport import ServerState
from .access import AdminApplication, AdminHandler, AdminPolicy, LivenessHandler, RestrictedHandler, respond
from .actions import compact
from .exposition import Exposition
from .operator import Operator, operator_routes


class ServiceHandler(AdminHandler):
    """A handler with the service, its metrics and the access rules."""

    def initialize(self, service: Service, exposition: Exposition, policy: AdminPolicy) -> None:
        self.service = service
        self.policy = policy
        self.exposition = exposition


class ReadinessHandler(ServiceHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        if self.service.lifecycle.state >= LEAVING:
            raise Unavailable("draining")
        await self.service.store.probe()
        full = self.service.fullness.full
        respond(self, 200, {"status": "ok", **({"full": full} if full else {})})

    head = get


class MaintenanceHandler(ServiceHandler, RestrictedHandler):
    """Maintenance of the store."""

    methods = "POST"

    def initialize(self, service: Service, exposition: Exposition, policy: AdminPolicy) -> None:
        super().initialize(service, exposition, policy)
        maintenance = service.store.maintenance
        assert maintenance is not None
        self.maintenance = maintenance

    def prepare(self) -> None:
        """Reject requests without access, and all while the server is draining."""
        if self.has_access() and self.service.lifecycle.state >= DRAINING:
            raise Unavailable("draining")


class InspectHandler(MaintenanceHandler):
    """POST /inspect: statistics of the store, and its `most` largest origins and topics."""

    async def post(self) -> None:
        most = self.get_query_argument("most", "20")
        if not re.fullmatch("[0-9]{1,3}|1000", most):
            raise web.HTTPError(400)
        respond(self, 200, await self.maintenance.inspect(int(most)))


class CompactHandler(MaintenanceHandler):
    """POST /compact: return the space of deleted sessions to the file system."""

    async def post(self) -> None:
        """Respond with the sizes before and after, once the compaction is done."""
        respond(self, 200, await compact(self.maintenance))


class SingleFamily(Collector):
    """A collector with a single metric family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


class MetricsHandler(ServiceHandler):
    """GET /metrics: the metrics of the server, for Prometheus."""

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        await self.exposition.update()
        for family in self.exposition.registry.collect():
            self.write(generate_latest(SingleFamily(family)))
            await asyncio.sleep(0)  # all families at once would block requests for milliseconds

    head = get


def make_admin_application(
    service: Service,
    operator: Operator,
    transport: ServerState,
    policy: AdminPolicy | None = None,
    tls: Tls | None = None,
) -> web.Application:
    """Make the application of the admin listener.

    Args:
        service: the service.
        operator: the state of the processes, and the actions on them.
        transport: the connections of clients.
        policy: the access rules.
        tls: the certificate, if any.
    """
    policy = policy or AdminPolicy()
    handlers: dict[str, type[ServiceHandler]] = {
        "/readyz": ReadinessHandler,
        "/metrics": MetricsHandler,
    }
    if service.store.maintenance is not None:
        handlers |= {"/inspect": InspectHandler, "/compact": CompactHandler}
    common = {"service": service, "exposition": Exposition(service, transport, tls), "policy": policy}
    routes: list[Any] = [("/healthz", LivenessHandler)]
    routes += [(path, handler, common) for path, handler in handlers.items()]
    routes += operator_routes(operator, policy)
    return AdminApplication(routes, policy)
