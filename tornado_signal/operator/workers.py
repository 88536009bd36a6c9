"""The admin listener of several workers, which aggregates their responses."""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from tornado.httpclient import HTTPClientError, HTTPRequest, HTTPResponse
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..errors import Unavailable
from ..settings.settings import LiveSettings
from ..system import logs
from ..system.fetching import fetch
from .actions import FORWARDED_BY, InvalidAction, Performers, perform
from .control import now_ms
from .exposition import SingleFamily, counter, gauge, reload_gauge
from .verdict import judge

RESPONSE_S = 2.0  # timeout for one worker's response
STATUS_S = 5.0  # the same for the states of all processes
ACTION_S = 3600.0  # the same for an action
MAX_REQUESTS = 1000  # to a worker at once; further ones would wait, also the health check


class WorkerResolver(Resolver):
    """A resolver for which every host is a Unix socket."""

    def initialize(self, path: Path) -> None:
        self._path = os.fspath(path)

    async def resolve(self, host: str, port: int, family: int = 0) -> list[tuple[int, Any]]:
        return [(socket.AF_UNIX, self._path)]


class WorkerListener:
    """The admin listener of one worker."""

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.restarts = 0
        self._client = SimpleAsyncHTTPClient(
            force_instance=True, resolver=WorkerResolver(path=path), max_clients=MAX_REQUESTS
        )
        self.close = self._client.close

    async def request(self, path: str, limit_s: float = 0, **options: Any) -> HTTPResponse | None:
        """Send a request with options of `HTTPRequest`. Return None after an error or at the time limit, 0 for none."""
        url = f"http://localhost{path}"
        options |= {"connect_timeout": limit_s, "request_timeout": limit_s, "decompress_response": False}
        with contextlib.suppress(HTTPClientError, OSError):
            return await fetch(self._client, HTTPRequest(url, **options))
        return None


class MergedMetrics:
    """The metrics of several processes in the text format of Prometheus, by family."""

    def __init__(self) -> None:
        self._families: dict[str, list[str]] = {}

    def add(self, text: str, worker: int | None = None) -> None:
        """Add the metrics of a process. Those of a worker get the label `worker`."""
        for family in f"\n{text}".split("\n# HELP ")[1:]:
            meaning, metric_type, *samples = family.rstrip("\n").split("\n")
            name = meaning.partition(" ")[0]
            lines = self._families.setdefault(name, [f"# HELP {meaning}", metric_type])
            lines += samples if worker is None else (with_worker(sample, worker) for sample in samples)

    def texts(self) -> Iterable[str]:
        return ("\n".join([*lines, ""]) for lines in self._families.values())


def with_worker(sample: str, worker: int) -> str:
    """Return the line of a sample with the label `worker`."""
    series, _, value = sample.rpartition(" ")
    labels = f"{series[:-1]}," if series.endswith("}") else f"{series}{{"
    return f'{labels}worker="{worker}"}} {value}'


class WorkersOperator:
    """All workers of this server, and the servers that share their store. `Control` describes its operations.

    `server_actions` has the actions that the supervisor performs itself, by name.
    """

    def __init__(
        self, listeners: Sequence[WorkerListener], server: str, server_actions: Performers, live: LiveSettings
    ) -> None:
        self._listeners = listeners
        self._live = live
        self._server = server
        self._server_actions = server_actions

    async def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return status and body of a worker that is ready, or otherwise of another one.

        `full` lists that of all workers, and `turnProvider` has the problem of one of them.
        """
        responses = sorted((await self._gather("/readyz")).values(), key=lambda response: response.code)
        if not responses:
            return 503, {"status": "unavailable", "reason": "no worker responds"}
        bodies = [json.loads(response.body) for response in responses]
        full = sorted({name for body in bodies for name in body.get("full", ())})
        problem = next(filter(None, (body.get("turnProvider") for body in bodies)), None)
        details = ({"full": full} if full else {}) | ({"turnProvider": problem} if problem else {})
        return responses[0].code, bodies[0] | details

    async def metrics(self) -> AsyncIterator[bytes]:
        """Yield the merged metrics of all workers by family. One worker is read per event-loop iteration."""
        responses = await self._gather("/metrics")
        texts = {number: response.body.decode() for number, response in responses.items() if response.code == 200}
        restarts = {(str(listener.number),): listener.restarts for listener in self._listeners}
        merged = MergedMetrics()
        for own in (
            gauge("workers", "Configured worker processes.", len(self._listeners)),
            gauge("workers_serving", "Worker processes that respond.", len(texts)),
            counter("worker_restarts", "Restarts of a worker.", restarts, "worker"),
            reload_gauge(self._live),
        ):
            merged.add(generate_latest(SingleFamily(own)).decode())
        for number, text in texts.items():
            merged.add(text, number)
            await asyncio.sleep(0)
        for text in merged.texts():
            yield text.encode()

    async def _gather(self, path: str) -> dict[int, HTTPResponse]:
        """Send a request to all workers. Return the responses by number, without those that timed out."""
        requests = (listener.request(path, RESPONSE_S) for listener in self._listeners)
        responses = zip(self._listeners, await asyncio.gather(*requests), strict=True)
        return {listener.number: response for listener, response in responses if response is not None}

    async def describe(self, *, history: bool = False) -> dict[str, Any]:
        # One worker describes all processes.
        response = await self._first("/status?history=1" if history else "/status", STATUS_S)
        if response is None or response.code != 200:
            missing = [f"{self._server}/{listener.number}" for listener in self._listeners]
            state = {"time": now_ms(), "verdict": judge([], missing), "processes": [], "missing": missing}
            return {**state, "store": None, "log": logs.recent()}
        described: dict[str, Any] = json.loads(response.body)
        return {**described, "log": logs.recent()}

    async def perform(self, name: str, fields: dict[str, Any], by: str) -> dict[str, Any]:
        if name in self._server_actions:
            result = await perform(self._server_actions, name, fields, by)
            return {"results": [{"process": self._server, **result}], "missing": []}
        options = {"method": "POST", "headers": {FORWARDED_BY: by}, "body": json.dumps(fields)}
        response = await self._first(f"/actions/{name}", ACTION_S, **options)
        if response is None:
            raise Unavailable("no worker responds")
        found: dict[str, Any] = json.loads(response.body)
        if response.code == 503:
            raise Unavailable(found["reason"])
        if response.code != 200:
            raise InvalidAction(found["error"])
        return found

    async def _first(self, path: str, limit_s: float, **options: Any) -> HTTPResponse | None:
        for listener in self._listeners:
            # A worker that does not respond at all is skipped soon. One that has begun an action is not.
            if await listener.request("/healthz", RESPONSE_S) is not None:
                return await listener.request(path, limit_s, **options)
        return None
