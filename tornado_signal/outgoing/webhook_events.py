"""The queue of events, bounded in number and bytes, and the bodies of the requests. No I/O."""

import itertools
from collections import deque
from typing import Any, Final, NamedTuple

from ..metrics import WebhookMetrics
from ..service.wire import encode, format_code

MAX_EVENTS: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024  # of events in memory, estimated
EVENT_BYTES: Final = 200  # an event without its text
BATCH_EVENTS: Final = 100
BATCH_BYTES: Final = 255 * 1024  # of encoded events; a body has at most 1 KiB more
MAX_SCANNED: Final = 1000  # events that are looked at for a batch

Fields = dict[str, Any]
"""The fields of an event as in the request. Those that are None are omitted."""


def session_event(
    time_ms: int,
    outcome: str,
    origin: str,
    code: bytes,
    topic: str | None,
    created_ms: int | None,
    expires_ms: int | None,
) -> Fields:
    """Return an event of a session. See `session.Observer` for the arguments."""
    return {
        "type": f"session.{outcome}",
        "time": time_ms,
        "origin": origin,
        "code": format_code(code),
        "topic": topic,
        "createdAt": created_ms,
        "expiresAt": expires_ms,
    }


def connection_event(
    kind: str,
    time_ms: int,
    connection: str,
    protocol: str,
    origin: str,
    address: str | None,
    duration_ms: int | None = None,
    close_code: int | None = None,
) -> Fields:
    """Return the begin or the end of a WebSocket. `connection` is the id of its handshake."""
    return {
        "type": f"connection.{kind}",
        "time": time_ms,
        "origin": origin or None,
        "connection": connection,
        "protocol": protocol,
        "address": address,
        "durationMs": duration_ms,
        "closeCode": close_code,
    }


class Event(NamedTuple):
    """An event in the queue."""

    sequence: int
    subject: bytes | str  # the session or the connection, whose events are delivered in order
    text: bytes  # its JSON


class Batch(NamedTuple):
    """The content of one request."""

    id: str  # the identifier of the request, the same for all attempts
    body: bytes
    size: int  # the number of events
    dropped: int  # the number of dropped events that the body reports
    subjects: frozenset[bytes | str]  # the sessions and connections of its events


class EventQueue:
    """Events that wait for their delivery, oldest first. When it is full, new events are dropped and counted.

    `server` identifies this process in each event.
    """

    def __init__(self, server: str, metrics: WebhookMetrics) -> None:
        self._server = server
        self._metrics = metrics
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._sequence = 0
        self._unreported = 0  # dropped events that no request reports
        self._sending: set[bytes | str] = set()  # the subjects of batches that are not done

    def __len__(self) -> int:
        return len(self._events)

    def add(self, subject: bytes | str, fields: Fields) -> bool:
        """Append an event, or drop it if the queue is full. Return whether it was appended."""
        self._sequence += 1
        known = {name: value for name, value in fields.items() if value is not None}
        text = encode({"sequence": self._sequence, "server": self._server, **known})
        size = EVENT_BYTES + len(text)
        if len(self._events) >= MAX_EVENTS or self._bytes + size > MAX_BYTES:
            self.drop("full", 1)
            return False
        self._events.append(Event(self._sequence, subject, text))
        self._bytes += size
        self._metrics.queued += 1
        return True

    def take(self) -> Batch | None:
        """Remove the next events and return them as one batch.

        An event waits while another batch has events of the same session or connection. Returns None if all wait.
        """
        taken: list[Event] = []
        waiting: list[Event] = []
        size = 0
        for event in itertools.islice(self._events, MAX_SCANNED):
            if event.subject in self._sending:
                waiting.append(event)
                continue
            if len(taken) == BATCH_EVENTS or (taken and size + len(event.text) > BATCH_BYTES):
                break
            taken.append(event)
            size += len(event.text)
        if not taken:
            return None
        for _ in range(len(taken) + len(waiting)):
            self._events.popleft()
        self._events.extendleft(reversed(waiting))
        self._bytes -= EVENT_BYTES * len(taken) + size
        subjects = frozenset(event.subject for event in taken)
        self._sending |= subjects
        dropped, self._unreported = self._unreported, 0
        body = b'{"events":[%b],"dropped":%d}' % (b",".join(event.text for event in taken), dropped)
        return Batch(f"{self._server}-{taken[0].sequence}", body, len(taken), dropped, subjects)

    def done(self, batch: Batch, reason: str) -> None:
        """Count a batch that was delivered, or dropped for a reason."""
        self._metrics.queued -= batch.size
        self._sending -= batch.subjects
        if reason:
            self.drop(reason, batch.size)
            self._unreported += batch.dropped
        else:
            self._metrics.sent += batch.size

    def clear(self, reason: str) -> None:
        size = len(self._events)
        self._events.clear()
        self._bytes = 0
        self._metrics.queued -= size
        self.drop(reason, size)

    def drop(self, reason: str, size: int) -> None:
        if size:
            self._metrics.dropped[reason] += size
            self._unreported += size
