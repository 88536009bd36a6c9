"""Which server is asked, when it is asked again, and when another one is."""

import asyncio
import contextlib
import email.utils
import itertools
import logging
import os
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, SSEError, aconnect_sse

from .errors import APIError, Unreachable
from .types import Token

# It writes every address at INFO, with the query, in which there may be a secret.
logging.getLogger("httpx").setLevel(logging.WARNING)

ANSWER_S = 15.0  # for an answer, beyond what was asked to wait
SILENCE_S = 45.0  # of a stream, which has a comment every 15 s
PAUSE_S = 0.25
MAX_PAUSE_S = 15.0
FOREIGN = "the answer is not one of this API"

Fields = dict[str, Any]


def back_off_s(attempt: int, first_s: float = PAUSE_S) -> float:
    """How long to wait before trying again: longer with each attempt from 0, and random, so that clients spread."""
    pause_s: float = min(MAX_PAUSE_S, first_s * 2.0 ** min(attempt, 10))
    return pause_s * random.uniform(0.5, 1.5)


class Servers:
    """Servers of the same API, each with sessions of its own. The one that worked last is asked first.

    Args:
        urls: their addresses, in the order of preference.
        origin: the Origin of every request; by default that of a page that the first server has.

    Attributes:
        patience_s: how long to try again what fails in passing; what a server refuses for good fails at once.
    """

    def __init__(self, urls: Sequence[str], origin: str | None, patience_s: float) -> None:
        if not urls:
            raise ValueError("no server")
        self.urls = [url.rstrip("/") for url in urls]
        self.patience_s = patience_s
        self._headers = {"Origin": origin or "/".join(self.urls[0].split("/")[:3])}
        self._http: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close every connection."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Fields | None = None,
        query: Fields | None = None,
        at: str | None = None,
        anywhere: bool = False,
        again: bool = True,
    ) -> tuple[str, Fields]:
        """Ask until there is an answer; which server gave it, and what it says.

        Args:
            method: GET or POST.
            path: percent-encoded.
            body: what becomes JSON; fields that are None are left out, here and in the query.
            query: likewise.
            at: the only server that can answer; None for any.
            anywhere: a server's 404 says nothing about the next one.
            again: whether the same may reach a server twice.

        Raises:
            APIError: the answer is an error, or there is none.
        """
        until_s = time.monotonic() + self.patience_s
        for attempt in itertools.count():
            failure: APIError | None = None
            for server in self._order(at):
                try:
                    found = await self._ask(method, server + path, _given(body, server), _given(query, server))
                except APIError as error:
                    if error.status == 404 and anywhere:
                        failure = failure or error
                    elif error.passing and (again or not getattr(error, "sent", False)):
                        failure = error
                    else:
                        raise
                else:
                    self._prefer(server)
                    return server, found
            assert failure is not None
            pause_s = back_off_s(attempt)
            if failure.retry_after_s is not None:
                pause_s = failure.retry_after_s * random.uniform(1, 1.25)
            if not failure.passing or time.monotonic() + pause_s > until_s:
                raise failure
            await asyncio.sleep(pause_s)
        raise AssertionError("unreachable")

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Fields, at: str | None, last: tuple[str, str | None] | None
    ) -> AsyncIterator[tuple[str, AsyncGenerator[ServerSentEvent, None]]]:
        """Open a stream at the first server that has it; which one, and its events as they come.

        Path, query and `at` are as for `call`; `last` is where it was followed before: the server, and the last id.

        Raises:
            APIError: there is no stream, or it breaks.
        """
        failure: APIError | None = None
        for server in self._order(at):
            headers = dict(self._headers)
            if last and last[0] == server and last[1]:
                headers["Last-Event-ID"] = last[1]
            async with contextlib.AsyncExitStack() as opened:
                try:
                    source = await opened.enter_async_context(
                        aconnect_sse(
                            self._client(),
                            "GET",
                            server + path,
                            params=_given(query, server),
                            headers=headers,
                            timeout=_timeout(SILENCE_S),
                        )
                    )
                    if source.response.status_code != 200:
                        await source.response.aread()
                        raise _refusal(source.response)
                except httpx.TransportError as error:
                    failure = _unreachable(server, error)
                    continue
                except APIError as error:
                    if not error.passing:
                        raise
                    failure = error
                    continue
                self._prefer(server)
                try:
                    yield server, source.aiter_sse()
                except SSEError:  # a TransportError, too
                    raise APIError(200, FOREIGN) from None
                except httpx.TransportError as error:
                    raise _unreachable(server, error) from None
                return
        assert failure is not None
        raise failure

    def _order(self, at: str | None) -> list[str]:
        return [at] if at else list(self.urls)

    def _prefer(self, server: str) -> None:
        if server in self.urls:
            self.urls.remove(server)
            self.urls.insert(0, server)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            # Each wait and each stream holds a connection.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._http = httpx.AsyncClient(limits=limits)
        return self._http

    async def _ask(self, method: str, url: str, body: Fields | None, query: Fields | None) -> Fields:
        wait_s = (body or query or {}).get("wait", 0)
        try:
            response = await self._client().request(
                method, url, json=body, params=query, headers=self._headers, timeout=_timeout(ANSWER_S + wait_s)
            )
        except httpx.TransportError as error:
            raise _unreachable("/".join(url.split("/")[:3]), error) from None
        if response.status_code != 200:
            raise _refusal(response)
        found = json_object(response)
        if found is None:
            raise APIError(response.status_code, FOREIGN)
        return found


def _given(fields: Mapping[str, Any] | None, server: str) -> Fields | None:
    """Those fields that are to be sent; a cursor only to the server that gave it out."""
    if fields is None:
        return None
    foreign = "since" if isinstance(since := fields.get("since"), Token) and since.server != server else ""
    return {name: value for name, value in fields.items() if value is not None and name != foreign}


def _timeout(read_s: float) -> httpx.Timeout:
    return httpx.Timeout(ANSWER_S, read=read_s, pool=None)


def _unreachable(server: str, error: httpx.TransportError) -> Unreachable:
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol)
    why = str(error) or ("it does not answer in time" if isinstance(error, httpx.TimeoutException) else "it hung up")
    cause: BaseException | None = error
    while cause is not None:  # what the system said is somewhere below
        if isinstance(cause, OSError) and (cause.errno or 0) > 0:
            why = os.strerror(cause.errno or 0)
        cause = cause.__cause__ or cause.__context__
    return Unreachable(f"cannot reach {server}: {why}", sent)


def json_object(said: httpx.Response | ServerSentEvent) -> Fields | None:
    """The JSON object that a response or an event holds; None if it holds anything else."""
    try:
        found = said.json()
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _refusal(response: httpx.Response) -> APIError:
    text = (json_object(response) or {}).get("error")
    text = text if isinstance(text, str) else response.reason_phrase
    return APIError(response.status_code, text, _retry_after_s(response.headers.get("Retry-After")))


def _retry_after_s(value: str | None) -> float | None:
    """What Retry-After says, which is seconds or a date; None for nothing that can be understood."""
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        return float(value[:6])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
