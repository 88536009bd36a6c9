"""Calls, subscriptions and held offers over one WebSocket: JSON-RPC 2.0 (contract C9 and C10)."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, Final, NamedTuple, cast

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

from .errors import ANSWER_S, FOREIGN, HUNG_UP, SLOW, APIError, Unreachable, unreachable
from .types import Fields, StreamEvent

IDLE_S: Final = 30.0  # after which a connection that nothing uses is closed
MAX_BYTES: Final = 64 * 1024  # of a request, for which servers do not hang up
MAX_SUBSCRIPTIONS: Final = 100  # of a connection
MAX_HELD: Final = 1000  # likewise
MAX_UNREAD: Final = 10_000  # events of a subscription


class TooLong(Unreachable):
    """A server may hang up on a request that is so long; over HTTP it says what is wrong."""


class _Call(NamedTuple):
    """A request that has been sent.

    Attributes:
        response: None if there will be none; cancelled if nothing waits for it any more.
        size: in bytes.
        queue: where the events of a subscription go.
        undo: called with a result that nothing waits for any more.
    """

    response: asyncio.Future[dict[str, Any] | None]
    size: int
    queue: asyncio.Queue[StreamEvent | None] | None
    undo: Callable[[Fields], None] | None


class RpcConnection:
    """An open connection.

    Args:
        server: its address, for errors.
        socket: the WebSocket.

    Attributes:
        ended: set when it is over.
        useless: whether it has broken without a single answer.
    """

    def __init__(self, server: str, socket: ClientConnection) -> None:
        self.ended = asyncio.Event()
        self.useless = False
        self._heard = False
        self._server = server
        self._socket = socket
        self._ids = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        self._subscriptions: dict[int, asyncio.Queue[StreamEvent | None]] = {}
        self._subscribed = 0  # with those that are being asked for
        self._held = 0
        self._too_long_bytes: int | None = None  # that of the request for which the server has hung up
        self._notifying: set[asyncio.Task[None]] = set()
        self._reading = asyncio.create_task(self._read())

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return not self.ended.is_set() and self._socket.state is State.OPEN

    @property
    def may_subscribe(self) -> bool:
        """Whether the server takes one more subscription."""
        return self._subscribed < MAX_SUBSCRIPTIONS

    @property
    def may_hold(self) -> bool:
        """Whether the server holds one more offer."""
        return self._held < MAX_HELD

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """An offer is held."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    async def close(self) -> None:
        """Close it, after what has been sent."""
        self._reading.cancel()
        await asyncio.gather(self._reading, *self._notifying, return_exceptions=True)

    async def call(self, method: str, params: Fields) -> Fields:
        """Call a method; its result.

        Raises:
            APIError: the response is an error, or there is none.
            TooLong: it has to be asked over HTTP.
        """

        def withdraw(found: Fields) -> None:
            """An offer whose code nothing waits for any more would be held for as long as the connection lives."""
            if params.get("hold"):
                secret = {"secret": params["secret"]} if "secret" in params else {}
                self._notify("withdraw", {"code": found["code"], "side": "offerer", **secret})

        return await self._call(method, params, undo=withdraw)

    @contextlib.asynccontextmanager
    async def subscribe(self, fields: Fields) -> AsyncIterator[AsyncGenerator[StreamEvent, None]]:
        """Subscribe to a topic or to a session; its events as they come.

        Raises:
            APIError: it is refused; reading the events raises that the connection has ended.
        """
        queue: asyncio.Queue[StreamEvent | None] = asyncio.Queue()
        self._subscribed += 1
        try:
            subscribed = await self._call("subscribe", fields, queue=queue, undo=self._unsubscribe)
            try:
                yield self._events(queue)
            finally:
                if subscribed["subscription"] in self._subscriptions:
                    self._unsubscribe(subscribed)
        finally:
            self._subscribed -= 1

    async def _call(
        self,
        method: str,
        params: Fields,
        *,
        queue: asyncio.Queue[StreamEvent | None] | None = None,
        undo: Callable[[Fields], None] | None = None,
    ) -> Fields:
        if self.ended.is_set():
            raise unreachable(self._server, HUNG_UP, sent=False)
        id_ = next(self._ids)
        text = _request(method, params, id=id_)
        if len(text) > MAX_BYTES:
            raise TooLong(f"{method} is too long", sent=False)
        call = self._calls[id_] = _Call(asyncio.get_running_loop().create_future(), len(text), queue, undo)
        try:
            async with asyncio.timeout(ANSWER_S + params.get("wait", 0)):
                try:
                    await self._socket.send(text, text=True)
                    response = await call.response
                except asyncio.CancelledError:
                    if call.response.done() and not call.response.cancelled():
                        self._abandoned(call, call.response.result())
                    call.response.cancel()
                    raise
        except ConnectionClosed:
            raise unreachable(self._server, HUNG_UP) from None
        except TimeoutError:
            self._end()
            self._reading.cancel()
            raise unreachable(self._server, SLOW) from None
        if response is None:
            if call.size == self._too_long_bytes:
                raise TooLong(f"{method} is too long", sent=False)
            raise unreachable(self._server, HUNG_UP)
        if "error" in response:
            raise _refusal(response["error"])
        return cast(Fields, response["result"])

    async def _events(self, queue: asyncio.Queue[StreamEvent | None]) -> AsyncGenerator[StreamEvent, None]:
        while (event := await queue.get()) is not None:
            yield event
        raise unreachable(self._server, HUNG_UP)

    def _unsubscribe(self, subscribed: Fields) -> None:
        self._subscriptions.pop(subscribed["subscription"], None)
        self._notify("unsubscribe", subscribed)

    def _notify(self, method: str, params: Fields) -> None:
        """Call a method whose result does not matter."""

        async def send() -> None:
            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(_request(method, params), text=True)

        if self.open:
            task = asyncio.create_task(send())
            self._notifying.add(task)
            task.add_done_callback(self._notifying.discard)

    async def _read(self) -> None:
        try:
            while True:
                try:
                    async with asyncio.timeout(IDLE_S):
                        message = await self._socket.recv()
                except TimeoutError:
                    if not (self._calls or self._subscribed or self._held):
                        break
                else:
                    self._take(json.loads(message))
        except (ConnectionClosed, ValueError, LookupError, TypeError):  # the last three: it is no JSON-RPC
            pass
        finally:
            self._end()
            await self._socket.close()

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = True
        if "method" in message:
            params = message["params"]
            queue = self._subscriptions.get(params["subscription"])
            if queue is None:
                return
            if queue.qsize() < MAX_UNREAD:
                queue.put_nowait(StreamEvent(params.get("type", ""), params.get("data"), params["cursor"]))
            else:  # the reader subscribes again, from where it has read to
                self._unsubscribe({"subscription": params["subscription"]})
                queue.put_nowait(None)
            return
        call = self._calls.pop(message["id"])
        if call.response.cancelled():
            self._abandoned(call, message)
            return
        if call.queue is not None and "result" in message:
            self._subscriptions[message["result"]["subscription"]] = call.queue
        if not call.response.done():
            call.response.set_result(message)

    def _abandoned(self, call: _Call, response: dict[str, Any] | None) -> None:
        if call.undo is not None and response is not None and "result" in response:
            call.undo(response["result"])

    def _end(self) -> None:
        self.ended.set()
        code = self._socket.close_code
        if self._calls and not self._heard and code in (None, CloseCode.ABNORMAL_CLOSURE):
            self.useless = True
        if code == CloseCode.MESSAGE_TOO_BIG:
            self._too_long_bytes = max((call.size for call in self._calls.values()), default=None)
        for call in self._calls.values():
            if not call.response.done():
                call.response.set_result(None)
        self._calls.clear()
        for queue in self._subscriptions.values():
            queue.put_nowait(None)
        self._subscriptions.clear()


def _request(method: str, params: Fields, **id_: int) -> bytes:
    """A request; one without an id is not answered."""
    fields = {"jsonrpc": "2.0", **id_, "method": method, "params": params}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def _refusal(error: dict[str, Any]) -> APIError:
    status = error["code"]
    if status < 0:  # JSON-RPC's own
        return APIError(200, FOREIGN)
    return APIError(status, error["message"], error.get("data", {}).get("retryAfter"))
