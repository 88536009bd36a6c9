"""The client end of WebSockets, with little CPU cost of its own."""

import asyncio
import itertools
import os
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import orjson
from hostile import wire
from support import frame_vectors

from .processes import BenchError

TEXT: Final = 0x81
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A
UPGRADE: Final = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n"
    "Sec-WebSocket-Version: 13\r\n"
)
CLOSED: Final = "a server has closed a connection"
OPENED_AT_ONCE: Final = 200
ORIGIN: Final = "http://bench.example"


class WebSocket(asyncio.Protocol):
    """The client end of a WebSocket. It sends frames that `frame` returns, and counts the texts that it receives.

    `on_text` gets each text. Without it, `next` returns them one after the other. `code` is the server's close code.
    """

    def __init__(self, on_text: Callable[[bytes], object] | None = None) -> None:
        self.code: int | None = None
        self.messages, self.last_s = 0, 0.0  # the number of texts, and the time of the last one
        self._texts: deque[bytes] = deque()
        self._on_text = on_text or self._texts.append
        self._received = self._parts = b""  # an incomplete frame, an incomplete message
        self._expected: tuple[int, asyncio.Future[None]] | None = None
        self.opened = asyncio.get_running_loop().create_future()  # done after the handshake
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.abort = transport.abort

    def send(self, data: bytes) -> None:
        """Send the upgrade or a frame, unless the connection is closed."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def send_json(self, message: object) -> None:
        self.send(frame(orjson.dumps(message)))

    async def received(self, count: int) -> None:
        """Wait until `count` texts have arrived in total."""
        if self.messages < count:
            if self.ended.done():
                raise BenchError(CLOSED)
            self._expected = count, asyncio.get_running_loop().create_future()
            await self._expected[1]

    async def next(self) -> bytes:
        if not self._texts:
            await self.received(self.messages + 1)
        return self._texts.popleft()

    async def close(self) -> None:
        self._transport.write(frame(struct.pack("!H", 1001), CLOSE))
        await self.ended

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        if not self.opened.done():
            head, end, rest = received.partition(b"\r\n\r\n")
            if end and not head.startswith(b"HTTP/1.1 101"):
                self._transport.abort()
                return
            if end:
                received = rest
                self.opened.set_result(None)
        while self.opened.done() and (taken := take_frame(received)):
            kind, text, received = taken
            if kind == CLOSE:
                self.code = int.from_bytes(text[:2])
                self._transport.close()
            elif kind == PING:
                self._transport.write(frame(text, PONG))
            elif kind != PONG:
                self._parts += text
                if kind & 0x80:
                    text, self._parts = self._parts, b""
                    self._arrived(text)
        self._received = received

    def _arrived(self, text: bytes) -> None:
        self.messages += 1
        self.last_s = time.perf_counter()
        self._on_text(text)
        if self._expected is not None and self.messages >= self._expected[0] and not self._expected[1].done():
            self._expected[1].set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        for waiting in (self.opened, *(self._expected or ())[1:]):
            if not waiting.done():
                waiting.set_exception(BenchError(CLOSED))


def take_frame(received: bytes) -> tuple[int, bytes, bytes] | None:
    """Return the type and payload of a server's frame and the data after it, or None if incomplete."""
    if len(received) < 2:
        return None
    length, at = received[1] & 0x7F, 2
    if length > 125:
        at = 4 if length == 126 else 10
        length = int.from_bytes(received[2:at])
    end = at + length
    return (received[0], received[at:end], received[end:]) if len(received) >= end else None


def frame(payload: bytes, kind: int = TEXT) -> bytes:
    """Return a client's frame, masked with a random key as RFC 6455, section 5.3, requires."""
    return frame_vectors.frame(kind ^ frame_vectors.MORE, payload, key=os.urandom(4))


def upgrade(path: str, origin: str = ORIGIN) -> bytes:
    return wire.request("GET", path, origin=origin, headers=UPGRADE)


async def open_socket(base: str, upgrading: bytes, address: str | None = None, on_text=None) -> WebSocket:
    """Open a connection, optionally from a local address, and return it after the handshake."""
    where = urlsplit(base)
    options = {"host": where.hostname, "port": where.port, "local_addr": (address, 0) if address else None}
    try:
        _, opened = await asyncio.get_running_loop().create_connection(lambda: WebSocket(on_text), **options)
    except OSError as error:
        raise BenchError(f"cannot connect to {base}: {error}") from error
    opened.send(upgrading)
    await opened.opened
    return opened


async def open_many(
    base: str, count: int, path: str = "/ws", first: Callable[[int], object] | None = None
) -> list[WebSocket]:
    """Open connections that only count, each at a path with its number for {0}. Send a first message on each."""
    opened: list[WebSocket] = []
    while len(opened) < count:
        paths = itertools.islice(map(path.format, range(len(opened), count)), OPENED_AT_ONCE)
        opened += await asyncio.gather(*(open_socket(base, upgrade(each), on_text=len) for each in paths))
    for number, client in enumerate(opened if first else ()):
        client.send_json(first(number))
    return opened
