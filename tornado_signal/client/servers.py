"""Which server is asked and how, when it is asked again, and when another one is."""

import asyncio
import contextlib
import functools
import itertools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import NamedTuple

import httpx

from .errors import APIError
from .http import HttpClient
from .rpc import RpcConnection, TooLong
from .types import Fields, StreamEvent, Token
from .websocket import WebSocket

PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
BETTER_S = 30.0  # between two looks whether a server works again


def back_off_s(attempt: int, first_s: float = PAUSE_S) -> float:
    """How long to wait before trying again: longer with each attempt from 0, and random, so that clients spread."""
    pause_s: float = min(MAX_PAUSE_S, first_s * 2.0 ** min(attempt, 10))
    return pause_s * random.uniform(0.5, 1.5)


class Answer(NamedTuple):
    """What a server has answered.

    Attributes:
        server: which one.
        found: what it says.
        connection: over which WebSocket; None for HTTP.
    """

    server: str
    found: Fields
    connection: RpcConnection | None


class Servers:
    """Servers of the same API, each with sessions of its own. The one that worked last is asked first.

    Each has a WebSocket, which is opened for what waits, streams and holds. While it is open everything goes over it.

    Args:
        urls: their addresses, in the order of preference.
        origin: the Origin of every request; by default that of a page that the first server has.
        retry_timeout_s: see below.
        websocket: whether to use WebSockets.

    Attributes:
        retry_timeout_s: how long to try again what fails in passing; what a server refuses for good fails at once.
    """

    def __init__(self, urls: Sequence[str], origin: str | None, retry_timeout_s: float, websocket: bool) -> None:
        if not urls:
            raise ValueError("no server")
        self.urls = [url.rstrip("/") for url in urls]
        self._preference = tuple(self.urls)
        self.retry_timeout_s = retry_timeout_s
        self._origin = origin or "/".join(self.urls[0].split("/")[:3])
        self._tls = functools.cache(httpx.create_ssl_context)
        self._http = HttpClient(self._origin, self._tls)
        self._websocket = websocket
        self._websockets: dict[str, WebSocket] = {}

    async def close(self) -> None:
        """Close every connection."""
        while self._websockets:
            await self._websockets.popitem()[1].close()
        await self._http.close()

    async def call(
        self, operation: str, fields: Fields, *, at: str | None = None, anywhere: bool = False, again: bool = True
    ) -> Answer:
        """Ask until there is an answer.

        Args:
            operation: the name of an operation.
            fields: its parameters; those that are None are left out.
            at: the only server that can answer; None for any.
            anywhere: a server's 404 says nothing about the next one.
            again: whether the same may reach a server twice.

        Raises:
            APIError: the answer is an error, or there is none.
        """
        until_s = time.monotonic() + self.retry_timeout_s
        for attempt in itertools.count():
            failure: APIError | None = None
            for server in self._order(at):
                try:
                    answer = await self._ask(server, operation, _given(fields, server))
                except APIError as error:
                    if error.status == 404 and anywhere:
                        failure = failure or error
                    elif error.is_transient and (again or not getattr(error, "sent", False)):
                        failure = error
                    else:
                        raise
                else:
                    if at is None:
                        self._prefer(server)
                    return answer
            assert failure is not None
            pause_s = back_off_s(attempt)
            if failure.retry_after_s is not None:
                pause_s = failure.retry_after_s * random.uniform(1, 1.25)
            if not failure.is_transient or time.monotonic() + pause_s > until_s:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    async def connection(self, server: str, *, wanted: bool = True) -> RpcConnection | None:
        """The WebSocket to a server, which is opened if it is `wanted`; None for HTTP."""
        if not self._websocket:
            return None
        websocket = self._websockets.setdefault(server, WebSocket(server, self._origin, self._tls))
        return await websocket.connection(wanted=wanted)

    @contextlib.asynccontextmanager
    async def stream(
        self, fields: Fields, at: str | None, last: tuple[str, str | None] | None
    ) -> AsyncIterator[tuple[str, AsyncGenerator[StreamEvent, None]]]:
        """Follow a topic or a session at the first server that has it; which one, and its events as they come.

        `fields` and `at` are as for `call`; `last` is where it was followed before: the server, and the last cursor.

        Raises:
            APIError: there is no stream, or it breaks.
        """
        failure: APIError | None = None
        for server in self._order(at):
            given = _given(fields, server)
            since = last[1] if last and last[0] == server else None
            async with contextlib.AsyncExitStack() as opened:
                try:
                    connection = await self.connection(server)
                    if connection is not None and connection.may_subscribe:
                        stream = connection.subscribe({**given, **({"since": since} if since else {})})
                    else:
                        stream = self._http.stream(server, given, since)
                    events = await opened.enter_async_context(stream)
                except APIError as error:
                    self._failed(server, error)
                    if not error.is_transient:
                        raise
                    failure = error
                    continue
                if at is None:
                    self._prefer(server)
                yield server, events
                return
        assert failure is not None
        raise failure

    async def wait_for_preferred_server(self, server: str) -> None:
        """Wait until a server works again that comes before this one in the order of preference; it is asked first."""
        before = self._preference[: self._preference.index(server)]
        while True:
            await asyncio.sleep(BETTER_S * random.uniform(0.5, 1.5))
            for each in before:
                with contextlib.suppress(APIError):
                    await self._ask(each, "health", {})
                    return self._prefer(each)

    @property
    def only(self) -> str | None:
        """The server, if there is but one."""
        return self.urls[0] if len(self.urls) == 1 else None

    def _order(self, at: str | None) -> list[str]:
        return [at] if at else list(self.urls)

    def _prefer(self, server: str) -> None:
        if server in self.urls:
            self.urls.remove(server)
            self.urls.insert(0, server)

    async def _ask(self, server: str, operation: str, fields: Fields) -> Answer:
        connection = await self.connection(server, wanted="wait" in fields or "hold" in fields)
        if connection is not None and (connection.may_hold or "hold" not in fields):
            with contextlib.suppress(TooLong):
                return Answer(server, await connection.call(operation, fields), connection)
        try:
            return Answer(server, await self._http.call(server, operation, fields), None)
        except APIError as error:
            self._failed(server, error)
            raise

    def _failed(self, server: str, error: APIError) -> None:
        if error.is_transient and error.status != 429 and server in self._websockets:
            self._websockets[server].retry()


def _given(fields: Fields, server: str) -> Fields:
    """Those fields that are to be sent; a cursor only to the server that gave it out."""
    foreign = "since" if isinstance(since := fields.get("since"), Token) and since.server != server else ""
    return {name: value for name, value in fields.items() if value is not None and name != foreign}
