"""The events of a topic or session from long polls, for servers that are reached over HTTP only."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

from .errors import TooLarge
from .pacing import POLL_S, WAIT_S, Pace, back_off_s
from .types import Fields, StreamEvent, T

MAX_LISTING = 1000


class _Response(Protocol):
    @property
    def result(self) -> Fields: ...


Send = Callable[[str, Fields], Awaitable[_Response]]
Events = AsyncGenerator[StreamEvent, None]


async def shrink(task: Callable[[], Awaitable[T]], fields: Fields) -> T:
    """Run a task, and again with a smaller `limit` in its fields while the response is too large."""
    while True:
        try:
            return await task()
        except TooLarge:
            if fields.get("limit", 1) == 1:
                raise
            fields["limit"] = max(1, fields["limit"] // 8)


@contextlib.asynccontextmanager
async def polled(send: Send, fields: Fields, since: str | None) -> AsyncIterator[Events]:
    """Poll a topic or session once, and return its events, which come from further polls.

    The events of a topic begin with `reset` and the listing. Those of a session are newer than `since`.
    """
    if "topic" in fields:
        fields, events, operation = {**fields, "limit": MAX_LISTING}, _changes, "sessions"
    else:
        fields, events, operation = fields | ({"since": since} if since else {}), _updates, "poll"

    async def poll(**more: Any) -> Fields:
        return (await shrink(lambda: send(operation, fields | more), fields)).result

    async def results(result: Fields) -> AsyncGenerator[Fields, None]:
        pace = Pace()
        while True:
            yield result
            await pace.wait()
            if (cursor := result.get("cursor")) is None:
                await asyncio.sleep(back_off_s(0, POLL_S))
            result = await poll(**({"wait": WAIT_S, "since": cursor} if cursor else {}))

    async with aclosing(results(await poll(wait=0))) as found:
        yield events(found, fields)


async def _changes(results: AsyncIterator[Fields], fields: Fields) -> Events:
    """Yield the listing, and how each further one differs from it."""
    listed: set[str] = set()
    is_first = True
    async for result in results:
        sessions = {session["code"]: session for session in result["sessions"]}
        if is_first:
            yield StreamEvent("reset", {}, None)
        for code in listed - sessions.keys():
            yield StreamEvent("gone", {"code": code, "reason": "withdrawn"}, None)
        for code in sorted(sessions.keys() - listed, key=lambda code: sessions[code]["createdAt"]):
            yield StreamEvent("session", sessions[code], None)
        if is_first:
            yield StreamEvent("", None, result.get("cursor") or "")
        listed = set(sessions)
        is_first = False


async def _updates(results: AsyncIterator[Fields], fields: Fields) -> Events:
    """Yield each description and each candidate once. Without a cursor, a result contains all candidates."""
    other = "answer" if fields["side"] == "offerer" else "offer"
    seen = 0
    async for result in results:
        cursor = result.get("cursor")
        if result[other] is not None:
            yield StreamEvent(other, {other: result[other]}, cursor)
        candidates = result[f"{other}Candidates"] if cursor else result[f"{other}Candidates"][seen:]
        seen += len(candidates)
        for candidate in candidates:
            yield StreamEvent("candidate", {"candidate": candidate}, cursor)
