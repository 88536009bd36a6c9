"""The admin listener of one server: health, readiness, metrics, and maintenance of the store."""

import asyncio
import hmac
import http
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tornado import web

from ..errors import Unavailable
from ..lifecycle import DRAINING, LEAVING
from ..service import wire
from ..service.service import Service
from ..system.tls import Tls
from ..transport import ServerState
from .exposition import Exposition


@dataclass(frozen=True, repr=False)
class AdminPolicy:
    """Access rules of maintenance.

    Attributes:
        token: the required bearer token. Empty for none.
        local: whether only this machine can connect. Without a token this is required.
    """

    token: bytes = b""
    local: bool = True


class AdminHandler(web.RequestHandler):
    """A Tornado handler with JSON responses, also for errors."""

    methods = "GET, HEAD"

    def prepare(self) -> None:
        """Reject requests whose Host is a DNS name (DNS rebinding)."""
        if not is_address(self.request.headers.get("Host", "")):
            raise web.HTTPError(403)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write an error as JSON."""
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        if isinstance(error, Unavailable):
            respond(self, 503, {"status": "unavailable", "reason": error.reason})
        else:
            if status_code == 405:
                self.set_header("Allow", self.methods)
            respond(self, status_code, {"error": http.HTTPStatus(status_code).phrase.capitalize()})

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Log unexpected errors only. The others were logged where they occurred."""
        if not isinstance(value, Unavailable):
            super().log_exception(typ, value, tb)


class ServiceHandler(AdminHandler):
    """A handler with the service, its metrics and the access rules."""

    def initialize(self, service: Service, exposition: Exposition, policy: AdminPolicy) -> None:
        self.service = service
        self.policy = policy
        self.exposition = exposition


class LivenessHandler(ServiceHandler):
    """GET /healthz: whether the event loop runs."""

    def get(self) -> None:
        respond(self, 200, {"status": "ok"})

    head = get


class ReadinessHandler(ServiceHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        if self.service.lifecycle.state >= LEAVING:
            raise Unavailable("draining")
        await self.service.store.probe()
        respond(self, 200, {"status": "ok"})

    head = get


class MaintenanceHandler(ServiceHandler):
    """Maintenance of the store.

    With a token, requests need it. Otherwise only programs on this machine have access. Web pages never have access.
    """

    methods = "POST"

    def initialize(self, service: Service, exposition: Exposition, policy: AdminPolicy) -> None:
        super().initialize(service, exposition, policy)
        maintenance = service.store.maintenance
        assert maintenance is not None
        self.maintenance = maintenance

    def prepare(self) -> None:
        """Reject requests of web pages, which have headers from the browser, and those without access."""
        headers = self.request.headers
        if "Origin" in headers or "Sec-Fetch-Site" in headers:
            raise web.HTTPError(403)
        if self.policy.token:
            scheme, _, token = headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), self.policy.token):
                self.set_header("WWW-Authenticate", "Bearer")
                respond(self, 401, {"error": "Unauthorized"})
                return
        else:
            remote_ip = self.request.remote_ip or "::1"  # empty on a Unix socket
            from_here = is_loopback(headers.get("Host", "")) and ipaddress.ip_address(remote_ip).is_loopback
            if not (self.policy.local and from_here):
                raise web.HTTPError(403)
        if self.service.lifecycle.state >= DRAINING:
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
        before = self.maintenance.size_bytes()
        await self.maintenance.compact()
        respond(self, 200, {"before_bytes": before, "after_bytes": self.maintenance.size_bytes()})


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


class NotFoundHandler(web.RequestHandler):
    """The handler of all other paths."""

    def prepare(self) -> None:
        respond(self, 404, {"error": "Not found"})


HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")


def is_address(host: str) -> bool:
    """Return whether a Host header is an IP address, localhost or empty, and not a DNS name."""
    return not host or HOST.fullmatch(host) is not None


def is_loopback(host: str) -> bool:
    """Return whether a Host header is a loopback address or localhost."""
    match = HOST.fullmatch(host)
    try:
        return match is not None and (match[1] == "localhost" or ipaddress.ip_address(match[1].strip("[]")).is_loopback)
    except ValueError:
        return False


def respond(handler: web.RequestHandler, status: int, fields: dict[str, Any]) -> None:
    """Send a JSON response."""
    handler.set_status(status)
    handler.set_header("Content-Type", wire.JSON)
    handler.finish(wire.encode(fields))


def make_admin_application(
    service: Service, transport: ServerState | None = None, policy: AdminPolicy = AdminPolicy(), tls: Tls | None = None
) -> web.Application:
    """Make the application of the admin listener."""
    handlers: dict[str, type[ServiceHandler]] = {
        "/healthz": LivenessHandler,
        "/readyz": ReadinessHandler,
        "/metrics": MetricsHandler,
    }
    if service.store.maintenance is not None:
        handlers |= {"/inspect": InspectHandler, "/compact": CompactHandler}
    common = {"service": service, "exposition": Exposition(service, transport, tls), "policy": policy}
    routes: list[Any] = [(path, handler, common) for path, handler in handlers.items()]
    return web.Application(routes, default_handler_class=NotFoundHandler, log_function=lambda handler: None)
