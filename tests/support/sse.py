"""A client for Server-Sent Events that records the events."""

import asyncio
import contextlib
import json
from typing import NamedTuple

from tornado import httputil

from .service import ORIGIN, connected, request

BOUND_S = 20


class Event(NamedTuple):
    name: str
    data: dict
    id: str


class Stream:
    def __init__(self, connection):
        self._connection, self._read = connection, b""
        self.events, self.comments = [], 0  # read so far
        self.marks = 0  # the number of ids without an event
        self.last = None  # the Last-Event-ID that a browser would send
        self.retry_ms = None  # the time after which a browser would come back
        self.ended = False  # whether the server has ended the stream properly

    async def begin(self):
        block = (await self._connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, _, rest = block.partition("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = httputil.HTTPHeaders.parse(rest)
        return self

    async def _block(self):
        while b"\n\n" not in self._read:
            size = int(await self._connection.reader.readline(), 16)
            self._read += await self._connection.reader.readexactly(size)
            assert await self._connection.reader.readexactly(2) == b"\r\n"
            if not size:
                assert self._read == b"", "the stream ended in the middle of an event"
                self.ended = True
                return None
        block, self._read = self._read.split(b"\n\n", 1)
        return block.decode()

    async def next(self):
        block = await self._block()
        if block is None:
            return False
        fields = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            assert name not in fields, block
            fields[name] = value.removeprefix(" ")
        if "retry" in fields:
            self.retry_ms = int(fields.pop("retry"))
        if not fields:
            return True
        if "" in fields:
            assert fields == {"": ""}, block
            self.comments += 1
            return True
        self.last = fields["id"]
        if set(fields) == {"id"}:
            self.marks += 1
        else:
            assert set(fields) == {"event", "id", "data"}, block
            self.events.append(Event(fields["event"], json.loads(fields["data"]), fields["id"]))
        return True

    async def until(self, done):
        async with asyncio.timeout(BOUND_S):
            while not done() and await self.next():
                pass
        assert done(), self.events
        return self

    async def take(self, count=1):
        before = len(self.events)
        await self.until(lambda: len(self.events) == before + count)
        return self.events[before:]

    async def listing(self):
        """Return the events of the listing at the beginning of a topic's stream, which a bare id ends."""
        await self.until(lambda: self.marks)
        return list(self.events)

    async def rest(self):
        before = len(self.events)
        await self.until(lambda: self.ended)
        return self.events[before:]

    async def comment(self):
        """Read up to the next comment, before which no event may arrive."""
        before, events = self.comments, len(self.events)
        await self.until(lambda: self.comments > before)
        assert len(self.events) == events


@contextlib.asynccontextmanager
async def open_stream(port, target, *, last=None, origin=ORIGIN, method="GET", headers=(), tls=None):
    """Open a stream of a server on this machine. `last` is the Last-Event-ID, `tls` an SSLContext for HTTPS."""
    async with connected(port, tls) as connection:
        headers = [*headers, *([("Last-Event-ID", last)] if last is not None else [])]
        await connection.send(request(method, target, origin=origin, headers=headers))
        async with asyncio.timeout(BOUND_S):
            stream = await Stream(connection).begin()
        yield stream


def summarize(events):
    return [(event.name, *(event.data[name] for name in ("code", "reason") if name in event.data)) for event in events]
