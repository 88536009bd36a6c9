"""The admin listener: access, health, readiness, metrics, and the operator's page with its data and actions."""

import asyncio
import hmac
import http
import ipaddress
import json
import re
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from tornado import httputil, web

from ..errors import Unavailable
from ..service import wire
from ..service.refusals import Refusals
from ..system import assets
from ..system.assets import POLICY, Asset
from ..transport.stream import HTTPStream
from .actions import ACTIONS, FORWARDED_BY, InvalidAction

if TYPE_CHECKING:
    from .control import Control
    from .workers import WorkersOperator

Operator: TypeAlias = "Control | WorkersOperator"
"""The processes of one server, or of all servers that share a Redis."""

MAX_BODY_BYTES: Final = 16 * 1024  # of a request
REFUSALS_CHECK_S: Final = 10.0
HOST: Final = re.compile(r"(localhost|[0-9.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?")  # an IP address or localhost, no DNS name


@dataclass(repr=False)
class AdminPolicy:
    """Access rules of everything but health and metrics."""

    token: bytes = b""  # the required bearer token. Empty for none. A reload can replace it
    local: bool = True  # whether only this machine can connect. Without a token this is required
    hosts: tuple[str, ...] = ()  # host names that requests may name, in addition to addresses

    def use(self, token: bytes, hosts: tuple[str, ...]) -> None:
        self.token, self.hosts = token, hosts

    def allows_host(self, host: str) -> bool:
        """Return whether a request with this Host header is served. Otherwise it can be one of DNS rebinding."""
        is_address = not host or HOST.fullmatch(host) is not None
        return is_address or re.sub(":[0-9]+$", "", host).lower() in self.hosts


class AdminHandler(web.RequestHandler):
    """A Tornado handler with JSON responses, also for errors."""

    application: "AdminApplication"
    methods = "GET, HEAD"
    reason = ""  # why the request is refused, if the status does not say it

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> None:
        """Reject requests whose Host is a DNS name, except those of --admin-hosts."""
        if not self.application.policy.allows_host(self.request.headers.get("Host", "")):
            self.reason = "the Host is not an address; list this name in --admin-hosts"
            raise web.HTTPError(403)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs["exc_info"][1] if "exc_info" in kwargs else None
        if isinstance(error, Unavailable):
            respond(self, 503, {"status": "unavailable", "reason": error.reason})
            return
        if status_code == 405:
            self.set_header("Allow", self.methods)
        respond(self, status_code, {"error": self.reason or http.HTTPStatus(status_code).phrase.capitalize()})

    def log_exception(
        self, typ: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Log unexpected errors only. The others were logged where they occurred."""
        if not isinstance(value, Unavailable | web.HTTPError):
            super().log_exception(typ, value, tb)


class RestrictedHandler(AdminHandler):
    """A handler for the operator only.

    With a token, requests need it. Otherwise only programs on this machine have access.
    """

    acts = True  # whether it changes something: then the page of this listener needs the token; others have no access

    def prepare(self) -> None:
        """Respond with 401 to requests without the token.

        Raise HTTPError 403 for requests of web pages. Other machines also get it while no token is required.
        """
        headers, policy = self.request.headers, self.application.policy
        site = headers.get("Sec-Fetch-Site")
        # From the page of this listener, or from an address that the user has entered.
        own_page = site in ("same-origin", "none") and (policy.token or not self.acts)
        if ("Origin" in headers or site is not None) and not own_page:
            self.reason = "web pages have no access"
            raise web.HTTPError(403)
        if policy.token:
            scheme, _, token = headers.get("Authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), policy.token):
                self.reason = "without the token of --admin-token-file"
                self.set_header("WWW-Authenticate", "Bearer")
                respond(self, 401, {"error": "Unauthorized"})
            return
        remote_ip = self.request.remote_ip or "::1"  # empty on a Unix socket
        from_here = is_loopback(headers.get("Host", "")) and ipaddress.ip_address(remote_ip).is_loopback
        if not (policy.local and from_here):
            self.reason = "other machines have no access without --admin-token-file"
            raise web.HTTPError(403)


class NotFoundHandler(AdminHandler):
    """The handler of all other paths."""

    def prepare(self) -> None:
        respond(self, 404, {"error": "Not found"})


class AdminApplication(web.Application):
    """The application of an admin listener.

    The log has the first and the last refused request for each reason. It needs a running event loop.
    """

    def __init__(self, routes: list[Any], operator: Operator, policy: AdminPolicy) -> None:
        self.operator, self.policy = operator, policy
        self._refused: Counter[tuple[int, str]] = Counter()
        self.refusals = Refusals(self._refused, lambda status, reason: "")
        self._timer: asyncio.TimerHandle | None = None
        super().__init__(
            routes, default_handler_class=NotFoundHandler, log_function=self._count, compress_response=True
        )

    def _count(self, handler: web.RequestHandler) -> None:
        if isinstance(handler, AdminHandler) and handler.reason:
            self._refused[handler.get_status(), f"admin listener: {handler.reason}"] += 1
            if self._timer is None:
                self._check()

    def _check(self) -> None:
        self.refusals.check()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REFUSALS_CHECK_S, self._check) if self.refusals.active else None

    def start_request(self, server_conn: object, request_conn: httputil.HTTPConnection) -> httputil.HTTPMessageDelegate:
        cast(HTTPStream, request_conn).set_max_body_size(MAX_BODY_BYTES)
        return super().start_request(server_conn, request_conn)


def is_loopback(host: str) -> bool:
    """Return whether a Host header is a loopback address or localhost."""
    match = HOST.fullmatch(host)
    try:
        return match is not None and (match[1] == "localhost" or ipaddress.ip_address(match[1].strip("[]")).is_loopback)
    except ValueError:
        return False


def respond(handler: web.RequestHandler, status: int, fields: dict[str, Any]) -> None:
    handler.set_status(status)
    handler.set_header("Content-Type", wire.JSON)
    handler.finish(wire.encode(fields))


class LivenessHandler(AdminHandler):
    """GET /healthz: whether the event loop runs."""

    def get(self) -> None:
        respond(self, 200, {"status": "ok"})

    head = get


class ReadinessHandler(AdminHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        respond(self, *await self.application.operator.readiness())

    head = get


class MetricsHandler(AdminHandler):
    """GET /metrics: the metrics of the server, for Prometheus."""

    async def get(self) -> None:
        from prometheus_client import CONTENT_TYPE_LATEST  # here, because that takes a while

        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        async for family in self.application.operator.metrics():
            self.write(family)
            await asyncio.sleep(0)  # all families at once would block requests for milliseconds

    head = get


class StatusHandler(RestrictedHandler):
    """GET /status: the states of all processes as JSON. With `history=1` also the figures of the last hour."""

    acts = False

    async def get(self) -> None:
        history = self.get_query_argument("history", "")
        if history not in ("", "1"):
            raise web.HTTPError(400)
        respond(self, 200, await self.application.operator.describe(history=bool(history)))

    head = get


class ActionHandler(RestrictedHandler):
    """POST /actions/NAME: an action of the operator, with its fields as a JSON object."""

    methods = "POST"

    async def post(self, name: str) -> None:
        """Respond with the results of the processes, or with 400 and the reason for an invalid field.

        An unknown action gets 404.
        """
        if name not in ACTIONS:
            raise web.HTTPError(404)
        try:
            fields = json.loads(self.request.body or b"{}")
        except (ValueError, RecursionError):  # invalid, or nested too deeply
            fields = None
        if not isinstance(fields, dict):
            self._respond_invalid(name, "the body must be a JSON object")
            return
        by = self.request.remote_ip or self.request.headers.get(FORWARDED_BY, "a Unix socket")
        try:
            respond(self, 200, await self.application.operator.perform(name, fields, by))
        except InvalidAction as error:
            self._respond_invalid(name, str(error))

    def _respond_invalid(self, name: str, reason: str) -> None:
        respond(self, 400, {"error": reason, "action": name})


class PageHandler(AdminHandler):
    """GET a file of the operator's page, which contains no data."""

    def initialize(self, asset: Asset) -> None:
        self.asset = asset

    def prepare(self) -> None:
        """Accept all requests."""

    def get(self) -> None:
        self.set_header("Content-Type", f"{self.asset.media_type}; charset=utf-8")
        self.set_header("Content-Security-Policy", POLICY)
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(self.asset.body)

    head = get


def make_application(operator: Operator, policy: AdminPolicy) -> web.Application:
    routes: list[Any] = [
        ("/healthz", LivenessHandler),
        ("/readyz", ReadinessHandler),
        ("/metrics", MetricsHandler),
        ("/status", StatusHandler),
        ("/actions/([a-z-]+)", ActionHandler),
    ]
    routes += [(path, PageHandler, {"asset": asset}) for path, asset in assets.load(assets.OPERATOR).items()]
    return AdminApplication(routes, operator, policy)
