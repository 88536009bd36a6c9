"""The admin listener of one server: health, readiness, metrics, and the operator's actions."""

import asyncio
from collections.abc import Iterable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tornado import web

from ..errors import Unavailable
from ..service.service import Service
from ..system.tls import Tls
from ..transport import ServerState
from .access import AdminApplication, AdminHandler, AdminPolicy, LivenessHandler, respond
from .control import Control
from .exposition import Exposition
from .fullness import Fullness
from .handlers import operator_routes


class ServiceHandler(AdminHandler):
    """A handler with the service, its metrics and what is full."""

    def initialize(self, service: Service, fullness: Fullness, exposition: Exposition) -> None:
        self.service = service
        self.fullness = fullness
        self.exposition = exposition


class ReadinessHandler(ServiceHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        if self.service.lifecycle.leaving:
            raise Unavailable("draining")
        await self.service.store.probe()
        details = {"full": self.fullness.full, "turnProvider": self.service.provided.problem}
        respond(self, 200, {"status": "ok", **{name: detail for name, detail in details.items() if detail}})

    head = get


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
    control: Control,
    transport: ServerState,
    policy: AdminPolicy | None = None,
    tls: Tls | None = None,
) -> web.Application:
    policy = policy or AdminPolicy()
    fullness = control.fullness
    common = {"service": service, "fullness": fullness, "exposition": Exposition(service, fullness, transport, tls)}
    routes: list[Any] = [("/healthz", LivenessHandler)]
    routes += [("/readyz", ReadinessHandler, common), ("/metrics", MetricsHandler, common)]
    routes += operator_routes(control, policy)
    return AdminApplication(routes, policy)
