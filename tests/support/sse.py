"""A client of Server-Sent Events for the tests: it reads a stream as a browser would, and keeps what it has read."""

import asyncio
import contextlib
import json
from typing import NamedTuple

from tornado import httputil

from .service import ORIGIN, Connection, head, with_origin

BOUND_S = 20


class Event(NamedTuple):
    """One event, as it came."""

    name: str
    data: dict
    id: str


class Stream:
    """A response that goes on.

    Attributes:
        status: of the response.
        headers: of the response.
        events: those read so far.
        comments: how many comments were read so far, the one at the beginning included.
        marks: how many ids were read so far that came without an event.
        last: what a browser would send as Last-Event-ID by now; None if no id has come.
        retry_ms: after what time a browser would come back by now.
        ended: whether the server has ended it, in good order.
    """

    def __init__(self, connection):
        self._connection = connection
        self._read = b""
        self.events = []
        self.comments = 0
        self.marks = 0
        self.last = None
        self.retry_ms = None
        self.ended = False

    async def begin(self):
        """Read the head."""
        block = (await self._connection.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, _, rest = block.partition("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = httputil.HTTPHeaders.parse(rest)
        return self

    async def _block(self):
        """Read until an empty line; None at the end."""
        while b"\n\n" not in self._read:
            size = int(await self._connection.reader.readline(), 16)
            self._read += await self._connection.reader.readexactly(size)
            assert await self._connection.reader.readexactly(2) == b"\r\n"
            if not size:
                assert self._read == b"", "it ends in the middle of an event"
                self.ended = True
                return None
        block, self._read = self._read.split(b"\n\n", 1)
        return block.decode()

    async def next(self):
        """Read the next block; whether there was one."""
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
        """Read until `done()`, at most to the end."""
        async with asyncio.timeout(BOUND_S):
            while not done() and await self.next():
                pass
        assert done(), self.events
        return self

    async def take(self, count=1):
        """Read so many more events; they."""
        before = len(self.events)
        await self.until(lambda: len(self.events) == before + count)
        return self.events[before:]

    async def listing(self):
        """Read the listing that a topic's stream begins with, up to the bare id behind it; its events."""
        await self.until(lambda: self.marks)
        return list(self.events)

    async def rest(self):
        """Read to the end; the events that were left."""
        before = len(self.events)
        await self.until(lambda: self.ended)
        return self.events[before:]

    async def comment(self):
        """Read up to the next comment, before which no event may come."""
        before, events = self.comments, len(self.events)
        await self.until(lambda: self.comments > before)
        assert len(self.events) == events


@contextlib.asynccontextmanager
async def open_stream(port, target, *, last=None, origin=ORIGIN, method="GET", tls=None):
    """A stream of a server on this machine, its head read.

    Args:
        port: the server's.
        target: path and query.
        last: the Last-Event-ID; None for none.
        origin: the Origin.
        method: GET or HEAD.
        tls: an SSLContext, for HTTPS.
    """
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
    try:
        headers = [("Last-Event-ID", last)] if last is not None else []
        await connection.send(head(method, target, with_origin(origin, headers)))
        async with asyncio.timeout(BOUND_S):
            stream = await Stream(connection).begin()
        yield stream
    finally:
        (connection.writer.transport.abort if tls else connection.close)()  # TLS would wait for a farewell


def told(events):
    """What events say in short: pairs of name and code, `gone` with its reason."""
    return [(each.name, each.data["code"], *([each.data["reason"]] if each.name == "gone" else [])) for each in events]
