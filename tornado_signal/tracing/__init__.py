"""Requests as spans of OpenTelemetry, sent to a collector (docs/monitoring.md#traces)."""

from typing import TYPE_CHECKING, Optional

from ..errors import OperatorError
from ..settings.settings import Settings

if TYPE_CHECKING:  # opentelemetry can be missing
    from .spans import SpanTracer


def open_tracing(settings: Settings, worker: int = 0) -> Optional["SpanTracer"]:
    """Start to export spans. Return None if no collector is configured: then nothing is imported.

    The number of the worker is 0 for the only process.
    """
    if not settings.otlp_endpoint:
        return None
    try:
        from .spans import make_tracer
    except ModuleNotFoundError as error:
        raise OperatorError("--otlp-endpoint needs the extra otel; in the checkout: pip install '.[otel]'") from error
    scheme = "https" if settings.tls_certificate else "http"
    try:
        return make_tracer(settings.otlp_endpoint, scheme, worker)
    except ValueError as error:
        raise OperatorError(f"a variable OTEL_… cannot be used: {error}") from error
