"""The API, call by call."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, cast
from urllib.parse import quote

from .errors import APIError
from .events import follow
from .servers import Fields, Servers, back_off_s
from .types import Closable, Event, Health, IceServers, Listing, News, Session, Side, Token, Topics

MAX_BATCH = 100
WAIT_S = 50.0  # below the minute after which many proxies give up
POLL_S = 0.5  # between two polls of a server that does not know waits


class SignalClient(Closable):
    """A client of one server, or of several of which the first one that works is asked.

    Use it as an async context manager, or `close` it. A call that fails raises `APIError`.

    A session is on one server only: codes and cursors remember theirs. A code that comes from elsewhere is looked for
    on all of them.

    Args:
        servers: the address of a server, such as `https://signal.example`, or several.
        origin: the Origin of every request; by default that of a page which the first server has.

    Attributes:
        patience_s: how long to try again what fails in passing: no connection, 429, 502, 503 and 504. `Retry-After` is
            honoured. May be changed at any time.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:3000",
        origin: str | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self._servers = Servers([servers] if isinstance(servers, str) else servers, origin, patience_s)

    async def close(self) -> None:
        """Close every connection to the servers."""
        await self._servers.close()

    @property
    def patience_s(self) -> float:
        return self._servers.patience_s

    @patience_s.setter
    def patience_s(self, patience_s: float) -> None:
        self._servers.patience_s = patience_s

    async def version(self) -> str:
        """GET /: the commit that the server was built from."""
        _, found = await self._servers.call("GET", "/")
        return cast(str, found["version"])

    async def health(self) -> Health:
        """GET /health."""
        _, found = await self._servers.call("GET", "/health")
        return cast(Health, found)

    async def ice_servers(self) -> IceServers | None:
        """GET /ice-servers; None from a server that does not know it."""
        try:
            _, found = await self._servers.call("GET", "/ice-servers")
        except APIError as error:
            if error.status != 404:
                raise
            return None
        return cast(IceServers, found)

    async def topics(self, page: int = 1, limit: int = 100) -> Topics:
        """GET /topics: a page of the topics that have unanswered sessions, alphabetically."""
        _, found = await self._servers.call("GET", "/topics", query={"page": page, "limit": limit})
        return cast(Topics, found)

    async def sessions(
        self, topic: str, *, wait_s: float | None = None, since: str | None = None, limit: int | None = None
    ) -> Listing:
        """GET /:topic/sessions, with `wait_s` or `since` as soon as they are not those of `since`.

        A cursor of another server than the one that answers counts as none.
        """
        query = {"wait": wait_s, "since": since, "limit": limit}
        server, found = await self._servers.call("GET", in_topic(topic, "sessions"), query=query)
        sessions = cast(list[Session], found["sessions"])
        for session in sessions:
            session["code"] = Token(session["code"], server)
        return Listing(sessions, _cursor(found, server))

    async def offer(
        self, topic: str, info: str, offer: str, *, ttl_ms: int | None = None, secret: str | None = None
    ) -> Token:
        """POST /:topic/offer; the session's code.

        It is not sent again when the connection breaks in the middle, as it might be published twice.
        """
        body = {"info": info, "offer": offer, "ttl": ttl_ms, "secret": secret}
        server, found = await self._servers.call("POST", in_topic(topic, "offer"), body=body, again=False)
        return Token(found["code"], server)

    async def answer(self, code: str, answer: str, *, secret: str | None = None) -> None:
        """POST /answer, as the answerer.

        Raises:
            APIError: `taken` if another peer was first.
        """
        await self._act("/answer", code, {"side": "answerer", "answer": answer, "secret": secret})

    async def candidates(self, code: str, side: Side, candidates: Sequence[str], *, secret: str | None = None) -> None:
        """POST /answer with `candidates`, 100 at a time; one by one at a server that does not know batches.

        When a connection breaks some may arrive twice, which does no harm.
        """
        for start in range(0, len(candidates), MAX_BATCH):
            batch = list(candidates[start : start + MAX_BATCH])
            fields = {"side": side, "secret": secret}
            try:
                await self._act("/answer", code, {**fields, "candidates": batch})
            except APIError as error:
                if error.status != 400 or not error.text.endswith("answer or candidate"):
                    raise
                for each in batch:
                    await self._act("/answer", code, {**fields, "candidate": each})

    async def poll(
        self, code: str, side: Side, *, wait_s: float | None = None, since: str | None = None, secret: str | None = None
    ) -> News:
        """POST /poll, with `wait_s` or `since` as soon as there is anything newer."""
        body = {"side": side, "wait": wait_s, "since": since, "secret": secret}
        server, found = await self._act("/poll", code, body)
        other = "answer" if side == "offerer" else "offer"
        return News(found[other], found[f"{other}Candidates"], _cursor(found, server))

    async def withdraw(self, code: str, side: Side, *, secret: str | None = None) -> None:
        """POST /withdraw: the session is no more."""
        await self._act("/withdraw", code, {"side": side, "secret": secret})

    async def refresh(self, code: str, side: Side, *, secret: str | None = None) -> int:
        """POST /refresh: the session lives its time from now on; until when, in milliseconds."""
        _, found = await self._act("/refresh", code, {"side": side, "secret": secret})
        return cast(int, found["expiresAt"])

    async def topic_events(self, topic: str) -> AsyncGenerator[Event, None]:
        """GET /:topic/events: `session` and `gone`, first of those that are there, for as long as the caller iterates.

        It resumes by itself. Where another server takes over, the sessions of the first are `gone`, `unreachable`.
        """
        home = ""
        there: set[str] = set()
        async with aclosing(follow(self._servers, in_topic(topic, "events"), {})) as events:
            async for server, event in events:
                if home and server != home:
                    for code in there:
                        yield Event("gone", {"code": code, "reason": "unreachable"})
                    there.clear()
                home = server
                code = event.data["code"] = Token(event.data["code"], server)
                (there.add if event.name == "session" else there.discard)(code)
                yield event

    async def session_events(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[Event, None]:
        """GET /events: `offer`, `answer`, `candidate` of the other side, and `gone`, which is the last.

        It resumes by itself.
        """
        query = {"code": code, "side": side, "secret": secret}
        begun = False
        try:
            async with aclosing(follow(self._servers, "/events", query, _home(code))) as events:
                async for _, event in events:
                    begun = True
                    yield event
                    if event.name == "gone":
                        return
        except APIError as error:
            if error.status != 404 or not begun:
                raise
            yield Event("gone", {"code": code, "reason": "expired"})  # while the stream was broken

    async def listings(self, topic: str, *, limit: int | None = None) -> AsyncGenerator[Listing, None]:
        """A topic's listing now, and again whenever it may be another: by waiting, else by polling."""
        listing = await self.sessions(topic, wait_s=0, limit=limit)
        while True:
            yield listing
            if listing.cursor is None:
                await asyncio.sleep(back_off_s(0, POLL_S))
            listing = await self.sessions(
                topic, wait_s=WAIT_S if listing.cursor else 0, since=listing.cursor, limit=limit
            )

    async def news(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[News, None]:
        """What the other side sends, as soon as there is anything: by waiting, else by polling.

        Each time with those candidates only that have not come before. It fails when the session ends (404).
        """
        cursor: Token | None = None
        description: str | None = None
        seen = 0
        while True:
            found = await self.poll(code, side, wait_s=WAIT_S, since=cursor, secret=secret)
            # Without a cursor, the server has sent all of them.
            candidates = found.candidates if found.cursor else found.candidates[seen:]
            seen += len(candidates)
            cursor = found.cursor
            if candidates or found.description != description:
                description = found.description
                yield News(description, candidates, cursor)
            if cursor is None:
                await asyncio.sleep(back_off_s(0, POLL_S))

    async def _act(self, path: str, code: str, fields: Fields) -> tuple[str, Fields]:
        home = _home(code)
        body = {"code": code, **fields}
        return await self._servers.call("POST", path, body=body, at=home, anywhere=home is None)


def in_topic(topic: str, last: str) -> str:
    """The path of something in a topic, which is one segment of it whatever characters it has."""
    segment = quote(topic, safe="")
    return f"/{segment.replace('.', '%2E') if topic in ('.', '..') else segment}/{last}"


def _home(token: str | None) -> str | None:
    return token.server if isinstance(token, Token) else None


def _cursor(found: dict[str, Any], server: str) -> Token | None:
    return Token(found["cursor"], server) if "cursor" in found else None
