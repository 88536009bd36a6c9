"""The base of a client's connection: its messages in order, at its turns, and what the client may send."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Sequence
from time import perf_counter
from typing import Any, ClassVar, Final

from ..limits.per_address import ClientCounts as ClientCounts
from ..transport.frames import CloseCode
from ..transport.websocket import WebSocket
from .other_protocols import PATHS, describe, find_protocol
from .refusals import BLOCKED_BY_OPERATOR
from .request_context import RequestContext, units_of
from .service import NO_TOKEN, TOKEN_EXPIRED, HeldOffer

log = logging.getLogger(__name__)

METHOD: Final = "WS"
"""The method of WebSocket messages in logs and metrics."""


class MessageContext(RequestContext):
    """The context of a message, or of one request in it. `connection` is that of its client."""

    __slots__ = ("_number", "connection")

    def __init__(self, connection: "ClientConnection", pattern: str) -> None:
        RequestContext.__init__(
            self,
            connection.service,
            connection.counts,
            connection.client_address,
            METHOD,
            pattern,
            connection.origin,
            connection.grant,
            connection.traceparent,
        )
        self.connection = connection
        self._number = connection.last_number = connection.last_number + 1

    def reuse(self) -> None:
        """Be the context of the next message. The earlier one is done, and nothing else refers to it."""
        connection = self.connection
        self._number = connection.last_number = connection.last_number + 1
        self.refusal_reason = self.span = ""
        self.status = 0
        self.began_s = perf_counter()

    @property
    def request_id(self) -> str:  # type: ignore[override]
        return f"{self.connection.request_id}-{self._number}"


class ClientConnection:
    """Base of a client's connection. A subclass processes the messages of one protocol.

    `pattern` is the name of the path in logs and metrics. `overlapping` says whether the next message is processed
    while the work of the latest one continues.
    """

    pattern: ClassVar[str]
    overlapping = False
    held: Sequence[HeldOffer] = ()

    __slots__ = (
        "_bearer",
        "_forwarded",
        "_is_busy",
        "_messages",
        "client_address",
        "closed",
        "counts",
        "grant",
        "last_number",
        "origin",
        "request_id",
        "service",
        "socket",
        "traceparent",
    )

    def __init__(self, handshake: RequestContext, socket: WebSocket) -> None:
        service = self.service = handshake.service
        self.socket = socket
        self.origin = handshake.origin
        self.client_address = handshake.client_address
        self.counts = handshake.client  # of what the client has open
        self.request_id = handshake.request_id  # the prefix of the ids of its requests
        self.traceparent = handshake.traceparent
        self.grant = handshake.grant  # what the latest token allows, or None without one
        self.closed = False
        self.last_number = 0  # of its requests
        self._messages: list[bytes] = []  # received and not started
        self._is_busy = False  # whether a message is started, or waits for its turn
        self._bearer = service.make_bearer(self.grant, self._token_expired)
        # Whether a proxy keeps the connection open for the client.
        self._forwarded = service.limits.is_forwarded(self.counts, socket.remote_ip)
        self.counts.connections += self._forwarded

    @property
    def names(self) -> Sequence[str]:
        """The names of its rooms, swarms or ids, as the claims of a token name them."""
        return ()

    # For the protocol

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Do the work that precedes the first message, or follows the end of the connection."""
        self.service.start(work)

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
            submit, drained = self.service.queue.submit, self.socket.drained
            if drained is None:
                submit(self.counts, self._take_message)
            else:
                drained.add_done_callback(lambda _: submit(self.counts, self._take_message))

    def fail(self, error: BaseException) -> None:
        """Close the connection because of an internal error."""
        self.service.log.count_defect()
        log.error("%s %s failed: connection %s", METHOD, self.pattern, self.request_id, exc_info=error)
        self.socket.close(CloseCode.TRY_AGAIN_LATER)

    def charge_frame(self, size: int = 0) -> None:
        """Charge a frame or a message that is not a request. A client that sends far too many is disconnected."""
        limits, counts = self.service.limits, self.counts
        now_ms = self.service.clock.now_ms()
        if limits.is_blocked(self.client_address):
            self.socket.close(CloseCode.POLICY_VIOLATION, BLOCKED_BY_OPERATOR)
        elif limits.charge_request(counts, now_ms, units_of(size)) and limits.exceeds_hard_limit(counts, now_ms):
            self.socket.close(CloseCode.POLICY_VIOLATION, "too many frames")

    def refuse_other_protocol(self, message: Any) -> bool:
        """Close the connection if a decoded message is of another protocol, and log that. Return whether it is."""
        found = find_protocol(message)
        if not found or PATHS[found] == self.pattern:
            return False
        reason = describe(self.pattern, found)
        self.service.report_client(self.client_address, f"a client sends messages of {found}: {reason}")
        self.socket.close(CloseCode.POLICY_VIOLATION, reason)
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
        if not self._is_busy and self.socket.drained is None and self.service.queue.may_start(perf_counter()):
            return self._process(message)
        self._messages.append(message)
        if not self._is_busy:
            self.process_next()
        return False

    frame_received = charge_frame

    def client_gone(self) -> None:
        self.closed = True
        self._messages.clear()
        if self._bearer is not None:
            self._bearer.close()
        self.counts.connections -= self._forwarded
        self.disconnected()

    def _token_expired(self) -> None:
        self.socket.close(CloseCode.POLICY_VIOLATION, NO_TOKEN if self.grant is None else TOKEN_EXPIRED)

    def _take_message(self) -> None:
        messages, socket = self._messages, self.socket
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
        self.service.start(work)
        if self.overlapping:  # after the first step of the work: a change of rights must see what has begun
            self.socket.state.loop.call_soon(self.process_next)
        return False
