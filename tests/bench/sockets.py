"""The client end of WebSockets, with little CPU cost of its own."""

import asyncio
import itertools
import os
import struct
from typing import Final
from urllib.parse import urlsplit

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
OPENED_AT_ONCE: Final = 200
ORIGIN: Final = "http://bench.example"


class WebSocket(asyncio.Protocol):
    """The client end of a WebSocket that reads complete texts. It sends frames that `frame` returns."""

    def __init__(self) -> None:
        self.code: int | None = None  # the close code of the server
        self._received = b""
        self._parts = b""  # an incomplete message
        self._texts: list[bytes] = []
        self._waiting: asyncio.Future[bytes] | None = None
        self.opened = asyncio.get_running_loop().create_future()  # done after the handshake
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Send the upgrade or a frame, unless the connection is closed."""
        if not self._transport.is_closing():
            self._transport.write(data)

    async def next(self) -> bytes:
        if self._texts:
            return self._texts.pop(0)
        if self.ended.done():
            raise BenchError("a server has closed a connection")
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting

    def abort(self) -> None:
        self._transport.abort()

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
            if kind == TEXT:
                self.arrived(text)
            elif kind == CLOSE:
                self.code = int.from_bytes(text[:2])
                self._transport.close()
            elif kind == PING:
                self._transport.write(frame(text, PONG))
            elif kind != PONG:
                self._parts += text
                if kind & 0x80:
                    text, self._parts = self._parts, b""
                    self.arrived(text)
        self._received = received

    def arrived(self, text: bytes) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(text)
        else:
            self._texts.append(text)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        if not self.opened.done():
            self.opened.set_exception(BenchError("a server has closed a connection"))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BenchError("a server has closed a connection"))


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


async def open_socket(host: str, port: int, address: str | None, upgrade: bytes, tls=None, kind=WebSocket) -> WebSocket:
    """Open a connection, optionally from a local address, and return it after the handshake."""
    local = (address, 0) if address else None
    try:
        _, opened = await asyncio.get_running_loop().create_connection(kind, host, port, ssl=tls, local_addr=local)
    except OSError as error:
        raise BenchError(f"cannot connect to {host}:{port}: {error}") from error
    opened.send(upgrade)
    await opened.opened
    return opened


async def open_many(base: str, count: int, kind: type[WebSocket], path: str = "/ws") -> list:
    """Open connections, each at a path with its number in place of {0}."""
    where = urlsplit(base)
    opened: list[WebSocket] = []
    while len(opened) < count:
        paths = itertools.islice(map(path.format, range(len(opened), count)), OPENED_AT_ONCE)
        upgrades = (wire.request("GET", each, origin=ORIGIN, headers=UPGRADE) for each in paths)
        opened += await asyncio.gather(
            *(open_socket(where.hostname, where.port, None, upgrade, kind=kind) for upgrade in upgrades)
        )
    return opened
