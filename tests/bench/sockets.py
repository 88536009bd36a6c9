"""A client's end of WebSockets that costs little itself."""

import asyncio
import os
import struct
from typing import Final

from .processes import BenchError

TEXT: Final = 0x81
CLOSE: Final = 0x88
PING: Final = 0x89


class WebSocket(asyncio.Protocol):
    """A client's end of a WebSocket that reads whole texts; what it sends are frames made by `frame`."""

    def __init__(self) -> None:
        self._received = b""
        self._open = False
        self._texts: list[bytes] = []
        self._waiting: asyncio.Future[bytes] | None = None
        self.opened = asyncio.get_running_loop().create_future()
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Send the upgrade or a frame."""
        self._transport.write(data)

    async def next(self) -> bytes:
        """The next message."""
        if self._texts:
            return self._texts.pop(0)
        if self.ended.done():
            raise BenchError("a server has closed a connection")
        self._waiting = asyncio.get_running_loop().create_future()
        return await self._waiting

    async def close(self) -> None:
        """Close as a page does that is left (1001), and wait for the server's end."""
        self._transport.write(frame(struct.pack("!H", 1001), CLOSE))
        await self.ended

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        if not self._open:
            head, end, rest = received.partition(b"\r\n\r\n")
            if end:
                if not head.startswith(b"HTTP/1.1 101"):
                    self._transport.abort()
                    return
                self._open, received = True, rest
                self.opened.set_result(None)
        while self._open and len(received) >= 2:
            kind, length, at = received[0], received[1], 2
            if length == 126:
                if len(received) < 4:
                    break
                length, at = int.from_bytes(received[2:4]), 4
            if len(received) < at + length:
                break
            text, received = received[at : at + length], received[at + length :]
            if kind == CLOSE:
                self._transport.close()
            elif kind == TEXT:
                self.arrived(text)
            elif kind == PING:
                self.pinged()
        self._received = received

    def pinged(self) -> None:
        """The server asks whether this is there; short benchmarks need not answer."""

    def arrived(self, text: bytes) -> None:
        """A message has come."""
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


def frame(payload: bytes, kind: int = TEXT) -> bytes:
    """A frame of a client, masked with a random key as RFC 6455 (5.3) wants it; at most 64 KiB."""
    key = os.urandom(4)
    length = len(payload)
    mask = int.from_bytes((key * (length // 4 + 1))[:length])
    masked = (int.from_bytes(payload) ^ mask).to_bytes(length)
    size = bytes((kind, 0x80 | length)) if length < 126 else struct.pack("!BBH", kind, 0x80 | 126, length)
    return size + key + masked


async def open_socket(host: str | None, port: int | None, address: str, upgrade: bytes) -> WebSocket:
    """A new connection from an address of this machine, after the handshake."""
    try:
        _, opened = await asyncio.get_running_loop().create_connection(WebSocket, host, port, local_addr=(address, 0))
    except OSError as error:
        raise BenchError(f"cannot connect to {host}:{port}: {error}") from error
    opened.send(upgrade)
    await opened.opened
    return opened
