"""Selection of a server and its transport, retries and failover."""

import asyncio
import contextlib
import functools
import itertools
import math
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

import httpx

from .authorization import Authorization, TokenSource
from .errors import SIGN_OF_LIFE_S, SignalError
from .http import HttpClient
from .life import Life, Outage, awake_s
from .pacing import back_off_s
from .polls import polled
from .rpc import RequestTooLong, RpcConnection
from .tasks import Tasks
from .types import Fields, StreamEvent, Token, check_type
from .websocket import WebSocket

TEXTS = frozenset({"topic", "prefix", "info", "offer", "code", "side", "answer", "candidate", "since", "secret"})
PREFERRED_CHECK_S = 30.0  # between two checks whether a preferred server works again


class Response(NamedTuple):
    """The response of a server."""

    server: str  # the server's address
    result: Fields  # the fields of the response
    connection: RpcConnection | None  # the connection that was used, or None for HTTP


class Servers:
    """Servers of the same API, each with its own sessions. The server that worked last is tried first.

    Long polls, streams and held offers open the server's WebSocket. While it is open, every request uses it.
    """

    def __init__(
        self,
        urls: Sequence[str],
        origin: str | None,
        retry_timeout_s: float,
        websocket: bool,
        token: TokenSource | None = None,
    ) -> None:
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
        self.urls = [url.rstrip("/") for url in urls]
        for url in self.urls:
            if not re.match(r"https?://[^/]", url):
                raise ValueError(f"the address of a server begins with http:// or https://, unlike {url!r}")
        if origin is not None and not re.fullmatch(r"null|[A-Za-z][\w+.-]*://[^/?#]+", origin):
            raise ValueError(f"an origin has a scheme and no path, like https://app.example, unlike {origin!r}")
        self._preference = tuple(self.urls)
        self.retry_timeout_s = retry_timeout_s
        self.origin = origin or "/".join(self.urls[0].split("/")[:3])
        self._tls = functools.cache(httpx.create_ssl_context)
        self._authorization = Authorization(token)
        self._http = HttpClient(self.origin, self._tls, self._authorization)
        self._websocket = websocket
        self._websockets: dict[str, WebSocket] = {}
        self.life, self.outage = Life(self.check), Outage()
        self._checked_s = -math.inf
        self.wants_reports = False  # according to the latest ICE servers
        self._reports = Tasks()

    async def close(self) -> None:
        """Close all connections."""
        if self.life.end():
            self.outage.end()
            while self._websockets:
                await self._websockets.popitem()[1].close()
            await self._http.close()
            await self._reports.cancel()

    def check(self) -> None:
        """Ask the servers for a sign of life. Connections without one are replaced after `SIGN_OF_LIFE_S`."""
        if awake_s() > self._checked_s + SIGN_OF_LIFE_S:
            self._checked_s = awake_s()
            for websocket in self._websockets.values():
                websocket.check()
            self._http.check()

    async def call(
        self,
        operation: str,
        fields: Fields,
        *,
        at: str | None = None,
        any_server: bool = False,
        idempotent: bool = True,
    ) -> Response:
        """Send a request until a server responds.

        Args:
            fields: the parameters. Those without a value are omitted.
            at: the only server that can respond, or None for any.
            any_server: whether to try the next server after a 404.
            idempotent: whether a server may receive the request twice.
        """
        deadline_s = time.monotonic() + self.retry_timeout_s
        for attempt in itertools.count():
            last_error: SignalError | None = None
            for server in self._servers_to_try(at):
                try:
                    response = await self._send(server, operation, _params_for(fields, server))
                except SignalError as error:
                    if error.status == 404 and any_server:
                        last_error = last_error or error
                    elif error.retryable and (idempotent or not getattr(error, "sent", False)):
                        last_error = error
                    else:
                        raise
                else:
                    if at is None:
                        self._prefer(server)
                    return response
            assert last_error is not None
            if fields.get("wait") and not attempt:  # the wait itself is not spent on retries
                deadline_s = time.monotonic() + self.retry_timeout_s
            pause_s = back_off_s(attempt)
            if last_error.retry_after_s is not None:
                pause_s = max(pause_s, last_error.retry_after_s * random.uniform(1, 1.25))
            if not last_error.retryable or time.monotonic() + pause_s > deadline_s:
                raise last_error
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    def report(self, fields: Fields) -> None:
        """Send a report of a connection in the background, if the server wants it. It is not repeated."""

        async def send() -> None:
            with contextlib.suppress(SignalError):  # only figures of the operator depend on it
                await self._send(self.urls[0], "report", fields)

        if self.wants_reports:
            self._reports.start(send())

    async def connection(self, server: str, *, open_if_closed: bool = True) -> RpcConnection | None:
        """Return the WebSocket connection to a server, or None if HTTP has to be used."""
        self.life.check()
        if not self._websocket:
            return None
        websocket = self._websockets.setdefault(server, WebSocket(server, self.origin, self._tls, self._authorization))
        return await websocket.connection(open_if_closed=open_if_closed)

    @contextlib.asynccontextmanager
    async def stream(
        self, fields: Fields, at: str | None, last: tuple[str, str | None] | None
    ) -> AsyncIterator[tuple[str, AsyncGenerator[StreamEvent, None]]]:
        """Open the events of a topic or session at the first available server: a subscription, or long polls."""
        last_error: SignalError | None = None
        for server in self._servers_to_try(at):
            since = last[1] if last and last[0] == server else None
            params = _params_for({**fields, "since": since}, server)

            async def poll(operation: str, fields: Fields, server: str = server) -> Fields:
                return (await self._send(server, operation, fields)).result

            async with contextlib.AsyncExitStack() as stack:
                try:
                    with self.outage.watch(server):
                        connection = await self.connection(server)
                        if connection is not None and connection.can_subscribe:
                            stream = connection.subscribe(params)
                        else:
                            stream = polled(poll, params)
                        events = await stack.enter_async_context(stream)
                except SignalError as error:
                    self._on_error(server, error)
                    if not error.retryable:
                        raise
                    last_error = error
                    continue
                if at is None:
                    self._prefer(server)
                yield server, events
                return
        assert last_error is not None
        raise last_error

    async def wait_for_preferred_server(self, server: str) -> None:
        """Wait until a server that is preferred to `server` works again. It is tried first from then on."""
        preferred = self._preference[: self._preference.index(server)]
        while True:
            await asyncio.sleep(PREFERRED_CHECK_S * random.uniform(0.5, 1.5))
            for url in preferred:
                with contextlib.suppress(SignalError):
                    await self._send(url, "health", {})
                    return self._prefer(url)

    def _servers_to_try(self, at: str | None) -> list[str]:
        self.life.check()
        return [at] if at else list(self.urls)

    def _prefer(self, server: str) -> None:
        if server in self.urls:
            self.urls.remove(server)
            self.urls.insert(0, server)

    async def _send(self, server: str, operation: str, fields: Fields) -> Response:
        with self.outage.watch(server, waits=bool(fields.get("wait"))):
            connection = await self.connection(server, open_if_closed="wait" in fields or "hold" in fields)
            if connection is not None and (connection.can_hold or "hold" not in fields):
                with contextlib.suppress(RequestTooLong):
                    return Response(server, await connection.call(operation, fields), connection)
            try:
                return Response(server, await self._http.call(server, operation, fields), None)
            except SignalError as error:
                self._on_error(server, error)
                raise

    def _on_error(self, server: str, error: SignalError) -> None:
        if error.retryable and error.status != 429 and server in self._websockets:
            self._websockets[server].retry()


def _params_for(fields: Fields, server: str) -> Fields:
    """Return the fields to send: without None, and without a cursor that another server has issued."""
    foreign = "since" if isinstance(since := fields.get("since"), Token) and since.server != server else ""
    params = {name: value for name, value in fields.items() if value is not None and name != foreign}
    for name in TEXTS & params.keys():
        if not isinstance(params[name], str):
            raise TypeError(f"{name} is a string, such as the JSON of an object, not {type(params[name]).__name__}")
    return params
