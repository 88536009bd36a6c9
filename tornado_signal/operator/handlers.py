"""The operator's page, the data that it shows, and its actions, over HTTP (docs/operator-page.md)."""

import asyncio
import contextlib
import json
import math
import re
from typing import Any, Final, Protocol

from tornado import web
from tornado.iostream import StreamClosedError

from ..limits.recent import SLICE_S
from ..service import wire
from ..system import assets
from ..system.assets import POLICY, Asset
from .access import AdminHandler, AdminPolicy, RestrictedHandler, respond
from .actions import ACTIONS, InvalidAction

RARELY_CHANGED: Final = ("settings", "log")
"""The fields of a process that a stream repeats only after a change."""
FORWARDED_BY: Final = "X-Operator"
"""The header of a request that the supervisor passes on to a worker: who has sent it."""


class Operator(Protocol):
    """The processes of one server, or of all servers that share a Redis."""

    stopping: asyncio.Event
    """Set when the server stops: streams end."""

    async def describe(self, *, history: bool = False) -> dict[str, Any]:
        """Return the verdict and the states of all processes (docs/operator-page.md#data).

        With `history` also the figures of the last hour.
        """

    async def perform(self, name: str, fields: dict[str, Any], by: str) -> dict[str, Any]:
        """Perform an action, a key of `ACTIONS`, on each process that it concerns. The log names `by`.

        Return `results` of each process with its name, and `missing`, the processes that did not respond. Raise
        InvalidAction before anything has changed.
        """


class StatusHandler(RestrictedHandler):
    """GET /status: the states of all processes as JSON. With `interval`, a line per interval in seconds.

    With `history=1` also the figures of the last hour, in a stream every `SLICE_S`.
    """

    for_page = True

    def initialize(self, operator: Operator, policy: AdminPolicy) -> None:
        self.operator = operator
        self.policy = policy
        self.gone = asyncio.Event()

    async def get(self) -> None:
        """Send one object, or one per interval until the client disconnects or the server stops."""
        interval = self.get_query_argument("interval", "")
        history = self.get_query_argument("history", "")
        if not re.fullmatch("([1-9]|[1-5][0-9]|60)?", interval) or history not in ("", "1"):
            raise web.HTTPError(400)
        if not interval:
            respond(self, 200, await self.operator.describe(history=bool(history)))
            return
        if self.request.method == "HEAD":  # a stream has no end
            self.set_header("Content-Type", "application/x-ndjson")
            self.finish()
            return
        self.set_header("Content-Type", "application/x-ndjson")
        stopping = asyncio.create_task(self.operator.stopping.wait())
        stopping.add_done_callback(lambda _: self.gone.set())
        sent: dict[str, Any] = {}
        sent_s = -math.inf
        try:
            while not self.gone.is_set():
                now_s = asyncio.get_running_loop().time()
                due = bool(history) and now_s >= sent_s + SLICE_S
                sent_s = now_s if due else sent_s
                state = await self.operator.describe(history=due)
                self.write(wire.encode(without_repetitions(state, sent)) + b"\n")
                await self.flush()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.gone.wait(), int(interval))
        except StreamClosedError:
            pass
        finally:
            stopping.cancel()

    head = get

    def on_connection_close(self) -> None:
        self.gone.set()


def without_repetitions(state: dict[str, Any], sent: dict[str, Any]) -> dict[str, Any]:
    """Return a state without those fields that have not changed since an earlier line of the stream.

    `sent` has the latest of `RARELY_CHANGED` by process. It is updated.
    """
    processes = []
    for process in state["processes"]:
        kept = {name: process[name] for name in RARELY_CHANGED}
        earlier = sent.get(process["id"], {})
        sent[process["id"]] = kept
        changed = {name: value for name, value in process.items() if name not in kept or value != earlier.get(name)}
        processes.append(changed)
    for process_id in sent.keys() - {process["id"] for process in processes}:
        del sent[process_id]
    return state | {"processes": processes}


class ActionHandler(RestrictedHandler):
    """POST /actions/NAME: an action of the operator, with its fields as a JSON object."""

    methods = "POST"

    def initialize(self, operator: Operator, policy: AdminPolicy) -> None:
        self.operator = operator
        self.policy = policy
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


def operator_routes(operator: Operator, policy: AdminPolicy) -> list[Any]:
    """Return the routes of the operator's page, its data and its actions."""
    common = {"operator": operator, "policy": policy}
    files = [(path, PageHandler, {"asset": asset}) for path, asset in assets.load(assets.OPERATOR).items()]
    return [*files, ("/status", StatusHandler, common), ("/actions/([a-z-]+)", ActionHandler, common)]
