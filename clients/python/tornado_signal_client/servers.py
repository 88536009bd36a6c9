"""Selection of a server and its transport, retries and failover."""

import asyncio
import contextlib
import functools
import itertools
import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

import httpx

from .authorization import Authorization, TokenSource
from .errors import SIGN_OF_LIFE_S, Foreign, SignalError, TimeLimit
from .http import HttpClient
from .life import Life, Outage, awake_s
from .parsing import SESSION_EVENTS, TOPIC_EVENTS, conforms
from .polls import poll_events
from .rpc import RequestTooLong, RpcConnection, WebSocket
from .tasks import MAX_PAUSE_S, PAUSE_S, Tasks, back_off_s
from .types import Closable, Fields, StreamEvent, T, Token, check_type

TEXTS = frozenset({"topic", "prefix", "info", "offer", "code", "side", "answer", "candidate", "since", "secret"})
RETRY_S = 1.0  # before a stream is opened again
PREFERRED_CHECK_S = 30.0  # between two checks whether a preferred server works again


class Response(NamedTuple):
    """The response of a server."""

    server: str  # the server's address
    result: Fields  # the fields of the response
    connection: RpcConnection | None  # the connection that was used, or None for HTTP


class Servers(Closable):
    """Servers of the same API, each with its own sessions. The server that worked last is tried first.

    Long polls, streams and held offers open the server's WebSocket. While it is open, every request uses it.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:3000",
        origin: str | None = None,
        retry_timeout_s: float = 10.0,
        *,
        websocket: bool = True,
        token: TokenSource | None = None,
    ) -> None:
        urls = [servers] if isinstance(servers, str) else servers
        if not urls:
            raise ValueError("no server")
        for name, value, types in (
            ("origin", origin, (str, None)),
            ("retry_timeout_s", retry_timeout_s, (float,)),
            ("websocket", websocket, (bool,)),
            ("token", token if not callable(token) else "", (str, None)),
            *(("the address of a server", url, (str,)) for url in urls),
        ):
            check_type(name, value, *types)
        self._urls = [url.rstrip("/") for url in urls]
        for url in self._urls:
            if not re.match(r"https?://[^/]", url):
                raise ValueError(f"the address of a server begins with http:// or https://, unlike {url!r}")
        if origin is not None and not re.fullmatch(r"null|[A-Za-z][\w+.-]*://[^/?#]+", origin):
            raise ValueError(f"an origin has a scheme and no path, like https://app.example, unlike {origin!r}")
        self._preference = tuple(self._urls)
        self.retry_timeout_s = retry_timeout_s
        self.origin = origin or "/".join(self._urls[0].split("/")[:3])
        self._tls = functools.cache(httpx.create_ssl_context)
        self._authorization = Authorization(token)
        self._http = HttpClient(self.origin, self._tls, self._authorization)
        self._use_websocket = websocket
        self._websockets: dict[str, WebSocket] = {}
        self._life, self._outage = Life(self.check), Outage()
        self._checked_s = -math.inf
        self._wants_reports = False  # according to the latest ICE servers
        self._tasks = Tasks()  # reports of connections, and the leases and withdrawals of offers by their codes

    async def close(self) -> None:
        """Close all connections to the servers. Later requests raise RuntimeError."""
        if self._life.end():
            await self._tasks.cancel()
            self._outage.end()
            while self._websockets:
                await self._websockets.popitem()[1].close()
            await self._http.close()

    def check(self) -> None:
        """Ask the servers for a sign of life, for example after a change of the network.

        Connections without one are replaced after some seconds. The client does this itself when it has slept.
        """
        if awake_s() > self._checked_s + SIGN_OF_LIFE_S:
            self._checked_s = awake_s()
            for websocket in self._websockets.values():
                websocket.check()
            self._http.check()

    def on_unreachable(self, listener: Callable[[SignalError], None]) -> Callable[[], None]:
        """Call a function with the error when no server has accepted a request for 5 s, once until one does."""
        self._outage.listeners.add(listener)
        return lambda: self._outage.listeners.discard(listener)

    @contextlib.asynccontextmanager
    async def _time_limit(self, limit_s: float | None) -> AsyncIterator[asyncio.Timeout]:
        """Limit a time. The `TimeLimit` says why the servers are unreachable, if they are."""
        try:
            async with asyncio.timeout(limit_s) as limit:
                yield limit
        except TimeoutError:
            if not limit.expired():
                raise
            cause = self._outage.error
            raise TimeLimit(f"not done in {limit_s:g} s" + (f": {cause}" if cause else "")) from cause

    async def _call(
        self, operation: str, fields: Fields, *, at: str | None = None, any_server: bool = False, once: bool = False
    ) -> Response:
        """Send a request until a server responds.

        Args:
            fields: the parameters. Those without a value are omitted.
            at: the only server that can respond, or None for any.
            any_server: whether to try the next server after a 404.
            once: whether the request is not repeated after a connection broke, because the server may have received it.
        """

        def may_repeat(error: SignalError) -> bool:
            return error.retryable and not (once and error.sent)

        deadline_s = time.monotonic() + self.retry_timeout_s
        for attempt in itertools.count():
            try:
                return await self._use_first(
                    at,
                    lambda server: self._send(server, operation, _params_for(fields, server)),
                    lambda error: may_repeat(error) or (any_server and error.status == 404),
                )
            except SignalError as error:
                if fields.get("wait") and not attempt:  # the wait itself is not spent on retries
                    deadline_s = time.monotonic() + self.retry_timeout_s
                pause_s = max(back_off_s(attempt), (error.retry_after_s or 0.0) * random.uniform(1, 1.25))
                if not may_repeat(error) or time.monotonic() + pause_s > deadline_s:
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def _use_first(
        self, at: str | None, use: Callable[[str], Awaitable[T]], may_pass: Callable[[SignalError], bool]
    ) -> T:
        """Use the first server that works. After an error for which `may_pass` is true, the next one is tried.

        A server that does not work is tried last from then on.
        """
        self._life.check()
        last_error: SignalError | None = None
        for server in [at] if at else list(self._urls):
            try:
                result = await use(server)
            except SignalError as error:
                if error.retryable and at is None:
                    self._urls.remove(server)
                    self._urls.append(server)
                if not may_pass(error):
                    raise
                last_error = error if error.retryable else last_error or error
            else:
                if at is None:
                    self._prefer(server)
                return result
        assert last_error is not None
        raise last_error

    def _report(self, fields: Fields) -> None:
        """Send a report of a connection in the background, if the server wants it. It is not repeated."""

        async def send() -> None:
            with contextlib.suppress(SignalError):  # only figures of the operator depend on it
                await self._send(self._urls[0], "report", fields)

        if self._wants_reports:
            self._tasks.start(send())

    async def _connection(self, server: str, *, open_if_closed: bool = True) -> RpcConnection | None:
        """Return the WebSocket connection to a server, or None if HTTP has to be used."""
        self._life.check()
        if not self._use_websocket:
            return None
        websocket = self._websockets.setdefault(server, WebSocket(server, self.origin, self._tls, self._authorization))
        return await websocket.connection(open_if_closed=open_if_closed)

    async def _follow(
        self, fields: Fields, at: str | None = None, *, keep_retrying: bool = True
    ) -> AsyncGenerator[tuple[str, StreamEvent], None]:
        """Yield the events of a topic or session that have data, each with the server that sent it.

        Events of unknown types are left out. For a topic, an event with a cursor and no name ends a listing. `reset`
        begins a listing that replaces what was yielded before.

        A stream that cannot be opened for `retry_timeout_s` fails. A broken one is resumed after its last complete
        event. Attempts to resume it never end. Without `keep_retrying` they end after `retry_timeout_s` as well.
        """
        is_topic = "topic" in fields
        shapes = TOPIC_EVENTS if is_topic else SESSION_EVENTS
        current: str | None = None
        cursor: Token | None = None
        resetting = False  # whether the listing after `reset` is incomplete
        retry_s = RETRY_S if keep_retrying else PAUSE_S
        attempt = 0
        waited_s = 0.0
        while True:
            pause_s = None
            opened_at_s = math.inf
            try:
                async with contextlib.AsyncExitStack() as stack:
                    open_at = functools.partial(self._open, stack, {**fields, "since": cursor})
                    server, events = await self._use_first(at, open_at, lambda error: error.retryable)
                    await stack.enter_async_context(aclosing(events))
                    if current != server:
                        current, cursor, resetting = server, None, False
                    if resetting:
                        yield server, StreamEvent("reset", {}, None)
                    opened_at_s = time.monotonic()
                    waited_s = 0.0
                    async for event in events:
                        attempt = 0
                        cursor = Token(event.cursor, server) if event.cursor else cursor
                        is_end = not event.name and event.cursor is not None
                        if is_topic and (event.name == "reset" or is_end):
                            resetting = not is_end
                            yield server, event
                        elif event.data is not None and event.name in shapes:
                            if not conforms(event.data, shapes[event.name]):
                                raise Foreign
                            yield server, event
            except SignalError as error:
                if error.status == 400 and cursor:  # a server with a new database does not know the cursor
                    cursor, resetting = None, is_topic
                    continue
                may_give_up = current is None or not keep_retrying
                if not error.retryable or (may_give_up and waited_s >= self.retry_timeout_s):
                    raise
                pause_s = error.retry_after_s
            if resetting:
                cursor = None
            if time.monotonic() - opened_at_s > MAX_PAUSE_S:  # the stream worked, even if no event arrived
                attempt = 0
            pause_s = max(back_off_s(attempt, retry_s), pause_s or 0.0)
            attempt += 1
            waited_s += pause_s
            await asyncio.sleep(pause_s)

    async def _open(
        self, stack: contextlib.AsyncExitStack, fields: Fields, server: str
    ) -> tuple[str, AsyncGenerator[StreamEvent, None]]:
        """Return the server and the events of a topic or session: a subscription, which `stack` ends, or long polls."""

        async def poll(operation: str, fields: Fields) -> Fields:
            return (await self._send(server, operation, fields)).result

        params = _params_for(fields, server)
        with self._outage.watch(server):
            connection = await self._connection(server)
            if connection is not None and connection.can_subscribe:
                return server, await stack.enter_async_context(connection.subscribe(params))
            return server, await poll_events(poll, params)

    async def _wait_for_preferred_server(self, server: str) -> None:
        """Wait until a server that is preferred to `server` works again. It is tried first from then on."""
        preferred = self._preference[: self._preference.index(server)]
        while True:
            await asyncio.sleep(PREFERRED_CHECK_S * random.uniform(0.5, 1.5))
            for url in preferred:
                with contextlib.suppress(SignalError):
                    await self._send(url, "health", {})
                    return self._prefer(url)

    def _prefer(self, server: str) -> None:
        if server in self._urls:
            self._urls.remove(server)
            self._urls.insert(0, server)

    async def _send(self, server: str, operation: str, fields: Fields) -> Response:
        with self._outage.watch(server, waits=bool(fields.get("wait"))):
            connection = await self._connection(server, open_if_closed="wait" in fields or "hold" in fields)
            if connection is not None and (connection.can_hold or "hold" not in fields):
                with contextlib.suppress(RequestTooLong):
                    return Response(server, await connection.call(operation, fields), connection)
            try:
                return Response(server, await self._http.call(server, operation, fields), None)
            except SignalError as error:
                if error.retryable and error.status != 429 and server in self._websockets:
                    self._websockets[server].retry()
                raise


def _params_for(fields: Fields, server: str) -> Fields:
    """Return the fields to send: without None, and without a cursor that another server has issued."""
    foreign = "since" if isinstance(since := fields.get("since"), Token) and since.server != server else ""
    params = {name: value for name, value in fields.items() if value is not None and name != foreign}
    for name in TEXTS & params.keys():
        if not isinstance(params[name], str):
            raise TypeError(f"{name} is a string, such as the JSON of an object, not {type(params[name]).__name__}")
    return params
