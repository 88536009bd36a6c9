"""The admin listener: health, readiness, metrics, and the operator's page with its data and actions."""

import asyncio
import json
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST
from tornado import web

from ..system import assets
from ..system.assets import POLICY, Asset
from .access import AdminApplication, AdminHandler, AdminPolicy, Operator, RestrictedHandler, respond
from .actions import ACTIONS, InvalidAction

FORWARDED_BY: Final = "X-Operator"
"""The header of a request that the supervisor passes on to a worker: who has sent it."""


class LivenessHandler(AdminHandler):
    """GET /healthz: whether the event loop runs."""

    def get(self) -> None:
        respond(self, 200, {"status": "ok"})

    head = get


class ReadinessHandler(AdminHandler):
    """GET /readyz: whether the store can be written and read, and the server is not stopping."""

    async def get(self) -> None:
        respond(self, *await self.operator.readiness())

    head = get


class MetricsHandler(AdminHandler):
    """GET /metrics: the metrics of the server, for Prometheus."""

    async def get(self) -> None:
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        async for family in self.operator.metrics():
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
        respond(self, 200, await self.operator.describe(history=bool(history)))

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
    routes: list[Any] = [
        ("/healthz", LivenessHandler),
        ("/readyz", ReadinessHandler),
        ("/metrics", MetricsHandler),
        ("/status", StatusHandler),
        ("/actions/([a-z-]+)", ActionHandler),
    ]
    routes += [(path, PageHandler, {"asset": asset}) for path, asset in assets.load(assets.OPERATOR).items()]
    return AdminApplication(routes, operator, policy)
