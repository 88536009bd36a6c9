"""JSON-RPC 2.0 over a WebSocket: calls, subscriptions and held offers (docs/websocket-api.md)."""

import asyncio
import contextlib
import json
import logging
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Final, NamedTuple, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.frames import CloseCode
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol

from .authorization import Authorization
from .errors import (
    HUNG_UP,
    MAX_RESPONSE_BYTES,
    RESPONSE_S,
    SIGN_OF_LIFE_S,
    SLOW,
    Foreign,
    SignalError,
    Unreachable,
    is_transient,
    refused,
)
from .http import is_local
from .parsing import ERROR, NOTIFICATION, conforms, is_result, parse_json
from .tasks import Tasks
from .types import Fields, StreamEvent

OPEN_S: Final = 4.0
CLOSE_S: Final = 2.0
REFUSED_S: Final = 300.0  # the pause after a refused WebSocket
MIN_RENEWAL_S: Final = 1.0  # between two renewals of a token
MAX_RENEWAL_S: Final = 3600.0
OPENING: Final = "opening"  # the key of the task that opens the connection
SUBPROTOCOL: Final = Subprotocol("signal.v1")
QUIET_S: Final = 10.0  # after this time without a byte the server is asked for a sign of life
IDLE_S: Final = 30.0  # an unused connection is closed after this time
MAX_BYTES: Final = 64 * 1024  # size of a request for which no server closes the connection
MAX_SUBSCRIPTIONS: Final = 100  # for each connection
MAX_HELD: Final = 1000  # held offers for each connection
MAX_UNREAD: Final = 10_000  # queued events of a subscription
MAX_UNREAD_BYTES: Final = 16 * 2**20  # size of the queued events of a connection


logging.getLogger("websockets").setLevel(logging.WARNING)  # lower levels log the messages, which can contain secrets


class Socket(ClientConnection):
    """A WebSocket that knows when it has last received something."""

    heard_s = 0.0

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        super().data_received(data)


class RequestTooLong(Unreachable):
    """A request too long for the WebSocket: a server may close the connection, but over HTTP it reports an error."""


_Queue = asyncio.Queue[tuple[StreamEvent, int] | None]
"""The events of a subscription with their sizes, and None at its end."""


class _PendingRequest(NamedTuple):
    """A sent request without a response."""

    # The future response. It becomes None when the connection is closed. It is cancelled when the caller stops waiting.
    response: asyncio.Future[dict[str, Any] | None]
    size: int  # the size of the request in bytes
    method: str
    params: Fields
    queue: _Queue | None  # receives the events of a subscription

    def accepts(self, response: Fields) -> bool:
        if "error" in response:
            return conforms(response["error"], ERROR)
        return is_result(self.method, self.params, response.get("result"))


class RpcConnection:
    """A JSON-RPC connection."""

    def __init__(self, server: str, socket: Socket) -> None:
        self.closed = asyncio.Event()  # set when the connection is closed
        self.lost_before_response = False  # whether it was lost before any response (an intermediary may block frames)
        self._received_any = False
        self._server = server
        self._socket = socket
        self._last_id = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._subscriptions: dict[int, _Queue] = {}
        self._unread_bytes = 0
        self._is_foreign = False  # whether it was closed because of a message that no server of this API sends
        self._subscription_count = 0  # including pending `subscribe` requests
        self._held_count = 0
        self._rejected_bytes: int | None = None  # size of the request for which the server closed the connection
        self._notifications = Tasks()
        self._suspected = asyncio.Event()  # set to ask for a sign of life
        self._reader = asyncio.create_task(self._read())
        self._watcher = asyncio.create_task(self._watch())

    @property
    def open(self) -> bool:
        return not self.closed.is_set() and self._socket.state is State.OPEN

    @property
    def can_subscribe(self) -> bool:
        return self._subscription_count < MAX_SUBSCRIPTIONS

    @property
    def can_hold(self) -> bool:
        return self._held_count < MAX_HELD

    @contextlib.contextmanager
    def count_held(self) -> Iterator[None]:
        """Count one more held offer while the context is active."""
        self._held_count += 1
        try:
            yield
        finally:
            self._held_count -= 1

    def check(self) -> None:
        """Ask the server for a sign of life. Without one the connection is closed."""
        self._suspected.set()

    async def close(self) -> None:
        """Close the connection after pending notifications."""
        self._reader.cancel()
        self._watcher.cancel()
        await asyncio.gather(self._reader, self._watcher, *self._notifications, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def subscribe(self, fields: Fields) -> AsyncIterator[AsyncGenerator[StreamEvent, None]]:
        """Subscribe to a topic or session and return its events.

        Raises:
            SignalError: the subscription is refused. Reading the events raises it once the connection is closed or
                too many events are unread.
        """
        queue: _Queue = asyncio.Queue()
        self._subscription_count += 1
        try:
            subscribed = await self.call("subscribe", fields, queue)
            try:
                yield self._events(queue)
            finally:
                if self._subscriptions.get(subscribed["subscription"]) is queue:
                    self._unsubscribe(subscribed)
                while not queue.empty():
                    self._unread_bytes -= (queue.get_nowait() or (None, 0))[1]
        finally:
            self._subscription_count -= 1

    async def call(self, method: str, params: Fields, queue: _Queue | None = None) -> Fields:
        """Call a method and return its result. If it is a subscription, `queue` receives the events.

        Raises:
            RequestTooLong: the request has to be sent over HTTP.
            SignalError: there is no response (`Unreachable`), or it is an error or from another API (`Foreign`).
        """
        if self.closed.is_set():
            raise Unreachable(self._server, HUNG_UP, sent=False)
        id_ = self._last_id + 1
        text = _request(method, params, id=id_)
        if len(text) > MAX_BYTES:
            raise RequestTooLong(self._server, f"{method} has {len(text)} bytes, more than {MAX_BYTES}", sent=False)
        self._last_id = id_
        response_future: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        call = self._pending[id_] = _PendingRequest(response_future, len(text), method, params, queue)
        try:
            async with asyncio.timeout(RESPONSE_S + params.get("wait", 0)):
                try:
                    await self._socket.send(text, text=True)
                    response = await call.response
                except asyncio.CancelledError:
                    if call.response.done() and not call.response.cancelled():  # it has just arrived
                        self._undo(call, call.response.result())
                    elif params.get("wait"):  # the server ends the wait
                        self._pending.pop(id_, None)
                        self._notify("cancel", {"id": id_})
                    call.response.cancel()  # if the response arrives later, `_process` undoes the call
                    raise
        except ConnectionClosed:
            raise Unreachable(self._server, HUNG_UP) from None
        except TimeoutError:
            self._break()
            raise Unreachable(self._server, SLOW) from None
        if response is None:
            if self._is_foreign:
                raise Foreign
            if call.size == self._rejected_bytes:
                raise RequestTooLong(self._server, f"{method} has {call.size} bytes, more than it takes", sent=False)
            raise Unreachable(self._server, HUNG_UP)
        if not call.accepts(response):
            raise Foreign
        if "error" in response:
            raise _error_of(response["error"])
        return cast(Fields, response["result"])

    async def _events(self, queue: _Queue) -> AsyncGenerator[StreamEvent, None]:
        """Yield the queued events. Then raise SignalError: the connection is closed, or too many events are unread."""
        while (received := await queue.get()) is not None:
            event, size = received
            self._unread_bytes -= size
            yield event
        if self._is_foreign:
            raise Foreign
        raise Unreachable(self._server, HUNG_UP)

    def _unsubscribe(self, subscribed: Fields) -> None:
        self._subscriptions.pop(subscribed["subscription"], None)
        self._notify("unsubscribe", subscribed)

    def _notify(self, method: str, params: Fields) -> None:
        if self.open:
            self._send_in_background(self._socket.send(_request(method, params), text=True))

    def _send_in_background(self, sending: Coroutine[None, None, object]) -> None:
        async def send() -> None:
            with contextlib.suppress(ConnectionClosed):
                await sending

        self._notifications.start(send())

    def _break(self) -> None:
        """Fail all requests at once. The other side may not respond to the closing handshake."""
        self._on_closed()
        self._reader.cancel()

    async def _watch(self) -> None:
        """Break the connection if nothing arrives although the server is asked for a sign of life."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, self._socket.heard_s + QUIET_S - time.monotonic())):
                    await self._suspected.wait()
            asked_s = time.monotonic()
            if self._suspected.is_set() or asked_s >= self._socket.heard_s + QUIET_S:
                self._suspected.clear()
                self._send_in_background(self._socket.ping())
                await asyncio.sleep(SIGN_OF_LIFE_S)
                if self._socket.heard_s < asked_s:
                    return self._break()

    async def _read(self) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(IDLE_S):
                        message = await self._socket.recv()
                except TimeoutError:
                    if not (self._pending or self._subscription_count or self._held_count):
                        break
                else:
                    self._process(parse_json(message), len(message))
        except ConnectionClosed:
            pass
        except (ValueError, LookupError, TypeError):  # invalid JSON-RPC
            self._is_foreign = True
        finally:
            self._watcher.cancel()
            self._on_closed()
            await self._socket.close()

    def _process(self, message: Any, size: int) -> None:
        if not isinstance(message, dict):
            raise TypeError
        self._received_any = True
        if "method" in message:
            params = message["params"]
            if not conforms(params, NOTIFICATION):
                raise TypeError
            queue = self._subscriptions.get(params["subscription"])
            if queue is None:
                return
            if queue.qsize() < MAX_UNREAD and self._unread_bytes + size <= MAX_UNREAD_BYTES:
                self._unread_bytes += size
                event = StreamEvent(params.get("type") or "", params.get("data"), params["cursor"])
                queue.put_nowait((event, size))
            else:  # the reader subscribes again after the last event that it has read
                self._unsubscribe({"subscription": params["subscription"]})
                queue.put_nowait(None)
            return
        call = self._pending.get(message["id"])
        if call is None and 0 < message["id"] <= self._last_id:  # it was sent before its cancellation arrived
            return
        if call is None:
            raise LookupError
        if call.response.cancelled():
            del self._pending[message["id"]]
            self._undo(call, message)
            return
        if call.queue is not None and call.accepts(message) and "result" in message:
            number = message["result"]["subscription"]
            if not isinstance(number, int) or isinstance(number, bool) or number in self._subscriptions:
                raise TypeError  # its events would never arrive
            self._subscriptions[number] = call.queue
        del self._pending[message["id"]]
        if not call.response.done():
            call.response.set_result(message)

    def _undo(self, call: _PendingRequest, response: Fields | None) -> None:
        """End a subscription or held offer that nobody waits for. It would exist as long as the connection."""
        if response is None or "result" not in response or not call.accepts(response):
            return
        if call.method == "subscribe":
            self._unsubscribe(response["result"])
        elif call.params.get("hold"):
            secret = {name: call.params[name] for name in ("secret",) if name in call.params}
            self._notify("withdraw", {"code": response["result"]["code"], "side": "offerer", **secret})

    def _on_closed(self) -> None:
        """Give None to all that wait. Note what makes the caller use HTTP instead."""
        self.closed.set()
        code = self._socket.close_code
        if self._pending and not self._received_any and code in (None, CloseCode.ABNORMAL_CLOSURE):
            self.lost_before_response = True
        if code == CloseCode.MESSAGE_TOO_BIG:
            self._rejected_bytes = max((call.size for call in self._pending.values()), default=None)
        for call in self._pending.values():
            if not call.response.done():
                call.response.set_result(None)
        self._pending.clear()
        for queue in self._subscriptions.values():
            queue.put_nowait(None)
        self._subscriptions.clear()


def _request(method: str, params: Fields, **id_: int) -> bytes:
    """Return an encoded request. Without an id it is a notification."""
    fields = {"jsonrpc": "2.0", **id_, "method": method, "params": params}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _error_of(error: dict[str, Any]) -> SignalError:
    status = error["code"]
    if not 400 <= status < 600:  # an error of JSON-RPC itself is negative
        return Foreign()
    return refused(int(status), error["message"], (error.get("data") or {}).get("retryAfter"))


class _Connect(connect):
    """An opening WebSocket that does not follow redirects: another host would receive the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocket:
    """The WebSocket of one server, with at most one connection at a time. Without one, HTTP is used."""

    def __init__(
        self, server: str, origin: str, tls: Callable[[], ssl.SSLContext], authorization: Authorization
    ) -> None:
        self._server = server
        self._authorization = authorization
        self._tasks = Tasks()
        self._origin = Origin(origin)
        self._tls = tls
        self._connection: RpcConnection | None = None
        self._retry_at_s = 0.0  # the monotonic time of the next allowed attempt

    async def connection(self, *, open_if_closed: bool) -> RpcConnection | None:
        for _ in range(2):
            await asyncio.sleep(0)  # process received frames first: one may close the connection
        # An intermediary that lets the handshake through may block every frame.
        if self._connection is not None and self._connection.lost_before_response:
            self._connection = None
            self._retry_at_s = time.monotonic() + REFUSED_S
        if open_if_closed and not self._open and time.monotonic() >= self._retry_at_s:
            if OPENING not in self._tasks:
                self._tasks.start(self._connect(), OPENING)
            await asyncio.wait([self._tasks[OPENING]])  # opening continues if this call is cancelled
        return self._connection if self._open else None

    def retry(self) -> None:
        """End the pause after a refusal: the server is also unreachable over HTTP."""
        self._retry_at_s = 0.0

    def check(self) -> None:
        if self._connection is not None:
            self._connection.check()

    async def close(self) -> None:
        await self._tasks.cancel()
        if self._connection is not None:
            await self._connection.close()

    @property
    def _open(self) -> bool:
        return self._connection is not None and self._connection.open

    async def _authorize(self, connection: RpcConnection) -> bool:
        """Present the token. If that fails, close the connection: over HTTP the error reaches the caller."""
        try:
            if token := await self._authorization.token():
                try:
                    await connection.call("authorize", {"token": token})
                except SignalError as error:
                    if error.status != 401 or not (newer := await self._authorization.replace(token)):
                        raise
                    await connection.call("authorize", {"token": newer})
        except BaseException as error:  # a refusal, an error of the function for tokens, or a cancellation
            await connection.close()
            if not isinstance(error, Exception):
                raise
            return False
        return True

    async def _renew(self, connection: RpcConnection) -> None:
        """Present a new token whenever the earlier one expires soon."""
        while connection.open:
            pause_s = min(max(self._authorization.pause_s(), MIN_RENEWAL_S), MAX_RENEWAL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.closed.wait(), pause_s)
                return
            if self._authorization.pause_s() == 0 and not await self._authorize(connection):
                return

    async def _connect(self) -> None:
        """Try to open the connection. Pause if something refuses WebSockets, but not if the server is merely down."""
        try:
            socket = await _Connect(
                f"ws{self._server.removeprefix('http')}/ws",
                origin=self._origin,
                subprotocols=[SUBPROTOCOL],
                create_connection=Socket,
                compression=None,
                ping_interval=None,  # `RpcConnection` notices silence
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                max_size=MAX_RESPONSE_BYTES,
                max_queue=4,
                proxy=None if is_local(self._server) else True,
                ssl=self._tls() if self._server.startswith("https:") else None,
            )
            if socket.subprotocol == SUBPROTOCOL:
                connection = RpcConnection(self._server, cast(Socket, socket))
                if await self._authorize(connection):
                    self._connection = connection
                    self._tasks.start(self._renew(connection))
                return
            await socket.close()
        except InvalidStatus as error:
            if is_transient(error.response.status_code):
                return
        except OSError as error:
            if not isinstance(error, TimeoutError):
                return  # the HTTP request reports the error
        except (WebSocketException, ImportError, ValueError):  # ImportError: a SOCKS proxy needs another package
            pass
        self._retry_at_s = time.monotonic() + REFUSED_S
