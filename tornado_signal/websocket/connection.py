"""One client's WebSocket: requests, responses and subscriptions."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from .. import errors
from ..service import wire
from ..service.client_connection import ClientConnection, MessageContext
from ..service.operations import SUBSCRIPTIONS, SUCCESS, Operation, Pieces, check, encode_published, publish
from ..service.parameters import CODE, SECRET, check_optional_string
from ..service.refusals import CLOSED_BY_OPERATOR, close_reason
from ..service.request_context import RequestContext
from ..service.request_log import RecordSpan
from ..service.statuses import OK, STATUS
from ..service.waiting import Feed
from ..transport.frames import CloseCode
from ..transport.websocket import WebSocket
from . import rpc
from .presence import Hold, Presence

PATTERN: Final = "/ws"
MAX_SUBSCRIPTIONS: Final = 100
MAX_SILENCE_S: Final = 3600.0  # a subscription reads the store again after this time without a change
CODE_LENGTH: Final = 36
TOPIC_EVENTS, SESSION_EVENTS = SUBSCRIPTIONS

Perform = Callable[["RpcRequestContext", dict[str, Any]], bytes | Awaitable[bytes | Pieces]]


class Method(NamedTuple):
    """A method."""

    pattern: str  # the name in logs and metrics, which is its path over HTTP
    # Checks the parameters and returns JSON, or the work whose result it is. The work of an operation does not refer to
    # the parameters, because it can wait for minutes.
    perform: Perform
    writes: bool = False  # whether it changes the session of the parameter `code`
    action: str = ""  # the action that a token must allow, or empty for what everybody may do


class Receipt:
    """A received message that is in progress, until it is done or one of its requests waits."""

    __slots__ = ("_size", "_socket")

    def __init__(self, socket: WebSocket, size: int) -> None:
        self._socket: WebSocket | None = socket
        self._size = size

    def done(self) -> None:
        """Let another message be read. Further calls do nothing."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.message_done(self._size)


class RpcRequestContext(MessageContext):
    """One request of a client. Its `id` is JSON, and empty for no response. `subscription` is 0 unless it is one.

    `written` is done at the end of a change, for the next one of the same `session`.
    """

    __slots__ = ("id", "on_sent", "receipt", "rpc_method", "session", "subscription", "written")

    connection: "RpcConnection"

    def __init__(
        self, connection: "RpcConnection", pattern: str, receipt: Receipt, rpc_method: str = "", id_: bytes = b""
    ) -> None:
        MessageContext.__init__(self, connection, pattern)
        self.rpc_method = rpc_method
        self.receipt = receipt
        self.id = id_
        self.session = ""
        self.written: asyncio.Future[None] | None = None
        self.subscription = 0
        self.on_sent: Callable[[], object] | None = None  # called after its response has been sent or queued

    def disconnect(self) -> bool:
        socket = self.connection.socket
        if socket.drops_messages:  # it is closed already
            return False
        socket.close(CloseCode.POLICY_VIOLATION, CLOSED_BY_OPERATOR)
        return True

    def wait_began(self) -> None:
        self.receipt.done()
        del self.receipt
        self.connection.waiting.append(self)
        watch = self._watch
        assert watch is not None
        if self.connection.closed:  # its end has closed only the earlier waits
            watch.close()
        elif watch.ending and not self.gone:
            # The server is stopping. After a response, the client would only wait again and get the next one at once.
            self.connection.socket.close()

    def ended(self) -> None:
        connection = self.connection
        if connection.waiting and self in connection.waiting:
            connection.waiting.remove(self)
        if connection.cancellable and connection.cancellable.get(self.id) is self:
            del connection.cancellable[self.id]
        if self.written is not None:
            self.written.set_result(None)
            if connection.writes.get(self.session) is self.written:
                del connection.writes[self.session]
            self.written = None
        MessageContext.ended(self)

    def _record_span(self, record: RecordSpan) -> None:
        if self.rpc_method or self.span:  # a subscription that has not begun is part of its request
            super()._record_span(record)


class RpcConnection(ClientConnection):
    """A client of `/ws`."""

    pattern = PATTERN

    __slots__ = (
        "_fragmented_sent",
        "_last_subscription",
        "_methods",
        "_presence",
        "_queued_bytes",
        "_queued_messages",
        "_subscriptions",
        "cancellable",
        "held",
        "lease",
        "overlapping",
        "reserved",
        "waiting",
        "writes",
    )

    def __init__(
        self, methods: Mapping[str, Method], presence: Presence, handshake: RequestContext, socket: WebSocket
    ) -> None:
        super().__init__(handshake, socket)
        self.waiting: list[RpcRequestContext] = []  # the waiting requests, including subscriptions
        self.cancellable: dict[bytes, RpcRequestContext] = {}  # the requests in progress that can wait, by their ids
        self.writes: dict[str, asyncio.Future[None]] = {}  # the last change of each session, while it is under way
        self.held: list[Hold] = []
        self.reserved = 0  # the number of reserved places for held offers
        self.lease = b""  # the lease of its offers in the store, once it has some
        self._methods = methods
        self._presence = presence
        self._last_subscription = 0
        self._subscriptions = 0  # that exist or are about to
        self._fragmented_sent: asyncio.Future[None] | None = None  # done when the current long message has been sent
        self._queued_messages: list[bytes] = []  # messages that are sent after it
        self._queued_bytes = 0

    def disconnected(self) -> None:
        for context in list(self.waiting):
            context.client_gone()
        self._presence.end(self)

    def reconnect(self) -> None:
        self.socket.close(CloseCode.SERVICE_RESTART, "held offers are gone")

    # Requests

    def process(self, message: bytes) -> Coroutine[None, None, None] | None:
        """Respond to a message. Its changes of sessions take their places before the next message is processed."""
        requests, batch = rpc.parse(message)
        self.overlapping = not batch
        if isinstance(requests[0], bytes) and self.refuse_other_protocol(rpc.decode(message)):
            return None
        receipt = Receipt(self.socket, len(message))
        if batch:
            return self._process_batch(requests, receipt, len(message))
        response = self._begin(requests[0], receipt, len(message))
        if not isinstance(response, RpcResponse):
            return self._respond(response, receipt)
        self._send_whole(response)
        return None

    async def _process_batch(self, requests: list[rpc.RpcRequest | bytes], receipt: Receipt, size: int) -> None:
        """Begin each request at its own turn. Other messages wait, so that little is parsed at a time."""
        responses: list[Awaitable[RpcResponse]] = []
        try:
            while requests and await self._wait_for_turn():
                responses.append(asyncio.create_task(self._store_response(self._begin(requests.pop(0), receipt, size))))
                size = 0  # the first request is charged for all bytes
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
        self.process_next()
        try:
            await self._send_all(await asyncio.gather(*responses), batch=True)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
        finally:
            receipt.done()

    async def _wait_for_turn(self) -> bool:
        """Wait for the client's next turn. Return whether the connection is still served."""
        await self.service.queue.turn(self.counts, next_=True)
        return not self.socket.drops_messages

    async def _store_response(self, response: "RpcResponse | Awaitable[RpcResponse]") -> "RpcResponse":
        """Store a response of a batch until the others are complete."""
        if not isinstance(response, RpcResponse):
            response = await response
        self.socket.add_kept(len(response.text))
        return response

    async def _respond(self, work: "Awaitable[RpcResponse]", receipt: Receipt) -> None:
        """Send the response to a message when it is complete."""
        try:
            response = await work
            if response.more is None:
                self._send_whole(response)
            else:
                await self._send_all([response], batch=False)
        except (Exception, asyncio.CancelledError) as error:
            self.fail(error)
        finally:
            receipt.done()

    def _begin(
        self, request: rpc.RpcRequest | bytes, receipt: Receipt, size: int
    ) -> "RpcResponse | Coroutine[None, None, RpcResponse]":
        """Perform a request that waits for nothing. Return its response, or the work that completes it.

        `size` is that of the bytes to charge for it.
        """
        if isinstance(request, bytes):
            self.charge_frame(size)
            return RpcResponse(request)
        id_, name, params = request
        method = self._methods.get(name)
        if method is None:
            self.charge_frame(size)
            return RpcResponse(rpc.own_error(rpc.METHOD_NOT_FOUND, id_) if id_ else b"")
        context = RpcRequestContext(self, method.pattern, receipt, name, id_)
        if id_ and "wait" in params:
            self.cancellable[id_] = context
        code, earlier = params.get("code"), None
        if type(code) is str and len(code) == CODE_LENGTH:
            context.session = code.lower()
            earlier = self.writes.get(context.session)
        try:
            perform = self._perform if earlier is None else partial(self._perform_after, earlier)
            work = perform(method, params, context, size)
            if isinstance(work, bytes):
                return self._done(context, work)
        except Exception as error:
            return self._failed(context, error)
        if method.writes and context.session:
            context.written = self.writes[context.session] = self.socket.state.loop.create_future()
        return self._complete(context, work)

    def _perform(
        self, method: Method, params: dict[str, Any], context: RpcRequestContext, size: int
    ) -> bytes | Awaitable[bytes | Pieces]:
        context.admit(size=size)
        context.grant = self.grant
        context.authorize(method.action)
        return method.perform(context, params)

    async def _perform_after(
        self,
        earlier: "asyncio.Future[None]",
        method: Method,
        params: dict[str, Any],
        context: RpcRequestContext,
        size: int,
    ) -> bytes | Pieces:
        """Perform a method after an earlier change of the same session."""
        await earlier
        work = self._perform(method, params, context, size)
        del params
        return work if isinstance(work, bytes) else await work

    async def _complete(self, context: RpcRequestContext, work: Awaitable[bytes | Pieces]) -> "RpcResponse":
        try:
            result = await work
            if isinstance(result, bytes):
                return self._done(context, result)
            first, last = await anext(result)
        except (Exception, asyncio.CancelledError) as error:
            return self._failed(context, error)
        if last or not context.id or context.gone:
            await result.aclose()
            return self._done(context, first)
        context.status = OK
        context.sent_bytes = len(first)
        return RpcResponse(rpc.begin_result(context.id) + first, result, context)

    def _done(self, context: RpcRequestContext, result: bytes) -> "RpcResponse":
        context.status = OK
        context.sent_bytes = len(result)
        context.ended()
        on_sent, context.on_sent = context.on_sent, None  # it can refer to the context, and a cycle would outlive both
        return RpcResponse(rpc.result(context.id, result) if context.id and not context.gone else b"", on_sent=on_sent)

    def _failed(self, context: RpcRequestContext, error: BaseException) -> "RpcResponse":
        if isinstance(error, errors.TooMany) and error.persists:
            self.socket.close(CloseCode.POLICY_VIOLATION, close_reason(error))
        context.count_error(error)
        context.status, text = failure(context.id, error)
        context.ended()
        return RpcResponse(text if context.id and not context.gone else b"")

    # Sending

    def _send_whole(self, response: "RpcResponse") -> None:
        """Send a response without `more`. Its text is empty for a notification and a cancelled request."""
        if response.text:
            self._send(response.text)
        if response.on_sent is not None:
            response.on_sent()

    async def _send_all(self, responses: list["RpcResponse"], *, batch: bool) -> None:
        """Send responses in one message, as fast as the client reads it if it is long."""
        visible = [response for response in responses if response.text]
        long = any(response.more is not None for response in visible)
        if long and not batch:
            self.socket.add_kept(len(visible[0].text))
        try:
            if long:
                await self._send_fragmented(visible, b"[" if batch else b"", b"]" if batch else b"")
            elif visible:
                text = b",".join(response.text for response in visible)
                self._send(b"[%b]" % text if batch else text)
        finally:  # also for responses that were not reached
            for response in responses:
                if response.more is not None and response.context is not None:
                    await response.more.aclose()
                    response.context.ended()
                if response.on_sent is not None:
                    response.on_sent()
            if long or batch:
                self.socket.add_kept(-sum(len(response.text) for response in responses))

    async def _send_fragmented(self, responses: list["RpcResponse"], between: bytes, end: bytes) -> None:
        while self._fragmented_sent is not None:
            await asyncio.wait([self._fragmented_sent])
        self._fragmented_sent = self.socket.state.loop.create_future()
        self.socket.send_part(b"", first=True)
        try:
            for response in responses:
                await self.socket.send_part(between + response.text)
                between = b","
                if response.more is not None and response.context is not None:
                    await self._send_more(response.more, response.context)
        except (Exception, asyncio.CancelledError):
            self.socket.close(CloseCode.INTERNAL_ERROR)  # the message is incomplete
        finally:
            self.socket.send_part(end, last=True)
            self._send_queued()

    async def _send_more(self, more: Pieces, context: RpcRequestContext) -> None:
        try:
            while (sent := await self._send_next(more, context)) is not None:
                await sent
                if self.closed:
                    break
                await context.turn()
            await self.socket.send_part(b"}")
        except (Exception, asyncio.CancelledError) as error:
            context.count_error(error)
            raise

    async def _send_next(self, pieces: Pieces, context: RpcRequestContext) -> "asyncio.Future[None] | None":
        """Send the next piece of a result. Return a future for more to send, or None after the last piece."""
        following = await anext(pieces, None)
        if following is None:
            return None
        piece, _ = following
        context.sent_bytes += len(piece)
        return self.socket.send_part(piece)

    def _send(self, *messages: bytes) -> "asyncio.Future[None]":
        """Send messages after the current long one. The result is done when more can be sent."""
        if self._fragmented_sent is None:
            return self.socket.send(*messages)
        size = sum(map(len, messages))
        self._queued_messages += messages
        self._queued_bytes += size
        self.socket.add_kept(size)
        return self._fragmented_sent

    def _send_queued(self) -> None:
        """Send the messages that have waited for the end of a long one."""
        sent, self._fragmented_sent = self._fragmented_sent, None
        queued, self._queued_messages = self._queued_messages, []
        self.socket.add_kept(-self._queued_bytes)
        self._queued_bytes = 0
        if queued:
            self.socket.send(*queued)
        if sent is not None:
            sent.set_result(None)

    # Authorization

    def authorize(self, context: RpcRequestContext, params: dict[str, Any]) -> bytes:
        """Verify a token and replace the earlier one. Without keys, no token is needed, and any is accepted.

        Subscriptions and held offers were allowed by the earlier rights. If the new token has fewer, the connection is
        closed, and the client comes back with the new one. Until then the expiry of the earlier token applies, because
        other requests of a batch delay the response.
        """
        token = params.get("token")
        if type(token) is not str or not token:
            raise errors.InvalidParameter("token")
        authority = self.service.authority
        if authority is None or self._bearer is None:
            return wire.encode({"expiresAt": None})
        earlier = authority.rights(self._bearer.grant)
        context.authorize(token=token)
        grant = self.grant = context.grant
        assert grant is not None
        if not (self.waiting or self.held or self.reserved) or grant.includes(earlier):
            self._bearer.renew(grant)
        else:
            context.on_sent = lambda: self.socket.close(CloseCode.POLICY_VIOLATION, "token with fewer rights")
        return wire.encode({"expiresAt": round(grant.ends_s * 1000)})

    # Presence

    async def offer(self, context: RpcRequestContext, params: dict[str, Any], offer: Operation) -> bytes:
        """Publish an offer, which is held if that is asked for."""
        values = check(offer.parameters, params, context)
        if not values.pop("hold"):
            return encode_published((await publish(context, **values))[0])
        await self._presence.reserve(self)
        try:
            code, expires_ms = await publish(context, **values, lease=self.lease)
        except BaseException:
            self._presence.cancel(self)
            raise
        self._presence.begin(self, (self.origin, code), values["topic"], values["secret"], expires_ms)
        return encode_published(code)

    async def hold(self, context: RpcRequestContext, params: dict[str, Any]) -> bytes:
        """Hold an offer that another connection has held."""
        values = check((CODE, SECRET), params, context)
        key = (self.origin, wire.parse_code(values["code"]))
        if (checking := context.require_session(key[1])) is not None:
            await checking
        await self._presence.reserve(self)
        try:
            expires_ms = await self._presence.take_over(self, key, values["secret"])
        except BaseException:
            self._presence.cancel(self)
            raise
        return wire.encode({"expiresAt": expires_ms})

    async def end_hold(self, code: str, work: bytes | Awaitable[bytes | Pieces]) -> bytes | Pieces:
        """Do work after which a session is not held any more."""
        result = work if isinstance(work, bytes) else await work
        self._presence.forget((self.origin, wire.parse_code(code)))
        return result

    def cancel(self, context: RpcRequestContext, params: dict[str, Any]) -> bytes:
        """End a request that waits. It gets no response."""
        id_ = rpc.encode_id(params.get("id"))
        if id_ is None:
            raise errors.InvalidParameter("id")
        if (waiting := self.cancellable.get(id_)) is not None:
            waiting.client_gone()
        return SUCCESS

    # Subscriptions

    async def subscribe(self, context: RpcRequestContext, params: dict[str, Any]) -> bytes:
        """Subscribe to a topic or a session. The events follow the response."""
        declared = SESSION_EVENTS if params.get("code") is not None else TOPIC_EVENTS
        context.authorize(declared.action)
        values = check(declared.parameters, params, context)
        cursor = check_optional_string(params.get("since"), "since")
        if self._subscriptions >= MAX_SUBSCRIPTIONS:
            raise errors.TooMany("subscriptions of a connection")
        self._subscriptions += 1
        with ExitStack() as opened:
            opened.callback(self._uncount_subscription)
            subscription_context = opened.enter_context(RpcRequestContext(self, declared.pattern, context.receipt))
            subscription_context.grant = context.grant
            feed = declared.feed(subscription_context, **values, cursor=cursor, parameter="since", encode=encode)
            subscription_context.waiting(feed.watch, feed.topic)
            await feed.start()
            opened.pop_all()  # from now on `_run_subscription` ends it
        self._last_subscription += 1
        subscription_context.subscription = self._last_subscription

        def run() -> None:
            subscription_context.span = context.span  # known since the response was recorded
            self.service.start(self._run_subscription(subscription_context, feed))

        context.on_sent = run
        return wire.encode({"subscription": subscription_context.subscription})

    def unsubscribe(self, context: RpcRequestContext, params: dict[str, Any]) -> bytes:
        number = params.get("subscription")
        if type(number) is int and number > 0:
            for waiting in self.waiting:
                if waiting.subscription == number:
                    waiting.subscription = 0
                    self._uncount_subscription()
                    waiting.client_gone()
                    return SUCCESS
        raise errors.InvalidParameter("subscription")

    async def _run_subscription(self, context: RpcRequestContext, feed: Feed) -> None:
        context.status = OK
        with context:
            try:
                while not feed.watch.closed and (sent := await self._send_events(feed, context)) is not None:
                    await sent
            except (Exception, asyncio.CancelledError) as error:
                context.count_error(error)
                context.status = STATUS.get(type(error), 500)
                self.socket.close(CloseCode.TRY_AGAIN_LATER)  # the client comes back with the last cursor
        if context.subscription:  # otherwise `unsubscribe` has counted it
            self._uncount_subscription()

    async def _send_events(self, feed: Feed, context: RpcRequestContext) -> "asyncio.Future[None] | None":
        """Send the next events of a subscription. Return a future for more to send, or None at its end."""
        events = await feed.next(feed.watch.now_s() + MAX_SILENCE_S)
        if events is None:
            return None
        context.sent_bytes += len(events)
        end = b"%d}}" % context.subscription
        return self._send(*[event + end for event in events.split(b"\n")[:-1]])

    def _uncount_subscription(self) -> None:
        self._subscriptions -= 1


@dataclass(slots=True, eq=False)
class RpcResponse:
    """The response to a request."""

    text: bytes  # the response or its beginning, or empty for none
    more: Pieces | None = None  # the rest of the result, before the final `}`
    context: RpcRequestContext | None = None  # the context of that request
    on_sent: Callable[[], object] | None = None


def failure(id_: bytes, error: BaseException) -> tuple[int, bytes]:
    status = STATUS.get(type(error), 500)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return status, rpc.error(id_, status, "Internal server error")
    data = {"retryAfter": error.retry_after_s} if isinstance(error, errors.TransientError) else None
    return status, rpc.error(id_, status, str(error), data)


def encode(name: str, data: bytes, cursor: str) -> bytes:
    """Return an event up to the number of its subscription."""
    return rpc.begin_event(name, data, cursor) + b"\n"


def make_methods(operations: Sequence[Operation]) -> dict[str, Method]:

    def method(operation: Operation) -> Method:
        def perform(context: RpcRequestContext, params: dict[str, Any]) -> bytes | Awaitable[bytes | Pieces]:
            if operation.holdable:
                return context.connection.offer(context, params, operation)
            work = operation.perform(context, check(operation.parameters, params, context))
            return context.connection.end_hold(params["code"], work) if operation.ends_hold else work

        return Method(operation.pattern, perform, operation.writes, operation.action)

    def own(name: str, action: str = "", *, writes: bool = False) -> Method:
        return Method(name, lambda context, params: getattr(context.connection, name)(context, params), writes, action)

    methods = {operation.name: method(operation) for operation in operations}
    methods |= {name: own(name) for name in ("authorize", "cancel", "subscribe", "unsubscribe")}
    methods["hold"] = own("hold", "offer", writes=True)
    return methods
