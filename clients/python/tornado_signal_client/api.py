"""The client's methods for single requests and event streams."""

import asyncio
import contextlib
import functools
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import cast

from .errors import SignalError, refused
from .polls import MAX_LISTING, repeat, shrink
from .rpc import RpcConnection
from .servers import Response, Servers
from .tasks import back_off_s, retry
from .types import (
    Event,
    Fields,
    Health,
    IceServers,
    Listing,
    Rooms,
    RoomSummary,
    Session,
    SessionUpdate,
    Side,
    StreamEvent,
    Token,
    Topics,
    check_type,
)

ROOM = "room~"  # prefix of a room's topic on the server, so that `join` cannot answer a beacon
ESCAPED = re.compile(r"[^\w .\-\x80-\ud7ff\ue000-\U0010ffff]", re.ASCII)  # proxies change or refuse some of them
UNESCAPED = re.compile("~([0-9a-f]{1,5}|10[0-9a-f]{4})~")
MAX_BATCH = 100
REFRESH_S = 40.0  # between two refreshes of a held offer over HTTP
TTL_MS = 120_000  # how long the offer of a peer outlives it, if it disappears without withdrawing
NOT_FOUND = "Session not found, expired, or origin mismatch"


def topic_of(room: str) -> str:
    return ROOM + ESCAPED.sub(lambda match: f"~{ord(match[0]):x}~", room)


def room_of(topic: str) -> str:
    return UNESCAPED.sub(lambda match: chr(int(match[1], 16)), topic.removeprefix(ROOM))


def new_secret() -> str:
    """Return a random secret for one side of one session."""
    return secrets.token_urlsafe(24)


class SignalClient(Servers):
    """A client of one or several servers. Requests go to the first server that works.

    Use it as an async context manager, or `close` it. A failed request raises `SignalError`.

    A session exists on one server only, which its codes and cursors record. A code from elsewhere, a plain string, is
    searched on all servers.

    Args:
        servers: the address of a server, such as `https://signal.example`, or several addresses.
        origin: the Origin of every request, by default the origin of the first server.
        retry_timeout_s: the initial value of the attribute.
        websocket: whether to use the server's WebSocket for all requests once one of them waits. If the WebSocket is
            refused or does not open, HTTP is used.
        token: the token of every request, or a function that returns one (docs/authorization.md). A function can be
            asynchronous. It is called again before its token expires, and when the server refuses it (401).

    Attributes:
        retry_timeout_s: how long to retry transient errors: no connection, 429, 502, 503 and 504. `Retry-After` is
            honoured. May be changed at any time.
    """

    _max_listing = MAX_LISTING  # or what fits into a response

    async def version(self) -> str:
        """Send GET / and return the commit that the server was built from."""
        return cast(str, (await self._call("version", {})).result["version"])

    async def health(self) -> Health:
        return cast(Health, (await self._call("health", {})).result)

    async def ice_servers(self) -> IceServers | None:
        """Send GET /ice-servers. Return None if the server does not support it."""
        try:
            response = await self._call("iceServers", {})
        except SignalError as error:
            if error.code != "not-found":
                raise
            return None
        self._wants_reports = bool(response.result.get("reports"))
        return cast(IceServers, response.result)

    async def nearby(self) -> str:
        """Send GET /nearby and return the topic, or name of a room, that only clients of the same network get."""
        return cast(str, (await self._call("nearby", {})).result["topic"])

    async def topics(self, page: int = 1, limit: int = 100, *, prefix: str | None = None) -> Topics:
        """Send GET /topics and return a page of the topics with unanswered sessions, in alphabetical order.

        With `prefix`, only topics that begin with it are listed and counted.
        """
        fields = {"page": page, "limit": limit, "prefix": prefix}
        return cast(Topics, (await self._call("topics", fields)).result)

    async def rooms(self, page: int = 1, limit: int = 100, *, prefix: str = "") -> Rooms:
        """Return a page of the rooms with members, in alphabetical order.

        With `prefix`, only rooms whose names begin with it are listed and counted.
        """
        found = await self.topics(page, limit, prefix=topic_of(prefix))
        rooms: list[RoomSummary] = [
            {"name": room_of(topic["topic"]), "members": topic["count"]} for topic in found["topics"]
        ]
        return {"rooms": rooms, "pagination": found["pagination"]}

    async def sessions(
        self, topic: str, *, wait_s: float | None = None, since: str | None = None, limit: int | None = None
    ) -> Listing:
        """Send GET /:topic/sessions. With `wait_s` or `since`, wait until the listing differs from that of `since`.

        The newest `limit` sessions are listed, at most 1000. Fewer are listed if these have more than 16 MiB. A cursor
        that another server has issued is ignored.
        """
        limit = min(limit or MAX_LISTING, self._max_listing)
        fields: Fields = {"topic": topic, "wait": wait_s, "since": since, "limit": limit}
        response = await shrink(lambda: self._call("sessions", fields), fields)
        if fields["limit"] < limit:
            self._max_listing = fields["limit"]
        sessions = cast(list[Session], response.result["sessions"])
        for session in sessions:
            session["code"] = Token(session["code"], response.server)
        return Listing(sessions, _cursor(response))

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
        """Send POST /:topic/offer and return the session's code.

        The request is not repeated after the connection breaks, because the offer could be published twice. It is
        repeated after 502, 503 and 504 (docs/decisions.md#repeated-offers).

        With `hold` the offer exists until it is answered or withdrawn, or this client is closed. The WebSocket holds
        it, so that it is withdrawn soon after this process exits (docs/websocket-api.md#held-offers). Without a
        WebSocket it is refreshed.
        """
        fields = {"topic": topic, "info": info, "offer": offer, "ttl": ttl_ms, "secret": secret, "hold": hold or None}
        response = await self._call("offer", fields, once=True)
        code = Token(response.result["code"], response.server)
        if hold:
            self._tasks.start(self._maintain(code, secret, response.connection), code)
        return code

    async def _maintain(self, code: Token, secret: str | None, connection: RpcConnection | None) -> None:
        """Keep an offer: a WebSocket holds it, the next one takes it over, and without one the offer is refreshed."""
        with contextlib.suppress(SignalError):  # the offer was removed
            while True:
                if connection is None:
                    await asyncio.sleep(REFRESH_S)
                else:
                    with connection.count_held():
                        await connection.closed.wait()
                await asyncio.sleep(back_off_s(0))
                connection = await retry(functools.partial(self._renew, code, secret))

    async def _renew(self, code: Token, secret: str | None) -> RpcConnection | None:
        """Hold an offer over the current connection and return it. Without one, refresh the offer and return None."""
        connection = await self._connection(code.server)
        if connection is not None and connection.can_hold:
            await connection.call("hold", {"code": code} | ({} if secret is None else {"secret": secret}))
            return connection
        await self.refresh(code, "offerer", secret=secret)
        return None

    async def _publish(self, topic: str, info: str, offer: str, secret: str) -> Token:
        """Hold an offer that outlives this process for `TTL_MS`, and return its code. If cancelled, withdraw it."""
        publish = functools.partial(self.offer, topic, info, offer, secret=secret, hold=True)

        async def publish_with_ttl() -> Token:
            try:
                return await publish(ttl_ms=TTL_MS)
            except SignalError as error:
                if error.status != 400 or not error.text.endswith("ttl"):
                    raise
                return await publish()  # `TTL_MS` exceeds the server's limit

        publishing = asyncio.create_task(publish_with_ttl())
        try:
            return await asyncio.shield(publishing)
        except asyncio.CancelledError:
            with contextlib.suppress(SignalError):
                await self._try_to_withdraw(await publishing, secret)
            raise

    async def _try_to_withdraw(self, code: str, secret: str) -> None:
        """Withdraw an offer. `withdraw` repeats it in the background after a transient error."""
        with contextlib.suppress(SignalError):
            await self.withdraw(code, "offerer", secret=secret)

    async def answer(self, code: str, answer: str, *, secret: str | None = None) -> None:
        """Send POST /answer as the answerer. If another peer has answered first, the error has `lost_race`."""
        await self._call_session("answer", code, {"side": "answerer", "answer": answer, "secret": secret})

    async def candidates(self, code: str, side: Side, candidates: Sequence[str], *, secret: str | None = None) -> None:
        """Send POST /answer with `candidates`, 100 at a time, or one at a time to a server without batches.

        After a broken connection some candidates can arrive twice, which is harmless.
        """
        for candidate in check_type("candidates", candidates, list, tuple):
            check_type("a candidate", candidate, str)
        for start in range(0, len(candidates), MAX_BATCH):
            batch = list(candidates[start : start + MAX_BATCH])
            fields = {"side": side, "secret": secret}
            try:
                await self._call_session("answer", code, {**fields, "candidates": batch})
            except SignalError as error:
                if error.status != 400 or not error.text.endswith("answer or candidate"):
                    raise
                for candidate in batch:
                    await self._call_session("answer", code, {**fields, "candidate": candidate})

    async def poll(
        self, code: str, side: Side, *, wait_s: float | None = None, since: str | None = None, secret: str | None = None
    ) -> SessionUpdate:
        """Send POST /poll. With `wait_s` or `since`, wait for anything newer than `since`."""
        fields = {"side": side, "wait": wait_s, "since": since, "secret": secret}
        response = await self._call_session("poll", code, fields)
        other = "answer" if side == "offerer" else "offer"
        if response.result.get("answer") is not None:
            self._tasks.end(code)
        return SessionUpdate(response.result.get(other), response.result[f"{other}Candidates"], _cursor(response))

    async def withdraw(self, code: str, side: Side, *, secret: str | None = None) -> None:
        """Send POST /withdraw to remove the session.

        If the servers are unavailable for longer than `retry_timeout_s`, this fails. The withdrawal is then repeated
        in the background until the client is closed.
        """
        self._tasks.end(code)
        withdraw = functools.partial(self._call_session, "withdraw", code, {"side": side, "secret": secret})
        try:
            await withdraw()
        except SignalError as error:
            if error.retryable:
                self._tasks.start(self._retry_withdrawal(withdraw), code)
            raise

    async def _retry_withdrawal(self, withdraw: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(back_off_s(0))
        with contextlib.suppress(SignalError):  # the session was removed
            await retry(withdraw)

    async def refresh(self, code: str, side: Side, *, secret: str | None = None) -> int:
        """Send POST /refresh to restart the session's lifetime. Return the new expiry, Unix milliseconds."""
        response = await self._call_session("refresh", code, {"side": side, "secret": secret})
        return cast(int, response.result["expiresAt"])

    async def topic_events(self, topic: str, *, at: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the `session` and `gone` events of GET /:topic/events, beginning with the current sessions.

        The events resume automatically. Without a WebSocket they come from long polls of the newest 1000 sessions, and
        the reason of `gone` is always `withdrawn`. When another server takes over, the sessions of the previous one are
        reported as `gone` with the reason `unreachable`. With `at`, only the server at that address is used, and the
        iteration fails when it becomes unavailable.
        """
        previous_server = ""
        listed: dict[Token, int] = {}  # the sessions and when they expire
        missing: set[Token] | None = None  # of these, those that a listing after `reset` has not contained so far
        async with aclosing(self._follow({"topic": topic}, at, keep_retrying=at is None)) as events:
            async for server, event in events:
                if previous_server and server != previous_server:
                    for code in listed:
                        yield Event("gone", {"code": code, "reason": "unreachable"})
                    listed.clear()
                    missing = None
                previous_server = server
                if event.name == "reset":
                    missing = set(listed)
                    continue
                if not event.name:
                    for code in missing or ():
                        del listed[code]
                        yield Event("gone", {"code": code, "reason": "withdrawn"})
                    missing = None
                    continue
                change = Event(event.name, event.data or {})
                code = change.data["code"] = Token(change.data["code"], server)
                if missing is not None:
                    missing.discard(code)
                    if change.name == "session" and listed.get(code) == change.data["expiresAt"]:
                        continue  # it is known, and unchanged
                if change.name == "session":
                    listed[code] = change.data["expiresAt"]
                else:
                    listed.pop(code, None)
                yield change

    async def session_events(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[Event, None]:
        """Yield the events of GET /events: the other side's `offer`, `answer` and `candidate`, and finally `gone`.

        The stream resumes automatically.
        """
        started = False
        try:
            async with aclosing(self._session_events(code, side, secret)) as events:
                async for _, event in events:
                    started = True
                    yield Event(event.name, event.data or {})
                    if event.name == "gone":
                        return
        except SignalError as error:
            if error.status != 404 or not started:
                raise
            yield Event("gone", {"code": code, "reason": "expired"})  # the session expired while it could not be read

    def listings(self, topic: str, *, limit: int | None = None) -> AsyncGenerator[Listing, None]:
        """Yield the listing of a topic, and again whenever it may have changed, by long polling or polling."""
        return repeat(lambda wait_s, since: self.sessions(topic, wait_s=wait_s, since=since, limit=limit))

    async def news(self, code: str, side: Side, *, secret: str | None = None) -> AsyncGenerator[SessionUpdate, None]:
        """Yield what the other side sends, from a subscription, long polling or polling.

        Each item has only new candidates. The iteration raises `SignalError` (404) when the session is removed.
        """
        description: str | None = None
        async with aclosing(self._session_events(code, side, secret, keep_retrying=False)) as events:
            async for server, event in events:
                data = event.data or {}
                if event.name == "gone":
                    raise refused(404, NOT_FOUND)
                if event.name != "candidate":
                    description = data[event.name]
                candidates = [data["candidate"]] if event.name == "candidate" else []
                yield SessionUpdate(description, candidates, Token(event.cursor, server) if event.cursor else None)

    async def _session_events(
        self, code: str, side: Side, secret: str | None, *, keep_retrying: bool = True
    ) -> AsyncGenerator[tuple[str, StreamEvent], None]:
        """Yield the events of a session, each description once, and the server that has the session."""
        fields = {"side": side, "secret": secret}
        only = self._urls[0] if len(self._urls) == 1 else None
        server = getattr(code, "server", None) or only or (await self._call_session("poll", code, fields)).server
        description: Fields | None = None
        fields["code"] = code
        async with aclosing(self._follow(fields, server, keep_retrying=keep_retrying)) as events:
            async for _, event in events:
                if event.name in ("answer", "gone"):
                    self._tasks.end(code)
                if event.name in ("offer", "answer"):
                    if event.data == description:  # polls that begin again repeat it
                        continue
                    description = event.data
                yield server, event

    async def _call_session(self, operation: str, code: str, fields: Fields) -> Response:
        """Send a request about a session to the server of its code. A plain text is tried on each server."""
        server = getattr(code, "server", None)
        return await self._call(operation, {"code": code, **fields}, at=server, any_server=server is None)


def _cursor(response: Response) -> Token | None:
    cursor = response.result.get("cursor")
    return None if cursor is None else Token(cursor, response.server)
