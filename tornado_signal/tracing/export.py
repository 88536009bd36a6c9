"""The export of spans, with one log line for an outage of the collector instead of one for each batch."""

import logging
from collections.abc import Sequence
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

log = logging.getLogger(__name__)

SDK: Final = logging.getLogger("opentelemetry")
EXPORTERS: Final = "opentelemetry.exporter."


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


def report_once(exporter: SpanExporter, endpoint: str) -> ReportedExporter:
    """Return an exporter that logs outages, and take the lines of the SDK out of the log."""
    reasons = Reasons()
    SDK.addHandler(reasons)
    SDK.propagate = False
    return ReportedExporter(exporter, endpoint, reasons)
