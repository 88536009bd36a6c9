"""Requests as spans of a trace (docs/monitoring.md#traces). The package that exports them is not needed here."""

from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """A request that has ended, or a stream after its request."""

    method: str  # the method in logs and metrics
    pattern: str  # the name of the path in logs and metrics
    rpc_method: str  # the JSON-RPC method, or empty for another request
    status: int  # the HTTP status, or 0 if there was no response
    refusal_reason: str  # the reason of a refusal, or empty
    ended_ns: int  # its end by the wall clock, in Unix nanoseconds
    seconds: float  # the time from its arrival until then
    waited_s: float  # the part of that time from the begin of its wait. 0 if it has not waited
    parent: str  # the parent as a valid `traceparent`, or empty
    stream: bool  # whether it is a stream, whose parent is the span of its request


class Tracer(Protocol):
    """Receiver of spans. It never waits for a network and never raises."""

    def record(self, span: Span) -> str:
        """Record a span. Return its own `traceparent`, for its children."""

    async def close(self, limit_s: float) -> None:
        """Export the remaining spans for at most `limit_s` seconds. Drop the rest."""
