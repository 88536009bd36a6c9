"""Repeated polls, and the events that they show when a server is reached over HTTP only."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from .errors import TooLarge
from .tasks import back_off_s
from .types import Fields, StreamEvent, T

MAX_LISTING = 1000
MIN_POLL_S = 0.1  # between two polls of the same listing or session, after a burst
POLL_BURST = 20  # polls without a pause
POLL_S = 0.5  # between two polls of a server without long polling
WAIT_S = 45.0  # the server ends longer waits, because many proxies time out after 50 s

Result = tuple[Fields, str | None]  # the fields of a response, and its cursor
R = TypeVar("R", bound=tuple[Any, str | None])


async def repeat(poll: Callable[[float, str | None], Awaitable[R]]) -> AsyncGenerator[R, None]:
    """Yield the results of polls. Each waits for something newer than the cursor at the end of the previous result.

    A server can respond to each at once, and does so if it sends no cursor. So polls after a burst are delayed.
    """
    wait_s, cursor, due_s = 0.0, None, 0.0
    while True:
        result = await poll(wait_s, cursor)
        yield result
        cursor = result[-1]
        wait_s, pause_s = (WAIT_S, 0.0) if cursor else (0.0, back_off_s(0, POLL_S))
        now_s = time.monotonic()
        due_s = max(due_s, now_s - POLL_BURST * MIN_POLL_S) + MIN_POLL_S
        await asyncio.sleep(max(pause_s, due_s - now_s))


async def shrink(task: Callable[[], Awaitable[T]], fields: Fields) -> T:
    """Run a task, and again with a smaller `limit` in its fields while the response is too large."""
    while True:
        try:
            return await task()
        except TooLarge:
            if fields.get("limit", 1) == 1:
                raise
            fields["limit"] = max(1, fields["limit"] // 8)


async def poll_events(
    send: Callable[[str, Fields], Awaitable[Fields]], fields: Fields
) -> AsyncGenerator[StreamEvent, None]:
    """Poll a topic or session once, and return its events, which come from further polls.

    The events of a topic begin with `reset` and the listing. Those of a session are newer than its field `since`.
    """
    operation, events = ("sessions", _changes) if "topic" in fields else ("poll", _updates)
    if operation == "sessions":
        fields = {"topic": fields["topic"], "limit": MAX_LISTING}

    async def poll(wait_s: float, cursor: str | None) -> Result:
        more = {"wait": wait_s} | ({"since": cursor} if cursor else {})
        result = await shrink(lambda: send(operation, fields | more), fields)
        return result, result.get("cursor")

    results = repeat(poll)
    return events(await anext(results), results, fields)


async def _changes(
    first: Result, results: AsyncGenerator[Result, None], fields: Fields
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the listing, and how each further one differs from it."""
    (result, cursor), listed = first, set[str]()
    yield StreamEvent("reset", {}, None)
    async with aclosing(results):
        while True:
            sessions = {session["code"]: session for session in result["sessions"]}
            for code in listed - sessions.keys():
                yield StreamEvent("gone", {"code": code, "reason": "withdrawn"}, None)
            for code in sorted(sessions.keys() - listed, key=lambda code: sessions[code]["createdAt"]):
                yield StreamEvent("session", sessions[code], None)
            if result is first[0]:
                yield StreamEvent("", None, cursor or "")
            listed = set(sessions)
            result, cursor = await anext(results)


async def _updates(
    first: Result, results: AsyncGenerator[Result, None], fields: Fields
) -> AsyncGenerator[StreamEvent, None]:
    """Yield each description and each candidate once. Without a cursor, a result contains all candidates."""
    (result, cursor), seen = first, 0
    other = "answer" if fields["side"] == "offerer" else "offer"
    async with aclosing(results):
        while True:
            if result.get(other) is not None:
                yield StreamEvent(other, {other: result[other]}, cursor)
            candidates = result[f"{other}Candidates"][0 if cursor else seen :]
            seen += len(candidates)
            for candidate in candidates:
                yield StreamEvent("candidate", {"candidate": candidate}, cursor)
            result, cursor = await anext(results)
