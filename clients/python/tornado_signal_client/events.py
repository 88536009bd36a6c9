"""Event streams that resume after a broken connection."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from .errors import Foreign, SignalError
from .pacing import MAX_PAUSE_S, PAUSE_S, back_off_s
from .servers import Servers
from .shapes import SESSION_EVENTS, TOPIC_EVENTS, conforms
from .types import Fields, StreamEvent

RETRY_S = 1.0


async def follow(
    servers: Servers, fields: Fields, at: str | None = None, *, keep_retrying: bool = True
) -> AsyncGenerator[tuple[str, StreamEvent], None]:
    """Yield the events of a topic or session that have data, each with the server that sent it.

    Events of unknown types are left out. For a topic, an event with a cursor and no name ends a listing. `reset` begins
    a listing that replaces what was yielded before.

    A stream that cannot be opened for `retry_timeout_s` fails. A broken one is resumed after its last complete event.
    Attempts to resume it never end. Without `keep_retrying` they end after `retry_timeout_s` as well.
    """
    is_topic = "topic" in fields
    shapes = TOPIC_EVENTS if is_topic else SESSION_EVENTS
    current: str | None = None
    cursor: str | None = None
    resetting = False  # whether the listing after `reset` is incomplete
    retry_s = RETRY_S if keep_retrying else PAUSE_S
    attempt = 0
    waited_s = 0.0
    while True:
        pause_s = None
        opened_at_s = math.inf
        try:
            async with (
                servers.stream(fields, at, (current, cursor) if current else None) as (server, events),
                aclosing(events),
            ):
                if current != server:
                    current, cursor, resetting = server, None, False
                if resetting:
                    yield server, StreamEvent("reset", {}, None)
                opened_at_s = time.monotonic()
                waited_s = 0.0
                async for event in events:
                    attempt = 0
                    cursor = event.cursor or cursor
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
            if not error.retryable or (may_give_up and waited_s >= servers.retry_timeout_s):
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
