"""The admin listener: health, readiness, metrics, and the operator's actions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from tornado import web

from ..errors import Unavailable
from ..service.service import Service
from ..system.tls import Tls
from ..transport import ServerState
from .access import AdminApplication, AdminHandler, AdminPolicy, LivenessHandler, respond
from .control import Control
from .exposition import Exposition
from .handlers import Operator, operator_routes

ReadReadiness = Callable[[], Awaitable[tuple[int, dict[str, Any]]]]
ReadMetrics = Callable[[], AsyncIterator[bytes]]


class ReadinessHandler(AdminHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    def initialize(self, read: ReadReadiness) -> None:
        self.read = read

    async def get(self) -> None:
        respond(self, *await self.read())

    head = get


class MetricsHandler(AdminHandler):
    """GET /metrics: the metrics of the server, for Prometheus."""

    def initialize(self, read: ReadMetrics) -> None:
        self.read = read

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        async for family in self.read():
            self.write(family)
            await asyncio.sleep(0)  # all families at once would block requests for milliseconds

    head = get


def make_application(
    operator: Operator, policy: AdminPolicy, read_readiness: ReadReadiness, read_metrics: ReadMetrics
) -> web.Application:
    """Make the application of an admin listener.

    The functions return status and body of /readyz, and yield the text of each family of metrics.
    """
    routes: list[Any] = [("/healthz", LivenessHandler)]
    routes += [
        ("/readyz", ReadinessHandler, {"read": read_readiness}),
        ("/metrics", MetricsHandler, {"read": read_metrics}),
    ]
    return AdminApplication(routes + operator_routes(operator, policy), policy)


def make_admin_application(
    service: Service,
    control: Control,
    transport: ServerState,
    policy: AdminPolicy | None = None,
    tls: Tls | None = None,
) -> web.Application:

    async def read_readiness() -> tuple[int, dict[str, Any]]:
        if service.lifecycle.leaving:
            raise Unavailable("draining")
        await service.store.probe()
        details = {"full": control.fullness.full, "turnProvider": service.provided.problem}
        return 200, {"status": "ok", **{name: detail for name, detail in details.items() if detail}}

    exposition = Exposition(service, control.fullness, transport, tls)
    return make_application(control, policy or AdminPolicy(), read_readiness, exposition.texts)
