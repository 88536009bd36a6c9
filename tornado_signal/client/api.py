"""The API, call by call."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from .errors import APIError
from .events import follow
from .leases import LeaseManager
from .servers import Answer, Servers, back_off_s
from .types import (
    Closable,
    Event,
    Fields,
    Health,
    IceServers,
    Listing,
    Session,
    SessionUpdate,
    Side,
    StreamEvent,
    Token,
    Topics,
)

MAX_BATCH = 100
WAIT_S = 50.0  # below the minute after which many proxies give up
POLL_S = 0.5  # between two polls of a server that does not know waits
NOT_FOUND = "Session not found, expired, or origin mismatch"


class SignalClient(Closable):
    """A client of one server, or of several of which the first one that works is asked.

    Use it as an async context manager, or `close` it. A call that fails raises `APIError`.

    A session is on one server only: codes and cursors remember theirs. A code that comes from elsewhere is looked for
    on all of them.

    Args:
        servers: the address of a server, such as `https://signal.example`, or several.
        origin: the Origin of every request; by default that of a page which the first server has.
        retry_timeout_s: see below.
        websocket: whether to use the server's WebSocket, over which everything goes once something waits. Where it is
            refused, or does not open, HTTP is used in any case.

    Attributes:
        retry_timeout_s: how long to retry transient errors: no connection, 429, 502, 503 and 504. `Retry-After` is
            honoured. May be changed at any time.
    """

    def __init__(
        self,
        servers: str | Sequence[str] = "http://127.0.0.1:3000",
        origin: str | None = None,
        retry_timeout_s: float = 10.0,
        *,
        websocket: bool = True,
    ) -> None:
        self._servers = Servers([servers] if isinstance(servers, str) else servers, origin, retry_timeout_s, websocket)
        self._leases = LeaseManager(self._servers)

    async def close(self) -> None:
        """Close every connection to the servers."""
        self._leases.close()
        await self._servers.close()

    @property
    def retry_timeout_s(self) -> float:
        return self._servers.retry_timeout_s

    @retry_timeout_s.setter
    def retry_timeout_s(self, retry_timeout_s: float) -> None:
        self._servers.retry_timeout_s = retry_timeout_s

    async def wait_for_preferred_server(self, server: str) -> None:
        """Wait until a server works again that comes before this one in their order; it is asked first from then on."""
        await self._servers.wait_for_preferred_server(server)

    async def version(self) -> str:
        """GET /: the commit that the server was built from."""
        return cast(str, (await self._servers.call("version", {})).found["version"])

    async def health(self) -> Health:
        """GET /health."""
        return cast(Health, (await self._servers.call("health", {})).found)

    async def ice_servers(self) -> IceServers | None:
        """GET /ice-servers; None from a server that does not know it."""
        try:
            answer = await self._servers.call("iceServers", {})
        except APIError as error:
            if error.status != 404:
                raise
            return None
        return cast(IceServers, answer.found)

    async def topics(self, page: int = 1, limit: int = 100) -> Topics:
        """GET /topics: a page of the topics that have unanswered sessions, alphabetically."""
        return cast(Topics, (await self._servers.call("topics", {"page": page, "limit": limit})).found)

    async def sessions(
        self, topic: str, *, wait_s: float | None = None, since: str | None = None, limit: int | None = None
    ) -> Listing:
        """GET /:topic/sessions, with `wait_s` or `since` as soon as they are not those of `since`.

        A cursor of another server than the one that answers counts as none.
        """
        fields = {"topic": topic, "wait": wait_s, "since": since, "limit": limit}
        answer = await self._servers.call("sessions", fields)
        sessions = cast(list[Session], answer.found["sessions"])
        for session in sessions:
            session["code"] = Token(session["code"], answer.server)
        return Listing(sessions, _cursor(answer))

    async def offer(
        self,
        topic: str,
        info: str,
        offer: str,
        *,
        ttl_ms: int | None = None,
        secret: str | None = None,
        hold: bool = False,
    ) -> Token:
        """POST /:topic/offer; the session's code.

        It is not sent again when the connection breaks in the middle, as it might be published twice.

        With `hold` it lives as long as this client, until it is answered or withdrawn: held over the WebSocket, so that
        it is gone soon after this process is (contract C10), or else refreshed.
        """
        fields = {
            "topic": topic,
            "info": info,
            "offer": offer,
            "ttl": ttl_ms,
            "secret": secret,
            "hold": True if hold else None,
        }
        answer = await self._servers.call("offer", fields, again=False)
        code = Token(answer.found["code"], answer.server)
        if hold:
            self._leases.begin(code, secret, answer.connection)
        return code

    async def answer(self, code: str, answer: str, *, secret: str | None = None) -> None:
        """POST /answer, as the answerer.

        Raises:
            APIError: `lost_race` if another peer was first.
        """
        await self._act("answer", code, {"side": "answerer", "answer": answer, "secret": secret})

    async def candidates(self, code: str, side: Side, candidates: Sequence[str], *, secret: str | None = None) -> None:
        """POST /answer with `candidates`, 100 at a time; one by one at a server that does not know batches.

        When a connection breaks some may arrive twice, which does no harm.
        """
        for start in range(0, len(candidates), MAX_BATCH):
            batch = list(candidates[start : start + MAX_BATCH])
            fields = {"side": side, "secret": secret}
            try:
                await self._act("answer", code, {**fields, "candidates": batch})
            except APIError as error:
                if error.status != 400 or not error.text.endswith("answer or candidate"):
                    raise
                for each in batch:
                    await self._act("answer", code, {**fields, "candidate": each})

    async def poll(
        self, code: str, side: Side, *, wait_s: float | None = None, since: str | None = None, secret: str | None = None
    ) -> SessionUpdate:
        """POST /poll, with `wait_s` or `since` as soon as there is anything newer."""
        fields = {"side": side, "wait": wait_s, "since": since, "secret": secret}
        answer = await self._act("poll", code, fields)
        other = "answer" if side == "offerer" else "offer"
        if answer.found.get("answer") is not None:
            self._leases.forget(code)
        return SessionUpdate(answer.found[other], answer.found[f"{other}Candidates"], _cursor(answer))

    async def withdraw(self, code: str, side: Side, *, secret: str | None = None) -> None:
        """POST /withdraw: the session is no more.

        If the servers are unavailable for longer than `retry_timeout_s`, this fails. The withdrawal is then repeated
        in the background until the client is closed.
        """
        self._leases.forget(code)
        withdraw = functools.partial(self._act, "withdraw", code, {"side": side, "secret": secret})
        try:
            await withdraw()
        except APIError as error:
            if error.is_transient:
                self._leases.withdraw_later(code, withdraw)
            raise

    async def refresh(self, code: str, side: Side, *, secret: str | None = None) -> int:
        """POST /refresh: the session lives its time from now on; until when, in milliseconds."""
        answer = await self._act("refresh", code, {"side": side, "secret": secret})
        return cast(int, answer.found["expiresAt"])

    async def topic_events(self, topic: str, *, at: str | None = None) -> AsyncGenerator[Event, None]:
        """GET /:topic/events: `session` and `gone`, first of those that are there, for as long as the caller iterates.

        It resumes by itself. Where another server takes over, the sessions of the first are `gone`, `unreachable`.
        With `at`, the address of one of the servers, only that one is followed, and this fails when it is gone.
        """
        home = ""
        there: set[str] = set()
        async with aclosing(follow(self._servers, {"topic": topic}, at, lasting=at is None)) as events:
            async for server, event in events:
                if home and server != home:
                    for code in there:
                        yield Event("gone", {"code": code, "reason": "unreachable"})
                    there.clear()
                home = server
                told = Event(event.name, event.data or {})
                code = told.data["code"] = Token(told.data["code"], server)
                (there.add if told.name == "session" else there.discard)(code)
                yield told

    async def session_events(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[Event, None]:
        """GET /events: `offer`, `answer`, `candidate` of the other side, and `gone`, which is the last.

        It resumes by itself.
        """
        begun = False
        try:
            async with aclosing(self._session_events(code, side, secret, _home(code))) as events:
                async for event in events:
                    begun = True
                    yield Event(event.name, event.data or {})
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

    async def news(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[SessionUpdate, None]:
        """What the other side sends, as soon as there is anything: by an event, by waiting, else by polling.

        Each time with those candidates only that have not come before. It fails when the session ends (404).
        """
        home = _home(code) or self._servers.only
        if home is None or await self._servers.connection(home) is None:
            async with aclosing(self._polled(code, side, secret)) as all_news:
                async for news in all_news:
                    yield news
            return
        description: str | None = None
        async with aclosing(self._session_events(code, side, secret, home, lasting=False)) as events:
            async for event in events:
                told = event.data or {}
                if event.name == "gone":
                    raise APIError(404, NOT_FOUND)
                if event.name != "candidate":
                    description = told[event.name]
                candidates = [told["candidate"]] if event.name == "candidate" else []
                yield SessionUpdate(description, candidates, Token(event.cursor or "", home))

    async def _session_events(
        self, code: str, side: Side, secret: str | None, home: str | None, *, lasting: bool = True
    ) -> AsyncGenerator[StreamEvent, None]:
        fields = {"code": code, "side": side, "secret": secret}
        async with aclosing(follow(self._servers, fields, home, lasting=lasting)) as events:
            async for _, event in events:
                if event.name in ("answer", "gone"):
                    self._leases.forget(code)
                yield event

    async def _polled(self, code: str, side: Side, secret: str | None) -> AsyncGenerator[SessionUpdate, None]:
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
                yield SessionUpdate(description, candidates, cursor)
            if cursor is None:
                await asyncio.sleep(back_off_s(0, POLL_S))

    async def _act(self, operation: str, code: str, fields: Fields) -> Answer:
        home = _home(code)
        return await self._servers.call(operation, {"code": code, **fields}, at=home, anywhere=home is None)


def _home(token: str | None) -> str | None:
    return token.server if isinstance(token, Token) else None


def _cursor(answer: Answer) -> Token | None:
    return Token(answer.found["cursor"], answer.server) if "cursor" in answer.found else None
