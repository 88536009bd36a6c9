"""A stream of events that goes on where it broke off."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from .errors import APIError
from .servers import FOREIGN, Servers, back_off_s, json_object
from .types import Event

RETRY_S = 1.0


async def follow(
    servers: Servers, path: str, query: dict[str, Any], at: str | None = None
) -> AsyncGenerator[tuple[str, Event], None]:
    """The events of a stream, each with the server that it came from.

    A stream that breaks is resumed after its last complete event, for as long as the caller iterates. Only a stream
    that cannot be opened for `patience_s` fails.

    Raises:
        APIError: the stream is refused, or is not one of this API.
    """
    home: str | None = None
    last_id: str | None = None
    retry_s = RETRY_S
    attempt = 0
    waited_s = 0.0
    while True:
        pause_s = None
        try:
            async with (
                servers.stream(path, query, at, (home, last_id) if home else None) as (server, events),
                aclosing(events),
            ):
                if home != server:
                    home, last_id, retry_s = server, None, RETRY_S
                async for sse in events:
                    attempt = 0
                    last_id = sse.id or last_id
                    if sse.retry is not None:
                        retry_s = sse.retry / 1000
                    if not sse.data:
                        continue
                    data = json_object(sse)
                    if data is None:
                        raise APIError(200, FOREIGN)
                    yield server, Event(sse.event, data)
        except APIError as error:
            if error.status == 400 and last_id:  # the server does not know this id: it has a new database
                last_id = None
                continue
            if not error.passing or (home is None and waited_s >= servers.patience_s):
                raise
            pause_s = error.retry_after_s
        pause_s = back_off_s(attempt, retry_s) if pause_s is None else pause_s
        attempt += 1
        waited_s += pause_s
        await asyncio.sleep(pause_s)
