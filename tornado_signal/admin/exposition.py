"""What the server has counted, as Prometheus reads it: made when it is asked for, and by its own library."""

import itertools
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..lifecycle import LEAVING
from ..metrics import Histogram
from ..service.service import Service
from ..system.tls import Tls
from ..transport import ServerState

PREFIX: Final = "tornado_signal_"
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "WS")  # llhttp knows some thirty more


class Exposition(Collector):
    """All numbers of a server, its process aside; without a transport that is ours, those of requests and store.

    Attributes:
        registry: everything that `/metrics` shows.
    """

    def __init__(self, service: Service, transport: ServerState | None, tls: Tls | None) -> None:
        self._service = service
        self._tls = tls
        self._transport = transport
        self.registry = CollectorRegistry()
        self.registry.register(self)
        self.registry.register(ProcessCollector())
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    async def update(self) -> None:
        """Count what the store holds. Without a new count `collect` shows the last one."""
        await self._service.counts.refresh()

    def collect(self) -> Iterator[Metric]:
        """Every number, as it is now."""
        yield from self._of_requests()
        yield from self._of_sessions()
        for kind, name, meaning, values, labels in self._service.store.metric_families():
            yield KINDS[kind](name, meaning, values, *labels)
        yield gauge(
            "build_info", "The commit that the server was built from.", {(self._service.version,): 1}, "version"
        )
        ready = self._service.store.available and self._service.lifecycle.state < LEAVING
        yield gauge(
            "ready", "Whether the server serves: not while it stops, nor while its store cannot be used.", ready
        )
        if self._tls is not None:
            meaning = "When the certificate in use expires, Unix time."
            yield gauge("certificate_expiry_timestamp_seconds", meaning, self._tls.expires_s)
        if self._transport is not None:
            yield from self._of_connections(self._transport)
        lag = self._service.log.metrics.loop_lag
        yield histogram("event_loop_lag_seconds", "How late what is due gets its turn.", lag)

    def _of_connections(self, transport: ServerState) -> Iterator[Metric]:
        yield gauge("connections", "Open connections of clients.", len(transport.connections))
        yield gauge("websockets", "Those of them that are WebSockets.", transport.websockets)
        yield gauge("unsent_bytes", "What clients that read too slowly have left unread.", transport.unsent.bytes)
        meaning = "What was read behind unanswered requests, or is not whole."
        yield gauge("read_ahead_bytes", meaning, transport.unfinished.bytes)
        ended: Values = {
            ("too many",): transport.turned_away,
            ("unsent",): transport.unsent.ended,
            ("unfinished",): transport.unfinished.ended,
        }
        yield counter("connections_ended", "Connections that were ended without a word, and why.", ended, "reason")

    def _of_requests(self) -> Iterator[Metric]:
        metrics = self._service.log.metrics
        numbers: Counter[tuple[str, ...]] = Counter()
        for requests in (metrics.requests, metrics.waits):
            for (pattern, method, status), seconds in requests.items():
                name = method if method in METHODS else "other"
                numbers[pattern, name, str(status)] += sum(seconds.counts)
        yield counter("requests", "Requests that have been answered.", numbers, "endpoint", "method", "status")
        for name, meaning, durations in (
            ("request", "How long requests took that did not wait for news.", metrics.requests),
            ("wait", "How long requests took that waited for news, or were streams of it.", metrics.waits),
        ):
            by_pattern: Histograms = {(pattern,): seconds for pattern, seconds in durations.by_pattern().items()}
            yield histogram(f"{name}_duration_seconds", meaning, by_pattern, "endpoint")
        waiting: Values = {(pattern,): number for pattern, number in metrics.waiting.items()}
        yield gauge("waiting_requests", "Requests that wait for news now, streams among them.", waiting, "endpoint")
        yield gauge("running_requests", "Requests that are being worked on now, or wait.", self._service.running)
        if (allowed := self._service.settings.allowed_origins) is not None:
            meaning = "Requests of the origins that are listed as allowed."
            # What a reload has taken off the list is not shown any more.
            listed: Values = {
                (entry, pattern, str(status)): number
                for (entry, pattern, status), number in metrics.by_origin.items()
                if entry in allowed.entries
            }
            yield counter("origin_requests", meaning, listed, "origin", "endpoint", "status")
        refusals: Values = {(str(status), reason): number for (status, reason), number in metrics.refusals.items()}
        yield counter("refusals", "Requests that were refused, and why.", refusals, "status", "reason")
        yield gauge("held_offers", "Offers that live as long as their WebSocket.", metrics.held)
        yield counter("defects", "Requests that failed through a defect of the server.", metrics.defects)

    def _of_sessions(self) -> Iterator[Metric]:
        metrics = self._service.store.metrics
        if self._service.counts.value is not None:
            listed, topics = self._service.counts.value
            yield gauge("sessions_unanswered", "Sessions that are listed.", listed)
            yield gauge("topics", "Topics that have such sessions.", topics)
        yield counter("sessions_created", "Sessions that were published.", metrics.created)
        yield counter("sessions_answered", "Sessions that were answered.", sum(metrics.offers_waited.counts))
        yield counter("sessions_withdrawn", "Sessions that were taken back.", metrics.withdrawn)
        yield counter("sessions_swept", "Sessions that expired and were deleted.", metrics.swept)
        yield histogram("offer_wait_seconds", "How long offers waited that were answered.", metrics.offers_waited)


class ProcessCollector(Collector):
    """The standard numbers of a process, also where /proc shows processes alone (ProcSubset=pid in the unit).

    The library's own collector has none of them there.
    """

    def __init__(self) -> None:
        # Once: what it is counted from is read from two clocks, and a start that changes is a restart to the alerts.
        booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._started_s = booted_s + self._fields()[19] / os.sysconf("SC_CLK_TCK")

    def _fields(self) -> list[int]:
        """The numbers of /proc/self/stat behind the name and the state; see proc(5)."""
        return [0, *map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:])]

    def collect(self) -> Iterator[Metric]:
        """Each of them, as it is now."""
        fields = self._fields()
        user, system, virtual, resident = (fields[at] for at in (11, 12, 20, 21))
        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        yield CounterMetricFamily("process_cpu_seconds", "User and system time.", value=(user + system) * tick_s)
        for name, meaning, value in (
            ("process_virtual_memory_bytes", "Virtual memory.", virtual),
            ("process_resident_memory_bytes", "Resident memory.", resident * os.sysconf("SC_PAGE_SIZE")),
            ("process_start_time_seconds", "When it was started, Unix time.", self._started_s),
            ("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
            ("process_max_fds", "How many it may have open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ):
            yield GaugeMetricFamily(name, meaning, value=value)


Values = Mapping[tuple[str, ...], float]
Histograms = Mapping[tuple[str, ...], Histogram]


def counter(name: str, meaning: str, values: Values | float, *labels: str) -> Metric:
    """A number that only grows, or one for each combination of labels."""
    return _with_values(CounterMetricFamily(PREFIX + name, meaning, labels=labels), values)


def gauge(name: str, meaning: str, values: Values | float, *labels: str) -> Metric:
    """A number as it is now, or one for each combination of labels."""
    return _with_values(GaugeMetricFamily(PREFIX + name, meaning, labels=labels), values)


def _with_values(family: CounterMetricFamily | GaugeMetricFamily, values: Values | float) -> Metric:
    for labels, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(labels, value)
    return family


def histogram(name: str, meaning: str, values: Histograms | Histogram, *labels: str) -> Metric:
    """How often a number was at most so much, or that for each combination of labels."""
    family = HistogramMetricFamily(PREFIX + name, meaning, labels=labels)
    for found, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        names = [*map(repr, value.bounds), "+Inf"]
        family.add_metric(found, list(zip(names, itertools.accumulate(value.counts), strict=True)), value.sum)
    return family


KINDS: Final[dict[str, Callable[..., Metric]]] = {each.__name__: each for each in (counter, gauge, histogram)}
