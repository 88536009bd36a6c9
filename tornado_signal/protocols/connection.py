"""The connection of a client of another library: its messages in order, its limits, and what it subscribed to."""

import asyncio
import hashlib
import json
import math
import os
from asyncio import CancelledError, Future
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from http import HTTPStatus
from typing import Any, ClassVar, Final, TypeVar

import orjson

from .. import errors
from ..http.request import Request
from ..relay import RECEIVERS_PER_UNIT, SENT_BYTES_PER_UNIT, Channel, units_of_receivers
from ..relay.opening import Relay
from ..service.client_connection import ClientConnection, MessageContext
from ..service.refusals import close_reason
from ..service.request_context import RequestContext
from ..service.statuses import OK, STATUS
from ..transport.frames import CloseCode
from ..transport.websocket import WebSocket
from .endpoint import find_scope

T = TypeVar("T")

AVAILABLE_S: Final = 20.0  # a client waits this long for its id or room while Redis does not respond
RETRY_S: Final = 0.3
MAX_CHANNELS: Final = 1000  # channels and groups of a connection
MAX_MEMBERS: Final = 1000  # of a group
MAX_MEMBERS_PER_ADDRESS: Final = MAX_MEMBERS // 10
MAX_NAME: Final = 256  # code points of an id or the name of a room
MAX_DEPTH: Final = 254  # levels of JSON that orjson encodes; it parses more
MAX_INTEGER_LENGTH: Final = 20  # of 64-bit integers; larger ones become doubles, as by orjson


class Rejected(Exception):
    """The connection is closed with `ProtocolConnection.rejection_code`. The text is the reason."""


class ProtocolConnection(ClientConnection):
    """A client of another library. A subclass handles the messages of one protocol."""

    protocol: ClassVar[str]
    rejection_code: ClassVar[int] = CloseCode.POLICY_VIOLATION

    __slots__ = ("_acquired", "_channels", "_context", "owner", "relay", "scope")

    def __init__(self, relay: Relay, handshake: Request, socket: WebSocket, *scope_parts: str) -> None:
        super().__init__(handshake, socket)
        self.relay = relay
        self.scope = self.find_scope(*scope_parts)
        self.owner = os.urandom(8).hex()  # of its leases
        self._acquired = 0
        self._context: MessageContext | None = None  # of an earlier message, which the next one uses
        self._channels: set[Channel] = set()

    # For the protocol

    def received(self, message: Any, context: RequestContext) -> Awaitable[object] | None:
        """Handle a message, which is None if it is not JSON. A SignalError or Rejected closes the connection.

        The next one is handled when the awaitable, if any, completes, or at once if they overlap. `context` is used for
        further charges.
        """
        raise NotImplementedError

    def leave(self) -> Coroutine[None, None, None] | None:
        """Return the work that releases the groups after the end of the connection, if there is any."""
        return None

    def find_scope(self, *parts: str) -> str:
        return find_scope(self.service, self.protocol, self.origin, *parts)

    def send(self, message: Any) -> None:
        self.socket.send(encode(message))

    def relayed(self, message: bytes) -> None:
        self.socket.send(message)

    def acquire(self, count: int = 1) -> None:
        """Count channels or memberships of groups, until `release`."""
        for _ in range(count):
            if self._acquired >= MAX_CHANNELS:
                raise errors.TooMany("channels of a connection")
            self.service.limits.acquire_hold(self.counts)
            self._acquired += 1

    def release(self, count: int = 1) -> None:
        self._acquired -= count
        self.counts.held -= count

    def acquire_peer(self, group: Channel) -> None:
        """Count a membership of a group, until `release_peer`. An address has at most a tenth of a group."""
        self.acquire()
        try:
            self.service.limits.acquire_peer(self.counts, group, MAX_MEMBERS_PER_ADDRESS)
        except errors.TooMany:
            self.release()
            raise

    def release_peer(self, group: Channel) -> None:
        self.release()
        self.service.limits.release_peer(self.counts, group)

    def authorize_signal(self, context: RequestContext) -> None:
        """Check that the token covers offers and answers, because a signal is opaque."""
        context.authorize("offer")
        context.authorize("answer")

    def subscribe(self, channel: Channel) -> Awaitable[None] | None:
        """Subscribe to a channel, within the limits of the connection and its address. See `Relay.subscribe`."""
        if self.closed:
            return None
        if channel not in self._channels:
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
        """Publish a message, and charge the client for its receivers. See `Relay.publish`."""
        receivers = self.relay.receivers(channel)
        if receivers >= RECEIVERS_PER_UNIT or receivers * len(message) >= SENT_BYTES_PER_UNIT:
            context.charge(units_of_receivers(receivers, len(message)))
        return self.relay.publish(channel, message, self.client_address if self.counts.limited else "")

    async def until_available(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of an attempt, which is repeated while Redis does not respond, for 20 s at most."""
        until_s = 0.0  # read when it is needed
        while True:
            try:
                return await attempt()
            except errors.Unavailable:
                now_s = asyncio.get_running_loop().time()
                until_s = until_s or now_s + AVAILABLE_S
                if self.closed or now_s > until_s:
                    raise
                await asyncio.sleep(RETRY_S)

    # From the base

    def process(self, message: bytes) -> Coroutine[None, None, None] | None:
        context = self._context
        if context is None:
            context = self._context = MessageContext(self, self.pattern)
            self.service.running -= 1  # not seen to run, unless its work continues
        else:
            context.reuse()
        try:
            context.admit(size=len(message))
            work = self.received(parse(message), context)
        except Exception as error:
            work = None
            self._close_with_error(error, context)
        if work is not None:
            self._context = None
            self.service.running += 1
            return self._complete_message(work, context, len(message))
        context.status = context.status or OK
        context.count()
        return None

    async def _complete_message(self, work: Awaitable[object], context: RequestContext, size: int) -> None:
        """Do a message's work, and free its place in the limits. Unless messages overlap, process the next one."""
        try:
            await self.complete(work, context)
        finally:
            self.socket.message_done(size)
            if not self.overlapping:
                self.process_next()

    def complete_opening(self, start: Callable[[RequestContext], Awaitable[object]]) -> Awaitable[None]:
        """Do what a connection begins with, like the work of a message."""
        context = MessageContext(self, self.pattern)
        return self.complete(start(context), context)

    async def complete(self, work: Awaitable[object], context: RequestContext) -> None:
        """Do the work of a message, and close the connection if that fails."""
        try:
            await work
        except (Exception, CancelledError) as error:
            self._close_with_error(error, context)
        finally:
            context.status = context.status or OK
            context.ended()

    def disconnected(self) -> None:
        self._context = None  # it refers back
        for channel in list(self._channels):
            self.unsubscribe(channel)
        if (work := self.leave()) is not None:
            self.do(work)

    def _close_with_error(self, error: BaseException, context: RequestContext) -> None:
        if isinstance(error, Rejected):
            self.socket.close(self.rejection_code, str(error))
            return
        context.count_error(error)
        context.status = STATUS.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)
        if isinstance(error, errors.TooMany):
            self.socket.close(CloseCode.POLICY_VIOLATION, close_reason(error))
        elif isinstance(error, errors.Unauthorized | errors.NotAllowed):
            self.socket.close(CloseCode.POLICY_VIOLATION, str(error).lower())
        else:
            self.socket.close(CloseCode.TRY_AGAIN_LATER)


def encode(message: Any) -> bytes:
    """Return a message as JSON. Lone surrogates, which orjson refuses, are escaped."""
    try:
        return orjson.dumps(message)
    except TypeError:
        return json.dumps(message, separators=(",", ":")).encode()


async def confirm(pending: Sequence[Awaitable[None]]) -> bool:
    """Wait for subscriptions. Return False if Redis does not respond in time: they become effective later."""
    try:
        await asyncio.gather(*pending)
    except errors.Unavailable:
        return False
    return True


def hash_owner(kind: str, value: str) -> str:
    """Return a hash of what identifies the owner of a lease."""
    text = value.encode(errors="backslashreplace")
    return hashlib.blake2b(text, digest_size=16, person=kind.encode()).hexdigest()


def is_name(value: object) -> bool:
    """Return whether a value can name a room, topic or id. Redis and logs know no lone surrogates."""
    return type(value) is str and 0 < len(value) <= MAX_NAME and is_utf8(value)


def is_utf8(name: str) -> bool:
    return name.isascii() or name.encode(errors="ignore").decode() == name


def parse(message: bytes) -> Any:
    """Parse JSON that can be encoded again. Return None if it is not JSON, or nested too deeply."""
    dump: Callable[[Any], object] = orjson.dumps
    try:
        try:
            decoded = orjson.loads(message)
        except ValueError:  # also because of a lone surrogate or a number that no double can hold
            dump = json.dumps
            decoded = json.loads(
                message.decode(), parse_float=_number, parse_int=_number, parse_constant=_reject_constant
            )
        # `replace` searches for the brackets several times as fast as `count`.
        if (
            len(message) > 2 * MAX_DEPTH
            and 2 * len(message) - len(message.replace(b"{", b"")) - len(message.replace(b"[", b"")) > MAX_DEPTH
        ):
            dump(decoded)
    except (TypeError, ValueError, RecursionError):
        return None
    return decoded


def _number(text: str) -> float | int | None:
    """Return a number, or None if it is infinite as a double. JavaScript also sends null in its place."""
    if len(text) <= MAX_INTEGER_LENGTH and text.lstrip("-").isdigit():
        return int(text)
    value = float(text)
    return value if math.isfinite(value) else None


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
