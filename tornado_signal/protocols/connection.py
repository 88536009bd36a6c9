"""The connection of a client of another library: its messages in order, its limits, and what it subscribed to."""

from asyncio import Future
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final

import orjson

from .. import errors
from ..http.upgrade import Client
from ..relay import Channel, Relay
from ..service.request_context import RequestContext
from ..service.service import TOKEN_EXPIRED
from ..service.statuses import STATUS
from ..transport.frames import CloseCode

METHOD: Final = "WS"
MAX_CHANNELS: Final = 1000  # channels and groups of a connection
RECEIVERS_PER_UNIT: Final = 100  # a publication counts as one more request for this many receivers
BYTES_PER_UNIT: Final = 64 * 1024  # and as one more for this many bytes that are sent to them
MAX_NAME: Final = 256  # code points of an id or the name of a room
MAX_DEPTH: Final = 254  # levels of JSON that orjson encodes; it parses more


class Connection:
    """A client of another library. A subclass handles the messages of one protocol.

    Args:
        client: the client, whose handshake is complete.
        relay: channels and groups.
        scope: the isolation scope.

    Attributes:
        pattern: the name of the protocol's path in logs and metrics.
        client: as given.
        relay: as given.
        scope: as given.
        closed: whether the client has disconnected.
        held: always empty. Only clients of `/ws` hold offers.
    """

    pattern: ClassVar[str]
    held = ()

    __slots__ = (
        "_acquired",
        "_bearer",
        "_channels",
        "_last_id",
        "_messages",
        "_running",
        "client",
        "closed",
        "relay",
        "scope",
    )

    def __init__(self, client: Client, relay: Relay, scope: str) -> None:
        self.client = client
        self.relay = relay
        self.scope = scope
        self.closed = False
        self._acquired = 0
        self._channels: set[Channel] = set()
        self._messages: list[bytes] = []  # received and not started
        self._running = False
        self._last_id = 0
        self._bearer = client.service.hold_grant(client.grant, self._token_expired)
        if client.forwarded:
            client.service.limits.count_forwarded(client.address, 1)

    @property
    def origin(self) -> str:
        """The origin of the client."""
        return self.client.origin

    @property
    def names(self) -> Sequence[str]:
        """The names of its rooms, swarms or ids, as the claims of a token name them."""
        return ()

    # For the protocol

    def opened(self) -> Callable[[RequestContext], Awaitable[None]] | None:
        """Return the work to do before the first message, if there is any."""
        return None

    def received(self, message: Any, context: RequestContext) -> Awaitable[None] | None:
        """Handle a message. The next one is handled when the awaitable, if any, completes.

        Args:
            message: the decoded JSON.
            context: the context of the message, for further charges.

        Raises:
            SignalError: the message exceeds a limit, or a service is unavailable. The connection is closed.
        """
        raise NotImplementedError

    def received_junk(self, error: ValueError) -> None:
        """Handle a message that is not JSON. It is ignored."""

    def disconnected(self) -> Coroutine[None, None, None] | None:
        """Return the work that releases the groups after the end of the connection, if there is any."""
        return None

    def send(self, message: Any) -> None:
        """Send a message as JSON."""
        self.client.socket.send(orjson.dumps(message))

    def relayed(self, message: bytes) -> None:
        """Send a message of a channel."""
        self.client.socket.send(message)

    def acquire(self) -> None:
        """Count a channel or a membership of a group, until `release`.

        Raises:
            TooMany: the connection or its address has too many.
        """
        if self._acquired >= MAX_CHANNELS:
            raise errors.TooMany("channels of a connection")
        self.client.service.limits.acquire_hold(self.client.address)
        self._acquired += 1

    def release(self) -> None:
        """Stop counting a channel or a membership."""
        self._acquired -= 1
        self.client.service.limits.release_hold(self.client.address)

    def subscribe(self, channel: Channel) -> Awaitable[None] | None:
        """Subscribe to a channel. See `Relay.subscribe`.

        Raises:
            TooMany: the connection or its address has too many channels.
        """
        if channel in self._channels or self.closed:
            return None
        self.acquire()
        self._channels.add(channel)
        return self.relay.subscribe(channel, self)

    def unsubscribe(self, channel: Channel) -> None:
        """Unsubscribe from a channel. Do nothing if it is not subscribed."""
        if channel in self._channels:
            self._channels.discard(channel)
            self.relay.unsubscribe(channel, self)
            self.release()

    def publish(self, channel: Channel, message: bytes, context: RequestContext) -> "int | Future[int]":
        """Publish a message, and charge its receivers. See `Relay.publish`.

        Raises:
            TooMany: the address exceeds its rate.
        """
        receivers = self.relay.receivers(channel)
        units = receivers // RECEIVERS_PER_UNIT + receivers * len(message) // BYTES_PER_UNIT
        if units:
            context.charge(units)
        return self.relay.publish(channel, message)

    # From the transport

    def connected(self) -> None:
        work = self.opened()
        if work is not None:
            self._running = True
            self.client.service.start(self._open(work))

    def message_received(self, message: bytes) -> None:
        self._messages.append(message)
        if not self._running:
            self._running = True
            self._wait_for_turn()

    def frame_received(self) -> None:
        now_ms = self.client.service.clock.now_ms()
        limits, address = self.client.service.limits, self.client.address
        if limits.charge_request(address, now_ms) and limits.exceeds_hard_limit(address, now_ms):
            self.client.socket.close(CloseCode.POLICY_VIOLATION, "too many frames")

    def client_gone(self) -> None:
        self.closed = True
        self._messages.clear()
        for channel in list(self._channels):
            self.unsubscribe(channel)
        if self._bearer is not None:
            self._bearer.close()
        if (work := self.disconnected()) is not None:
            self.client.service.start(work)
        if self.client.forwarded:
            self.client.service.limits.count_forwarded(self.client.address, -1)

    def _token_expired(self) -> None:
        self.client.socket.close(CloseCode.POLICY_VIOLATION, TOKEN_EXPIRED)

    def _wait_for_turn(self) -> None:
        """Handle the next message at the client's turn, after the client has read most of what was sent."""
        room = self.client.socket.room
        if room.done():
            self._submit()
        else:
            room.add_done_callback(self._submit)

    def _submit(self, _: object = None) -> None:
        service = self.client.service
        service.queue.submit(service.limits.client(self.client.address), self._begin)

    def _begin(self) -> None:
        if not self._messages or self.client.socket.drops_messages:
            self._messages.clear()
            self._running = False
            return
        message = self._messages.pop(0)
        context = self._make_context()
        try:
            context.admit()
            work = self._handle(message, context)
        except errors.SignalError as error:
            self._refuse(error, context)
            work = None
        if work is None:
            self._end(len(message), context)
        else:
            self.client.service.start(self._complete(work, len(message), context))

    def _handle(self, message: bytes, context: RequestContext) -> Awaitable[None] | None:
        try:
            decoded = _parse(message)
        except ValueError as error:
            self.received_junk(error)
            return None
        return self.received(decoded, context)

    async def _open(self, work: Callable[[RequestContext], Awaitable[None]]) -> None:
        context = self._make_context()
        try:
            await work(context)
        except Exception as error:
            self._refuse(error, context)
        context.status = context.status or HTTPStatus.OK
        context.ended()
        self._continue()

    def _make_context(self) -> RequestContext:
        client = self.client
        self._last_id += 1
        context = RequestContext(client.service, client.address, METHOD, self.pattern)
        context.origin, context.request_id = client.origin, f"{client.request_id}-{self._last_id}"
        context.grant, context.traceparent = client.grant, client.traceparent
        return context

    async def _complete(self, work: Awaitable[None], size: int, context: RequestContext) -> None:
        try:
            await work
        except Exception as error:
            self._refuse(error, context)
        self._end(size, context)

    def _refuse(self, error: Exception, context: RequestContext) -> None:
        context.count_error(error)
        if isinstance(error, errors.TooMany):
            context.status = HTTPStatus.TOO_MANY_REQUESTS
            self.client.socket.close(CloseCode.POLICY_VIOLATION, f"too many {error.reason}")
        elif isinstance(error, errors.Unauthorized | errors.NotAllowed):
            context.status = STATUS[type(error)]
            self.client.socket.close(CloseCode.POLICY_VIOLATION, str(error).lower())
        else:
            context.status = HTTPStatus.SERVICE_UNAVAILABLE
            self.client.socket.close(CloseCode.TRY_AGAIN_LATER)

    def _end(self, size: int, context: RequestContext) -> None:
        context.status = context.status or HTTPStatus.OK
        context.ended()
        self.client.socket.message_done(size)
        self._continue()

    def _continue(self) -> None:
        if self._messages:
            self._wait_for_turn()
        else:
            self._running = False


def _parse(message: bytes) -> Any:
    """Parse JSON that can be encoded again.

    Raises:
        ValueError: the message is not JSON, or it is nested too deeply.
    """
    decoded = orjson.loads(message)
    if message.count(b"{") + message.count(b"[") > MAX_DEPTH:
        try:
            orjson.dumps(decoded)
        except TypeError as error:
            raise ValueError("nested too deeply") from error
    return decoded
