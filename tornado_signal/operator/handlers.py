"""The admin listener: health, readiness, metrics, and the operator's page with its data and actions."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Final, Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from tornado import web

from ..system import assets
from ..system.assets import POLICY, Asset
from .access import AdminApplication, AdminHandler, AdminPolicy, LivenessHandler, RestrictedHandler, respond
from .actions import ACTIONS, InvalidAction

FORWARDED_BY: Final = "X-Operator"
"""The header of a request that the supervisor passes on to a worker: who has sent it."""


class Operator(Protocol):
    """The processes of one server, or of all servers that share a Redis."""

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of /readyz. Can raise Unavailable."""

    def metrics(self) -> AsyncIterator[bytes]:
        """Yield the text of each family of metrics."""

    async def describe(self, *, history: bool = False) -> dict[str, Any]:
        """Return the verdict and the states of all processes (docs/operator-page.md#data).

        With `history` also the figures of the last hour.
        """

    async def perform(self, name: str, fields: dict[str, Any], by: str) -> dict[str, Any]:
        """Perform an action, a key of `ACTIONS`, on each process that it concerns. The log names `by`.

        Return `results` of each process with its name, and `missing`, the processes that did not respond. Raise
        InvalidAction before anything has changed.
        """


class OperatorHandler(AdminHandler):
    """A handler that calls the operator."""

    def initialize(self, operator: Operator, policy: AdminPolicy) -> None:
        self.operator = operator
        self.policy = policy


class ReadinessHandler(OperatorHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        respond(self, *await self.operator.readiness())

    head = get


class MetricsHandler(OperatorHandler):
    """GET /metrics: the metrics of the server, for Prometheus."""

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        async for family in self.operator.metrics():
            self.write(family)
            await asyncio.sleep(0)  # all families at once would block requests for milliseconds

    head = get


class StatusHandler(RestrictedHandler, OperatorHandler):
    """GET /status: the states of all processes as JSON. With `history=1` also the figures of the last hour."""

    for_page = True

    async def get(self) -> None:
        history = self.get_query_argument("history", "")
        if history not in ("", "1"):
            raise web.HTTPError(400)
        respond(self, 200, await self.operator.describe(history=bool(history)))

    head = get


class ActionHandler(RestrictedHandler, OperatorHandler):
    """POST /actions/NAME: an action of the operator, with its fields as a JSON object."""

    methods = "POST"

    def initialize(self, operator: Operator, policy: AdminPolicy) -> None:
        super().initialize(operator, policy)
        self.for_page = bool(policy.token)  # other pages do not have it

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
            respond(self, 200, await self.operator.perform(name, fields, by))
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
    common = {"operator": operator, "policy": policy}
    files = [(path, PageHandler, {"asset": asset}) for path, asset in assets.load(assets.OPERATOR).items()]
    called = [("/readyz", ReadinessHandler), ("/metrics", MetricsHandler), ("/status", StatusHandler)]
    called += [("/actions/([a-z-]+)", ActionHandler)]
    routes = [*files, ("/healthz", LivenessHandler), *((path, handler, common) for path, handler in called)]
    return AdminApplication(routes, policy)
