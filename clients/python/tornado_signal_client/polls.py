"""The events of a topic or session from long polls, for servers that are reached over HTTP only."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from .errors import TooLarge
from .pacing import WAIT_S, Pace
from .types import Fields, StreamEvent, T

MAX_LISTING = 1000


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
async def polled(
    send: Callable[[str, Fields], Awaitable[Fields]], fields: Fields
) -> AsyncIterator[AsyncGenerator[StreamEvent, None]]:
    """Poll a topic or session once, and return its events, which come from further polls.

    The events of a topic begin with `reset` and the listing. Those of a session are newer than its field `since`.
    """
    if "topic" in fields:
        fields, operation, events = {"topic": fields["topic"], "limit": MAX_LISTING}, "sessions", _changes
    else:
        operation, events = "poll", _updates

    async def poll(**more: Any) -> Fields:
        return await shrink(lambda: send(operation, fields | more), fields)

    async def results(result: Fields) -> AsyncGenerator[Fields, None]:
        pace = Pace()
        while True:
            yield result
            cursor = result.get("cursor")
            await pace.wait(cursor)
            result = await poll(**({"wait": WAIT_S, "since": cursor} if cursor else {}))

    async with aclosing(results(await poll(wait=0))) as found:
        yield events(found, fields)


async def _changes(results: AsyncIterator[Fields], fields: Fields) -> AsyncGenerator[StreamEvent, None]:
    """Yield the listing, and how each further one differs from it."""
    listed: set[str] | None = None
    yield StreamEvent("reset", {}, None)
    async for result in results:
        sessions = {session["code"]: session for session in result["sessions"]}
        before, listed, is_first = listed or set(), set(sessions), listed is None
        for code in before - listed:
            yield StreamEvent("gone", {"code": code, "reason": "withdrawn"}, None)
        for code in sorted(listed - before, key=lambda code: sessions[code]["createdAt"]):
            yield StreamEvent("session", sessions[code], None)
        if is_first:
            yield StreamEvent("", None, result.get("cursor") or "")


async def _updates(results: AsyncIterator[Fields], fields: Fields) -> AsyncGenerator[StreamEvent, None]:
    """Yield each description and each candidate once. Without a cursor, a result contains all candidates."""
    other = "answer" if fields["side"] == "offerer" else "offer"
    seen = 0
    async for result in results:
        cursor = result.get("cursor")
        if result.get(other) is not None:
            yield StreamEvent(other, {other: result[other]}, cursor)
        candidates = result[f"{other}Candidates"] if cursor else result[f"{other}Candidates"][seen:]
        seen += len(candidates)
        for candidate in candidates:
            yield StreamEvent("candidate", {"candidate": candidate}, cursor)
