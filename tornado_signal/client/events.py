"""Server-Sent Events: bytes into events, and a stream that goes on where it broke off."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

from .errors import SignalError
from .servers import Servers, back_off_s
from .types import Event

RETRY_S = 1.0
_LINE = re.compile(rb"\r\n|\n|\r(?=[^\n])")  # a CR at the end may be half of a CR LF


class Parser:
    """What has come of a stream so far.

    Attributes:
        last_id: what to show as Last-Event-ID; None if there was none.
        retry_s: how long to wait before coming back, unless it happens again and again.
    """

    def __init__(self) -> None:
        self.last_id: str | None = None
        self.retry_s = RETRY_S
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes as they come, split anywhere; the events that end in them."""
        *lines, self._rest = _LINE.split(self._rest + data)
        return [event for line in lines if (event := self._take(line.decode("utf-8", "replace"))) is not None]

    def broken(self) -> None:
        """Forget the beginning of an event: the stream has broken off."""
        self._rest, self._fields = b"", {}

    def _take(self, line: str) -> Event | None:
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data" and "data" in self._fields:
                value = f"{self._fields['data']}\n{value}"
            self._fields[name] = value
            return None
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id", self.last_id)
        if (retry := fields.get("retry", "")).isdecimal():
            self.retry_s = int(retry) / 1000
        if "data" not in fields:
            return None
        data = json.loads(fields["data"])
        return Event(fields.get("event", "message"), data if isinstance(data, dict) else {})


async def follow(
    servers: Servers, path: str, query: dict[str, Any], at: str | None = None
) -> AsyncGenerator[tuple[str, Event], None]:
    """The events of a stream, each with the server that it came from.

    It ends when the server has ended it after a `gone` of a session's own stream. What breaks is resumed, for as long
    as somebody iterates; only if it cannot be begun for `patience_s` it fails.

    Raises:
        SignalError: it is refused.
    """
    parser = Parser()
    home: str | None = None
    attempt = 0
    waited_s = 0.0
    while True:
        pause_s = None
        try:
            async with servers.stream(path, query, at, (home, parser.last_id) if home else None) as (server, pieces):
                if home != server:
                    home, parser = server, Parser()
                async for piece in pieces:
                    attempt = 0
                    for event in parser.feed(piece):
                        yield server, event
        except SignalError as error:
            if error.status == 400 and parser.last_id:  # not an id of this server's, which has begun anew
                parser.last_id = None
                continue
            if not error.passing or (home is None and waited_s >= servers.patience_s):
                raise
            pause_s = error.retry_after_s
        parser.broken()
        pause_s = back_off_s(attempt, parser.retry_s) if pause_s is None else pause_s
        attempt += 1
        waited_s += pause_s
        await asyncio.sleep(pause_s)
