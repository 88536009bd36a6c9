"""The base of a client's connection: its messages in order, at its turns, and what the client may send."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

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


# Its attributes are read ten times for each message, and those of a NamedTuple cost more.
@dataclass(slots=True, eq=False)
class Client:
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


class MessageContext(RequestContext):
    """The context of a message, or of one request in it. `connection` is that of its client."""

    __slots__ = ("_number", "connection")

    def __init__(self, connection: "ClientConnection", pattern: str) -> None:
        client = connection.client
        RequestContext.__init__(self, client.service, connection.counts, client.address, METHOD, pattern)
        self.connection = connection
        self._number = connection.last_number = connection.last_number + 1
        self.origin, self.grant, self.traceparent = client.origin, connection.grant, client.traceparent

    @property
    def request_id(self) -> str:  # type: ignore[override]
        return f"{self.connection.client.request_id}-{self._number}"


class ClientConnection:
    """Base of a client's connection. A subclass processes the messages of one protocol.

    `pattern` is the name of the path in logs and metrics. `grant` is what the latest token allows. `overlapping` says
    whether the next message is processed while the work of the latest one continues.
    """

    pattern: ClassVar[str]
    overlapping = False
    held: Sequence[HeldOffer] = ()

    __slots__ = ("_bearer", "_is_busy", "_messages", "client", "closed", "counts", "grant", "last_number")

    def __init__(self, client: Client) -> None:
        client.query = NO_QUERY  # it can be large, and contain a token
        self.client = client
        self.grant = client.grant
        self.closed = False
        self._messages: list[bytes] = []  # received and not started
        self._is_busy = False  # whether a message is started, or waits for its turn
        self.last_number = 0  # of its requests
        self._bearer = client.service.make_bearer(client.grant, self._token_expired)
        self.counts: ClientCounts = client.service.limits.client(client.address)
        self.counts.connections += client.forwarded

    @property
    def origin(self) -> str:
        return self.client.origin

    @property
    def client_address(self) -> str:
        return self.client.address

    @property
    def names(self) -> Sequence[str]:
        """The names of its rooms, swarms or ids, as the claims of a token name them."""
        return ()

    # For the protocol

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Do the work that precedes the first message, or follows the end of the connection."""
        self.client.service.start(work)

    def opened(self) -> Awaitable[None] | None:
        """Return the work to do before the first message, if there is any."""
        return None

    def process(self, message: bytes) -> Coroutine[None, None, None] | None:
        """Process a message. Return None if it is done, otherwise its work.

        The work calls `WebSocket.message_done` when it is done or waits. Unless messages overlap, it also calls
        `process_next`. It raises nothing.
        """
        raise NotImplementedError

    def disconnected(self) -> None:
        """Release everything after the end of the connection."""

    def process_next(self) -> None:
        """Process the next message at the client's turn, after the client has read what has been sent."""
        self._is_busy = bool(self._messages)
        if self._is_busy:
            submit, drained = self.client.service.queue.submit, self.client.socket.drained
            if drained is None:
                submit(self.counts, self._take_message)
            else:
                drained.add_done_callback(lambda _: submit(self.counts, self._take_message))

    def fail(self, error: BaseException) -> None:
        """Close the connection because of an internal error."""
        self.client.service.log.count_defect()
        log.error("%s %s failed: connection %s", METHOD, self.pattern, self.client.request_id, exc_info=error)
        self.client.socket.close(CloseCode.TRY_AGAIN_LATER)

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
            self.do(self._open(work))

    async def _open(self, work: Awaitable[None]) -> None:
        try:
            await work
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
        finally:  # otherwise the connection would be deaf
            self.process_next()

    def message_received(self, message: bytes) -> bool:
        client = self.client
        if not self._is_busy:
            if client.socket.drained is None and client.service.queue.may_start():
                return self._process(message)
            self._messages.append(message)
            self.process_next()
        else:
            self._messages.append(message)
        return False

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

    def _take_message(self) -> None:
        messages, socket = self._messages, self.client.socket
        if not messages or socket.drops_messages:
            messages.clear()
            self._is_busy = False
            return
        message = messages.pop(0)
        if self._process(message):
            socket.message_done(len(message))
            self.process_next()

    def _process(self, message: bytes) -> bool:
        """Process a message. Return whether it is done, otherwise start its work."""
        try:
            work = self.process(message)
        except Exception as error:
            self.fail(error)
            return True
        if work is None:
            return True
        self._is_busy = True
        self.client.service.start(work)
        if self.overlapping:  # after the first step of the work: a change of rights must see what has begun
            self.client.socket.state.loop.call_soon(self.process_next)
        return False
