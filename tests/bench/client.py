"""A client with one request at a time for each connection. It parses only a response's end."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import contextmanager
from urllib.parse import urlsplit

import orjson
from hostile import wire

from .processes import BenchError
from .sockets import ORIGIN

PATIENCE_S = 120.0
# Text of the sizes that browsers send, without JSON escapes, that no store compresses away.
NOISE = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(125))
OFFER = {"info": "i" * 36, "offer": NOISE[:500]}

Done = Callable[[int, bytes], None]


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""
        self._done: Done | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, data: bytes, done: Done) -> None:
        """Send a request. `done` is called with status and body, or with 0 and an empty body without a response."""
        if self._transport.is_closing():
            done(0, b"")
            return
        self._done = done
        self._transport.write(data)

    async def ask(self, data: bytes) -> dict:
        """Send a request and return the JSON of its response, which must be a success."""
        answered = asyncio.get_running_loop().create_future()
        self.send(data, lambda *found: answered.done() or answered.set_result(found))
        status, body = await answered
        if status not in (200, 204):
            line = data.partition(b"\r\n")[0].decode()
            raise BenchError(f"{line} was answered with {status or 'the end of the connection'} {body[:200]!r}")
        return orjson.loads(body or b"{}")

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        fields = head.lower()
        at = fields.find(b"\r\ncontent-length:")
        if at >= 0:
            length = int(fields[at + 17 :].partition(b"\r\n")[0])
            if len(rest) < length:
                return
            body = rest[:length]
        elif b"\r\ntransfer-encoding: chunked" in fields:
            if not rest.endswith(b"0\r\n\r\n"):
                return
            body = _unchunked(rest)
        else:
            body = b""
        self._received = b""
        self._finish(int(head[9:12]), body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(0, b"")

    def _finish(self, status: int, body: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status, body)


def _unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body += data[:length]
        data = data[length + 2 :]
    return body


async def connect(base: str, count: int, address: str | None = None) -> list[Connection]:
    """Open connections, optionally from a local address."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(base)
    where = {"host": parts.hostname, "port": parts.port, "local_addr": (address, 0) if address else None}
    try:
        return [(await loop.create_connection(Connection, **where))[1] for _ in range(count)]
    except OSError as error:
        raise BenchError(f"cannot connect to {base}: {error}") from error


@contextmanager
def quiet():
    """Disable garbage collection, which would pause this process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def offer(topic: str) -> bytes:
    return wire.request("POST", f"/{topic}/offer", OFFER, origin=ORIGIN)


async def create(base: str, topics: list[str]) -> list[str]:
    """Publish one offer in each of the topics, and return the codes."""
    connections = await connect(base, min(len(topics), 32))
    waiting = list(enumerate(topics))
    codes = [""] * len(topics)

    async def work(connection: Connection) -> None:
        while waiting:
            at, topic = waiting.pop()
            codes[at] = (await connection.ask(offer(topic)))["code"]

    await asyncio.wait_for(asyncio.gather(*map(work, connections)), PATIENCE_S)
    for connection in connections:
        connection.close()
    return codes


def percentile(latencies_s: list[float], share: float) -> float:
    """Return the latency, in ms, that a share of the requests did not exceed."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
