"""The base of a client's connection: its messages in order, at its turns, and what the client may send."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from ..auth import Grant
from ..limits.per_address import ClientCounts as ClientCounts
from ..transport.frames import CloseCode
from ..transport.websocket import WebSocket
from .other_protocols import PATHS, describe, find_protocol
from .refusals import BLOCKED_BY_OPERATOR
from .request_context import RequestContext, units_of
from .service import NO_TOKEN, TOKEN_EXPIRED, HeldOffer, Service

log = logging.getLogger(__name__)

NO_QUERY: Final[Mapping[str, list[bytes]]] = {}

METHOD: Final = "WS"
"""The method of WebSocket messages in logs and metrics."""


class Client(NamedTuple):
    """A client that has completed a handshake."""

    service: Service  # the shared state of all requests
    origin: str
    address: str
    request_id: str  # the id of the handshake, the prefix of the ids of its requests
    traceparent: str  # the span that the handshake belongs to, or an empty text
    forwarded: bool  # whether a proxy keeps the connection open for the client
    socket: WebSocket
    query: Mapping[str, list[bytes]]  # the values of the query by name
    grant: Grant | None  # what its token allows, or None if it has none


class Slot:
    """A place among the messages in progress, until its message is done or waits."""

    __slots__ = ("_size", "_socket", "followed", "uncharged_bytes")

    def __init__(self, socket: WebSocket, size: int) -> None:
        self._socket: WebSocket | None = socket
        self._size = self.uncharged_bytes = size
        self.followed = False

    def take_uncharged(self) -> int:
        """Return the bytes that are not charged yet, which the caller charges."""
        size, self.uncharged_bytes = self.uncharged_bytes, 0
        return size

    def release(self) -> None:
        """Let another message be read. Further calls do nothing."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.message_done(self._size)


class ClientConnection:
    """Base of a client's connection. A subclass processes the messages of one protocol.

    `pattern` is the name of the path in logs and metrics. `grant` is what the latest token allows.
    """

    pattern: ClassVar[str]
    held: Sequence[HeldOffer] = ()

    __slots__ = ("_bearer", "_is_busy", "_last_id", "_messages", "client", "closed", "counts", "grant")

    def __init__(self, client: Client) -> None:
        self.client = client._replace(query=NO_QUERY)  # it can be large, and contain a token
        self.grant = client.grant
        self.closed = False
        self._messages: list[bytes] = []  # received and not started
        self._is_busy = False  # whether a message is started, or waits for its turn
        self._last_id = 0
        self._bearer = client.service.hold_grant(client.grant, self._token_expired)
        self.counts: ClientCounts = client.service.limits.client(client.address)
        self.counts.connections += client.forwarded

    @property
    def origin(self) -> str:
        """The isolation scope."""
        return self.client.origin

    @property
    def client_address(self) -> str:
        return self.client.address

    @property
    def names(self) -> Sequence[str]:
        """The names of its rooms, swarms or ids, as the claims of a token name them."""
        return ()

    # For the protocol

    def opened(self) -> Awaitable[None] | None:
        """Return the work to do before the first message, if there is any."""
        return None

    def process(self, message: bytes, slot: Slot) -> Awaitable[None] | None:
        """Process a message.

        The slot is released when the returned work is done. The next message is processed then, or after `follow`.
        """
        raise NotImplementedError

    def disconnected(self) -> None:
        """Release everything after the end of the connection."""

    def identify(self, context: RequestContext) -> None:
        """Set whose a request is, and its id."""
        client = self.client
        self._last_id += 1
        context.origin, context.request_id = client.origin, f"{client.request_id}-{self._last_id}"
        context.grant, context.traceparent = self.grant, client.traceparent

    def follow(self, slot: Slot) -> None:
        """Process the next message. Further calls for the same message do nothing."""
        if not slot.followed:
            slot.followed = True
            self._begin_next()

    def charge_frame(self, size: int = 0) -> None:
        """Charge a frame or a message that is not a request. A client that sends far too many is disconnected."""
        limits, counts = self.client.service.limits, self.counts
        now_ms = self.client.service.clock.now_ms()
        if limits.is_blocked(self.client.address):
            self.client.socket.close(CloseCode.POLICY_VIOLATION, BLOCKED_BY_OPERATOR)
        elif limits.charge_request(counts, now_ms, units_of(size)) and limits.exceeds_hard_limit(counts, now_ms):
            self.client.socket.close(CloseCode.POLICY_VIOLATION, "too many frames")

    def refuse_other_protocol(self, message: Any) -> bool:
        """Close the connection if a decoded message is of another protocol, and log that. Return whether it is."""
        found = find_protocol(message)
        if not found or PATHS[found] == self.pattern:
            return False
        reason = describe(self.pattern, found)
        self.client.service.report_client(self.client.address, f"a client sends messages of {found}: {reason}")
        self.client.socket.close(CloseCode.POLICY_VIOLATION, reason)
        return True

    # From the transport

    def connected(self) -> None:
        work = self.opened()
        if work is not None:
            self._is_busy = True
            self.client.service.start(self._run(work, None))

    def message_received(self, message: bytes) -> None:
        self._messages.append(message)
        if not self._is_busy:
            self._begin_next(self.client.service.queue.start)

    def frame_received(self) -> None:
        self.charge_frame()

    def client_gone(self) -> None:
        self.closed = True
        self._messages.clear()
        if self._bearer is not None:
            self._bearer.close()
        self.counts.connections -= self.client.forwarded
        self.disconnected()

    def _token_expired(self) -> None:
        self.client.socket.close(CloseCode.POLICY_VIOLATION, NO_TOKEN if self.grant is None else TOKEN_EXPIRED)

    def _begin_next(self, start: Callable[[ClientCounts, Callable[[], None]], None] | None = None) -> None:
        """Process the next message at the client's turn, after the client has read what has been sent.

        `start` can process it at once if nothing else waits. By default it waits for a turn.
        """
        self._is_busy = bool(self._messages)
        if self._is_busy:
            start, room = start or self.client.service.queue.submit, self.client.socket.room
            if room.done():
                start(self.counts, self._begin)
            else:
                room.add_done_callback(lambda _: start(self.counts, self._begin))

    def _begin(self) -> None:
        if not self._messages or self.client.socket.drops_messages:
            self._messages.clear()
            self._is_busy = False
            return
        message = self._messages.pop(0)
        slot, work = Slot(self.client.socket, len(message)), None
        try:
            work = self.process(message, slot)
        except Exception as error:
            self._fail_connection(error)
        if work is None:
            self._end(slot)
        else:
            self.client.service.start(self._run(work, slot))

    async def _run(self, work: Awaitable[None], slot: Slot | None) -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as error:
            self._fail_connection(error)
        finally:
            self._end(slot)

    def _end(self, slot: Slot | None) -> None:
        """End a message, whatever was raised. Otherwise the connection would be deaf, and a drain would wait for it."""
        if slot is None:
            self._begin_next()
        else:
            slot.release()
            self.follow(slot)

    def _fail_connection(self, error: BaseException) -> None:
        self.client.service.log.count_defect()
        log.error("%s %s failed: connection %s", METHOD, self.pattern, self.client.request_id, exc_info=error)
        self.client.socket.close(CloseCode.TRY_AGAIN_LATER)
