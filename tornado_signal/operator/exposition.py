"""The metrics of a server, collected on each request with the client library of Prometheus."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..metrics import Histogram
from ..service.service import Service
from ..settings.settings import LiveSettings
from ..system import logs
from ..system.tls import Tls
from ..system.usage import count_descriptors, read_usage
from ..transport import ServerState
from .fullness import RESOURCES, Fullness

PREFIX: Final = "tornado_signal_"
TASKS_COUNTED: Final = 10_000  # asyncio lists all tasks at once, which takes 0.4 µs each
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "WS")  # llhttp accepts about thirty more


class Exposition(Collector):
    """All server metrics except those of Python."""

    def __init__(
        self, service: Service, fullness: Fullness, transport: ServerState, tls: Tls | None, started_s: float
    ) -> None:
        self._service = service
        self._fullness = fullness
        self._tls = tls
        self._transport = transport
        self._started_s = started_s
        self._descriptors = 0  # when they were counted last
        self._counts: tuple[int, int] | None = None  # the numbers of sessions and topics, when they were counted last
        self._other_tasks = 0  # the tasks that do not work on requests, when they were counted last
        self.registry = CollectorRegistry()  # all metrics of `/metrics`
        self.registry.register(self)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    async def texts(self) -> AsyncIterator[bytes]:
        """Count sessions and descriptors. Then yield the text of each family."""
        self._counts = await self._service.store.counts()
        self._descriptors = await count_descriptors()
        for family in self.registry.collect():
            yield generate_latest(SingleFamily(family))

    def collect(self) -> Iterator[Metric]:
        yield from process_metrics(self._started_s, self._descriptors)
        yield from self._request_metrics()
        yield from self._session_metrics()
        families = [self._service.store.metric_families()]
        if self._service.observer is not None:
            families.append(self._service.observer.metric_families())
        if self._service.settings.connection_reports:
            families.append(self._service.reports.families())
        for kind, name, meaning, values, labels in itertools.chain.from_iterable(families):
            yield KINDS[kind](name, meaning, values, *labels)
        yield gauge(
            "build_info", "The commit that the server was built from.", {(self._service.version,): 1}, "version"
        )
        ready = self._service.store.available and not self._service.lifecycle.leaving
        yield gauge("ready", "Whether the server serves: 0 while it stops or its store is unavailable.", ready)
        meaning = "How far the time of the store is ahead of this machine's clock."
        yield gauge("store_clock_ahead_seconds", meaning, self._service.store_ahead_s())
        yield reload_gauge(self._service.live)
        if self._tls is not None:
            meaning = "Expiry of the current certificate, Unix time."
            yield gauge("certificate_expiry_timestamp_seconds", meaning, self._tls.certificate.expires_s)
        if (provided := self._service.provided).provider:
            requests = {("ok",): provided.succeeded, ("failed",): provided.failed}
            yield counter("turn_provider_requests", "Requests to the TURN provider.", requests, "result")
            meaning = "Expiry of the servers of the TURN provider, Unix time. 0 before the first ones."
            yield gauge("turn_provider_expiry_timestamp_seconds", meaning, provided.expires_ms / 1000)
            yield gauge("turn_provider_failing", "Whether its last request has failed.", bool(provided.problem))
        yield from self._connection_metrics(self._transport)
        lag = self._service.log.metrics.loop_lag
        yield histogram("event_loop_lag_seconds", "How late timers of the event loop fire.", lag)
        meaning = "Log records that were dropped because standard error was not read."
        yield counter("log_dropped_records", meaning, logs.dropped())
        meaning = f"Tasks that are not done. Beyond {TASKS_COUNTED} running requests it is derived from their number."
        yield gauge("tasks", meaning, self._count_tasks())

    def _count_tasks(self) -> int:
        running = self._service.running
        if running <= TASKS_COUNTED:
            self._other_tasks = len(asyncio.all_tasks()) - running
        return running + self._other_tasks

    def _connection_metrics(self, transport: ServerState) -> Iterator[Metric]:
        yield gauge("connections", "Open connections of clients.", len(transport.connections))
        yield gauge("max_connections", "Connections for which there is room.", self._service.limits.max_connections)
        full = {(name,): name in self._fullness.full for name in RESOURCES}
        yield gauge("full", "Whether clients are refused because a resource is full.", full, "what")
        yield gauge("websockets", "Open connections that are WebSockets.", transport.websockets)
        yield gauge("unsent_bytes", "Unread data of slow clients.", transport.unsent.bytes)
        meaning = "Data received after an unfinished request, and incomplete messages."
        yield gauge("read_ahead_bytes", meaning, transport.unfinished.bytes)
        ended = {(reason,): number for reason, number in transport.count_cut_off().items()}
        yield counter("connections_ended", "Connections closed because of their clients, by reason.", ended, "reason")

    def _request_metrics(self) -> Iterator[Metric]:
        metrics = self._service.log.metrics
        numbers: Counter[tuple[str, ...]] = Counter()
        for requests in (metrics.requests, metrics.waits):
            for (pattern, method, status), seconds in requests.items():
                name = method if method in METHODS else "other"
                numbers[pattern, name, str(status)] += sum(seconds.counts)
        yield counter("requests", "Requests that have received a response.", numbers, "endpoint", "method", "status")
        for name, meaning, durations in (
            ("request", "Durations of requests that did not wait.", metrics.requests),
            ("wait", "Durations of long polls and event streams.", metrics.waits),
        ):
            by_pattern = {(pattern,): seconds for pattern, seconds in durations.by_pattern().items()}
            yield histogram(f"{name}_duration_seconds", meaning, by_pattern, "endpoint")
        meaning = "Time from a change, as this process learns of it, to the turn of a request that waits for it."
        yield histogram("wake_up_seconds", meaning, metrics.wake_ups)
        waiting = {(pattern,): number for pattern, number in metrics.waiting.items()}
        yield gauge("waiting_requests", "Long polls and event streams in progress.", waiting, "endpoint")
        yield gauge("running_requests", "Requests in progress, including those that wait.", self._service.running)
        if (allowed := self._service.settings.allowed_origins) is not None:
            meaning = "Requests of the entries of --allowed-origins."
            # Entries that a reload removed from the list are omitted.
            listed = {
                (entry, pattern, str(status)): number
                for (entry, pattern, status), number in metrics.by_origin.items()
                if entry in allowed.entries
            }
            yield counter("origin_requests", meaning, listed, "origin", "endpoint", "status")
        refusals = {(str(status), reason): number for (status, reason), number in metrics.refusals.items()}
        yield counter("refusals", "Refused requests, by reason.", refusals, "status", "reason")
        if self._service.authority is not None:
            tokens = {(result,): number for result, number in metrics.tokens.items()}
            yield counter("tokens", "Presented tokens, accepted or refused for a reason.", tokens, "result")
        yield gauge("held_offers", "Offers that live as long as their WebSocket.", metrics.held)
        yield counter("defects", "Requests that failed because of a bug in the server.", metrics.defects)

    def _session_metrics(self) -> Iterator[Metric]:
        metrics = self._service.store.metrics
        if self._counts is not None:
            listed, topics = self._counts
            yield gauge("sessions_unanswered", "Listed sessions.", listed)
            yield gauge("topics", "Topics with listed sessions.", topics)
        yield counter("sessions_created", "Sessions that were published.", metrics.created)
        yield counter("sessions_answered", "Sessions that were answered.", sum(metrics.offers_waited.counts))
        yield counter("sessions_withdrawn", "Sessions that were withdrawn.", metrics.withdrawn)
        yield counter("sessions_swept", "Sessions that expired, on Redis only unanswered ones.", metrics.swept)
        yield histogram("offer_wait_seconds", "Time from an offer to its answer.", metrics.offers_waited)


class SingleFamily(Collector):
    """A collector with a single metric family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def process_metrics(started_s: float, descriptors: int) -> Iterator[Metric]:
    usage = read_usage()
    yield CounterMetricFamily("process_cpu_seconds", "User and system time.", value=usage.cpu_s)
    for name, meaning, value in (
        ("process_virtual_memory_bytes", "Virtual memory.", usage.virtual_bytes),
        ("process_resident_memory_bytes", "Resident memory.", usage.resident_bytes),
        ("process_start_time_seconds", "Start time of the process, Unix time.", started_s),
        ("process_open_fds", "Open file descriptors.", descriptors),
        ("process_max_fds", "Maximum number of open file descriptors.", usage.max_descriptors),
    ):
        yield GaugeMetricFamily(name, meaning, value=value)


# The keys are tuples of label values. For mypy, tuples of one value are not tuples of any length.
Values = Mapping[Any, float]
Histograms = Mapping[Any, Histogram]


def counter(name: str, meaning: str, values: Values | float, *labels: str) -> Metric:
    return _with_values(CounterMetricFamily(PREFIX + name, meaning, labels=labels), values)


def gauge(name: str, meaning: str, values: Values | float, *labels: str) -> Metric:
    return _with_values(GaugeMetricFamily(PREFIX + name, meaning, labels=labels), values)


def reload_gauge(live: LiveSettings) -> Metric:
    return gauge("last_reload_successful", "Whether the last reload applied its settings.", not live.reload_error)


def _with_values(family: CounterMetricFamily | GaugeMetricFamily, values: Values | float) -> Metric:
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(labels, value)
    return family


def histogram(name: str, meaning: str, values: Histograms | Histogram, *labels: str) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, meaning, labels=labels)
    for label_values, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        bounds = [*map(repr, value.bounds), "+Inf"]
        family.add_metric(label_values, list(zip(bounds, itertools.accumulate(value.counts), strict=True)), value.sum)
    return family


KINDS: Final[dict[str, Callable[..., Metric]]] = {kind.__name__: kind for kind in (counter, gauge, histogram)}
