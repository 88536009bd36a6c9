"""The operator's listener of several workers: what each of them says, as one."""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from tornado import web

from ..errors import Unavailable
from .application import AdminHandler, NotFoundHandler, respond
from .exposition import PREFIX

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log every request

RESPONSE_S = 2.0  # for a worker, before the others' answers go without its


class WorkerListener:
    """The admin listener of one worker.

    Args:
        number: of the worker.
        path: its Unix socket.

    Attributes:
        number: of the worker.
        restarts: how often it was restarted.
    """

    def __init__(self, number: int, path: Path) -> None:
        self.number = number
        self.restarts = 0
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://localhost")

    async def request(self, path: str, limit_s: float | None) -> httpx.Response | None:
        """Its answer; None if there is none in time, for None however long that takes."""
        with contextlib.suppress(httpx.TransportError, TimeoutError):
            async with asyncio.timeout(limit_s):
                return await self._client.get(path, timeout=None)
        return None

    async def close(self) -> None:
        """Close the connections to it."""
        await self._client.aclose()


class WorkersCollector(Collector):
    """The workers' numbers, each with the label `worker`, and those about the workers.

    Args:
        listeners: the workers'.
        texts: what the workers have said that have answered, by number.
    """

    def __init__(self, listeners: Sequence[WorkerListener], texts: dict[int, str]) -> None:
        self._listeners = listeners
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        """Every number."""
        yield GaugeMetricFamily(f"{PREFIX}workers", "Processes that are to serve.", len(self._listeners))
        yield GaugeMetricFamily(f"{PREFIX}workers_serving", "Processes that answer.", len(self._texts))
        meaning = "How often a worker was restarted."
        restarts = CounterMetricFamily(f"{PREFIX}worker_restarts", meaning, labels=["worker"])
        for listener in self._listeners:
            restarts.add_metric([str(listener.number)], listener.restarts)
        yield restarts
        merged: dict[str, Metric] = {}
        for number, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, sample.labels | {"worker": str(number)}, sample.value)
        yield from merged.values()


class AggregatingHandler(AdminHandler):
    """What is answered from what the workers answer."""

    def initialize(self, listeners: Sequence[WorkerListener]) -> None:
        self.listeners = listeners

    async def gather(self) -> dict[int, httpx.Response]:
        """What the workers say to the same request, by their numbers; of those that do in time."""
        asked = (listener.request(self.request.path, RESPONSE_S) for listener in self.listeners)
        answers = zip(self.listeners, await asyncio.gather(*asked), strict=True)
        return {listener.number: found for listener, found in answers if found is not None}


class LivenessHandler(AggregatingHandler):
    """GET /healthz: the supervisor's event loop turns."""

    def get(self) -> None:
        respond(self, 200, {"status": "ok"})

    head = get


class ReadinessHandler(AggregatingHandler):
    """GET /readyz: a worker can serve."""

    async def get(self) -> None:
        """What a worker says that is ready, or else one that is not."""
        answers = sorted((await self.gather()).values(), key=lambda found: found.status_code)
        if not answers:
            raise Unavailable("no worker answers")
        respond(self, answers[0].status_code, answers[0].json())

    head = get


class MetricsHandler(AggregatingHandler):
    """GET /metrics: what the workers have counted, for Prometheus."""

    async def get(self) -> None:
        registry = CollectorRegistry(auto_describe=False)
        texts = {number: found.text for number, found in (await self.gather()).items() if found.status_code == 200}
        registry.register(WorkersCollector(self.listeners, texts))
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.finish(generate_latest(registry))

    head = get


def make_workers_application(listeners: Sequence[WorkerListener]) -> web.Application:
    """The application of the admin listener of several workers."""
    handlers: dict[str, type[AggregatingHandler]] = {
        "/healthz": LivenessHandler,
        "/readyz": ReadinessHandler,
        "/metrics": MetricsHandler,
    }
    routes: list[Any] = [(path, handler, {"listeners": listeners}) for path, handler in handlers.items()]
    return web.Application(routes, default_handler_class=NotFoundHandler, log_function=lambda handler: None)
