"""Spans of requests after the semantic conventions of OpenTelemetry, made when the request has ended, and their export.

An outage of the collector is one log line instead of one for each batch.

Sources: https://opentelemetry.io/docs/specs/semconv/http/http-spans/ and
https://opentelemetry.io/docs/specs/semconv/rpc/json-rpc/
"""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from .. import COMMIT, __version__
from ..service.request_log import Span

log = logging.getLogger(__name__)

SDK: Final = logging.getLogger("opentelemetry")
EXPORTERS: Final = "opentelemetry.exporter."
SERVICE: Final = "tornado-signal"
PATH: Final = "/v1/traces"
# Others are a client's own words.
METHODS: Final = {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE", "WS"}
WEBSOCKET: Final = "WS"
NO_CONTEXT: Final = Context()

Attributes = dict[str, str | int | float]


class SpanTracer:
    """Receiver of spans that exports them in batches, in a thread of its own.

    `scheme` is that of the public listener.
    """

    def __init__(self, provider: TracerProvider, scheme: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tornado_signal", __version__)
        self._scheme = scheme

    def record(self, span: Span) -> str:
        """Record a span. Return its own `traceparent`, for its children."""
        name, attributes, failed = self._describe(span)
        if span.refusal_reason:
            attributes["tornado_signal.refusal"] = span.refusal_reason
        made = self._tracer.start_span(
            name,
            read_traceparent(span.parent) if span.parent else NO_CONTEXT,
            SpanKind.INTERNAL if span.stream else SpanKind.SERVER,
            attributes,
            start_time=span.ended_ns - round(span.seconds * 1e9),
        )
        if failed:
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.ended_ns)
        found = made.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"

    def _describe(self, span: Span) -> tuple[str, Attributes, bool]:
        """Return the name and the attributes of a span, and whether it has failed."""
        attributes: Attributes = {}
        failed = span.status >= 500
        if span.rpc_method:
            name = span.rpc_method
            attributes = {"rpc.system.name": "jsonrpc", "jsonrpc.protocol.version": "2.0", "rpc.method": name}
            if failed := span.status >= 400:  # each response with an error
                attributes["rpc.response.status_code"] = str(span.status)
        else:
            method = span.method if span.method in METHODS else "HTTP"
            route = span.pattern if span.pattern.startswith("/") else ""
            name = " ".join(filter(None, ("stream" if span.stream else method, route)))
            if route:
                attributes["http.route"] = route
            if span.method != WEBSOCKET:
                attributes["http.request.method"] = span.method if span.method in METHODS else "_OTHER"
                attributes["url.scheme"] = self._scheme
                if span.status:
                    attributes["http.response.status_code"] = span.status
        if failed:
            attributes["error.type"] = str(span.status)
        if span.waited_s and not span.stream:
            attributes["tornado_signal.wait.duration"] = span.waited_s
        return name, attributes, failed

    async def close(self, limit_s: float) -> None:
        """Export the remaining spans for at most `limit_s` seconds. Drop the rest."""
        loop, closed = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: this took too long
                loop.call_soon_threadsafe(closed.set)

        # The interpreter does not wait for this thread when it exits.
        threading.Thread(target=shut_down, daemon=True).start()
        try:
            await asyncio.wait_for(closed.wait(), limit_s)
        except TimeoutError:
            log.warning("the last spans were not exported within %g s and are dropped", limit_s)


class Reasons(logging.Handler):
    """Handler of the SDK's log. It keeps the first line of an exporter, and logs each other message once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.first = ""  # the first line of an exporter since it was cleared, or an empty text
        self._logged: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(EXPORTERS):
            self.first = self.first or record.getMessage()
        elif record.msg not in self._logged:  # such as a full queue, which is reported for each span
            self._logged.add(record.msg)
            log.log(record.levelno, "OpenTelemetry: %s", record.getMessage())


class ReportedExporter(SpanExporter):
    """Exporter that logs the begin and the end of an outage. The SDK calls it in a thread of its own.

    `reasons` is the handler of the SDK's log.
    """

    def __init__(self, exporter: SpanExporter, endpoint: str, reasons: Reasons) -> None:
        self._exporter = exporter
        self._endpoint = endpoint
        self._reasons = reasons
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._reasons.first = self._reasons.first or repr(error)
            result = SpanExportResult.FAILURE
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                reason = self._reasons.first or "unknown reason"
                log.warning("spans cannot be exported to %s and are dropped: %s", self._endpoint, reason)
            self._lost += len(spans)
        elif self._lost:
            log.info("spans are exported to %s again; at least %d were dropped", self._endpoint, self._lost)
            self._lost = 0
        if not self._lost:
            self._reasons.first = ""
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def read_traceparent(traceparent: str) -> Context:
    trace_id, span_id, flags = (int(digits, 16) for digits in traceparent.split("-")[1:])
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(parent), NO_CONTEXT)


def make_resource(worker: int) -> Resource:
    """Return the description of the process. The variables of the SDK take precedence.

    The number of the worker is 0 for the only process.
    """
    given = OTELResourceDetector().detect().attributes
    instance = str(given.get("service.instance.id") or os.urandom(8).hex())
    instance += f"-{worker}" if worker else ""  # each process is an instance
    return Resource.create(
        {"service.name": SERVICE, "service.version": COMMIT, **given, "service.instance.id": instance}
    )


def make_tracer(endpoint: str, scheme: str, worker: int) -> SpanTracer:
    """Start the thread that exports spans, and return their receiver.

    Raise ValueError if an environment variable of the SDK has an invalid value.
    """
    provider = TracerProvider(resource=make_resource(worker), shutdown_on_exit=False)
    reasons = Reasons()
    SDK.addHandler(reasons)
    SDK.propagate = False
    exporter = ReportedExporter(OTLPSpanExporter(endpoint.rstrip("/") + PATH), endpoint, reasons)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return SpanTracer(provider, scheme)
