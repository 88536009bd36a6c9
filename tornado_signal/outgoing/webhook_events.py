"""The queue of events, bounded in number and bytes, and the bodies of the requests. No I/O."""

import itertools
from collections import deque
from typing import Any, Final, NamedTuple

from ..metrics import WebhookMetrics
from ..service.wire import encode, format_code

MAX_EVENTS: Final = 10_000
MAX_BYTES: Final = 8 * 1024 * 1024  # of events in memory, estimated
EVENT_BYTES: Final = 320  # an event without its texts
CHARACTER_BYTES: Final = 4
BATCH_EVENTS: Final = 100
BATCH_BYTES: Final = 255 * 1024  # of encoded events; a body has at most 1 KiB more
MAX_SCANNED: Final = 1000  # events that are looked at for a batch


class SessionEvent(NamedTuple):
    """An event of a session. See `session.Observer` for its attributes."""

    time_ms: int
    outcome: str
    origin: str
    code: bytes
    topic: str | None
    created_ms: int | None
    expires_ms: int | None

    @property
    def subject(self) -> bytes:
        """The session. Its events are delivered in order."""
        return self.code

    @property
    def text_length(self) -> int:
        return len(self.origin) + len(self.topic or "")

    def fields(self) -> dict[str, Any]:
        """Return the fields as in the request. Unknown ones are None."""
        return {
            "type": f"session.{self.outcome}",
            "time": self.time_ms,
            "origin": self.origin,
            "code": format_code(self.code),
            "topic": self.topic,
            "createdAt": self.created_ms,
            "expiresAt": self.expires_ms,
        }


class ConnectionEvent(NamedTuple):
    """The begin or the end of a WebSocket."""

    time_ms: int  # the time, Unix milliseconds
    connection: str  # the id of its handshake
    protocol: str
    origin: str  # the isolation scope. It can be empty
    address: str | None  # the client's IP address, or None if addresses are not logged
    duration_ms: int | None = None  # how long it was open, or None at the begin
    close_code: int | None = None  # the code of the close, or None at the begin

    @property
    def subject(self) -> str:
        """The connection. Its events are delivered in order."""
        return self.connection

    @property
    def text_length(self) -> int:
        return len(self.origin) + len(self.connection)

    def fields(self) -> dict[str, Any]:
        """Return the fields as in the request. Unknown ones are None."""
        return {
            "type": "connection.opened" if self.duration_ms is None else "connection.closed",
            "time": self.time_ms,
            "origin": self.origin or None,
            "connection": self.connection,
            "protocol": self.protocol,
            "address": self.address,
            "durationMs": self.duration_ms,
            "closeCode": self.close_code,
        }


WebhookEvent = SessionEvent | ConnectionEvent


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
        self._events: deque[tuple[int, int, WebhookEvent]] = deque()  # sequence number, estimated bytes, event
        self._bytes = 0
        self._sequence = 0
        self._unreported = 0  # dropped events that no request reports
        self._sending: set[bytes | str] = set()  # the subjects of batches that are not done

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: WebhookEvent) -> bool:
        """Append an event, or drop it if the queue is full. Return whether it was appended."""
        self._sequence += 1
        size = EVENT_BYTES + CHARACTER_BYTES * event.text_length
        if len(self._events) >= MAX_EVENTS or self._bytes + size > MAX_BYTES:
            self._drop("full", 1)
            return False
        self._events.append((self._sequence, size, event))
        self._bytes += size
        self._metrics.queued += 1
        return True

    def take(self) -> Batch | None:
        """Remove the next events and return them as one batch.

        An event waits while another batch has events of the same session or connection. Returns None if all wait.
        """
        encoded: list[bytes] = []
        taken: list[tuple[int, int, WebhookEvent]] = []
        waiting: list[tuple[int, int, WebhookEvent]] = []
        size = 0
        for entry in itertools.islice(self._events, MAX_SCANNED):
            sequence, _, event = entry
            if event.subject in self._sending:
                waiting.append(entry)
                continue
            known = {name: value for name, value in event.fields().items() if value is not None}
            text = encode({"sequence": sequence, "server": self._server, **known})
            if len(encoded) == BATCH_EVENTS or (encoded and size + len(text) > BATCH_BYTES):
                break
            encoded.append(text)
            taken.append(entry)
            size += len(text)
        if not taken:
            return None
        for _ in range(len(taken) + len(waiting)):
            self._events.popleft()
        self._events.extendleft(reversed(waiting))
        self._bytes -= sum(estimated for _, estimated, _ in taken)
        subjects = frozenset(event.subject for _, _, event in taken)
        self._sending |= subjects
        dropped, self._unreported = self._unreported, 0
        body = b'{"events":[%b],"dropped":%d}' % (b",".join(encoded), dropped)
        return Batch(f"{self._server}-{taken[0][0]}", body, len(encoded), dropped, subjects)

    def done(self, batch: Batch, reason: str) -> None:
        """Count a batch that was delivered, or dropped for a reason."""
        self._metrics.queued -= batch.size
        self._sending -= batch.subjects
        if reason:
            self._drop(reason, batch.size)
            self._unreported += batch.dropped
        else:
            self._metrics.sent += batch.size

    def clear(self, reason: str) -> None:
        size = len(self._events)
        self._events.clear()
        self._bytes = 0
        self._metrics.queued -= size
        self._drop(reason, size)

    def _drop(self, reason: str, size: int) -> None:
        if size:
            self._metrics.dropped[reason] += size
            self._unreported += size
