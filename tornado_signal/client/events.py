"""A stream of events that goes on where it broke off."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from .errors import APIError
from .servers import MAX_PAUSE_S, PAUSE_S, Servers, back_off_s
from .types import Fields, StreamEvent

RETRY_S = 1.0


async def follow(
    servers: Servers, fields: Fields, at: str | None = None, *, lasting: bool = True
) -> AsyncGenerator[tuple[str, StreamEvent], None]:
    """The events of a topic or of a session, each with the server that it came from; each has data.

    A stream that breaks is resumed after its last complete event, for as long as the caller iterates. Only a stream
    that cannot be opened for `retry_timeout_s` fails; without `lasting`, also one that cannot be resumed for as long.

    Raises:
        APIError: the stream is refused, or is not one of this API.
    """
    home: str | None = None
    last: str | None = None
    retry_s = first_s = RETRY_S if lasting else PAUSE_S
    attempt = 0
    waited_s = 0.0
    while True:
        pause_s = None
        opened_s = math.inf
        try:
            async with (
                servers.stream(fields, at, (home, last) if home else None) as (server, events),
                aclosing(events),
            ):
                if home != server:
                    home, last, retry_s = server, None, first_s
                opened_s = time.monotonic()
                waited_s = 0.0
                async for event in events:
                    attempt = 0
                    last = event.cursor or last
                    if event.retry_s is not None:
                        retry_s = event.retry_s
                    if event.data is not None:
                        yield server, event
        except APIError as error:
            if error.status == 400 and last:  # the server does not know this cursor: it has a new database
                last = None
                continue
            if not error.is_transient or ((home is None or not lasting) and waited_s >= servers.retry_timeout_s):
                raise
            pause_s = error.retry_after_s
        if time.monotonic() - opened_s > MAX_PAUSE_S:  # it was a good one, even if nothing has come
            attempt = 0
        pause_s = back_off_s(attempt, retry_s) if pause_s is None else pause_s
        attempt += 1
        waited_s += pause_s
        await asyncio.sleep(pause_s)
