"""Helpers of attackers, honest peers and probes: the server's address, connections from an address, and requests."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

ATTACKER = "127.0.0.2"
HONEST = "127.0.0.3"
PROBE = "127.0.0.4"
PREPARER = "127.0.0.5"  # an address without limits, which prepares in seconds what an attacker has minutes for

BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT, which Python 3.11 does not name
BROKEN = (OSError, EOFError, ValueError, TimeoutError)  # errors of a request without a response


class Refused(ConnectionError):
    """A stream with a status other than 200. The arguments are status and JSON."""


@dataclass(frozen=True)
class Place:
    """The address of a server on 127.0.0.1: port, certificate to trust with HTTPS, and a token for honest peers."""

    port: int
    certificate: Path | None = None
    token: str = ""

    @classmethod
    def parse(cls, port: str, certificate: str = "", token: str = "") -> "Place":
        return cls(int(port), Path(certificate) if certificate else None, token)

    @property
    def authorization(self) -> str:
        """The header with the token, and its line end."""
        return f"Authorization: Bearer {self.token}\r\n" if self.token else ""

    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else None


def make_socket(address: str, room: int | None = None) -> socket.socket:
    """Return a socket that connects from an address, with a limited receive buffer."""
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if room:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.bind((address, 0))
    return made


def reset(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def request(method: str, path: str, body: object = None, *, origin: str, headers: str = "") -> bytes:
    """Return the bytes of a request. The body is bytes or encoded as JSON. Further headers include their line ends."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    length = f"Content-Length: {len(data)}\r\n" if body is not None else ""
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n{length}{headers}\r\n".encode() + data


class Client:
    """One keep-alive connection from an address, opened on demand. `headers` are in all requests."""

    def __init__(self, place: Place, address: str, origin: str, headers: str = "") -> None:
        self._place, self._address, self._origin, self._headers = place, address, origin, headers
        self._context = place.context()
        self._writer: asyncio.StreamWriter | None = None
        self.opened_s = float("inf")  # by the monotonic clock

    async def ask(self, method: str, path: str, fields: object = None) -> tuple[int, dict]:
        status, body = await self.exchange(request(method, path, fields, origin=self._origin, headers=self._headers))
        return status, json.loads(body)

    async def exchange(self, raw: bytes) -> tuple[int, bytes]:
        if self._writer is None or self._writer.is_closing() or self._reader.at_eof():
            self.close()
            await self._connect()
        self._writer.write(raw)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        status, headers = int(first.split(" ")[1]), dict(line.split(": ", 1) for line in lines if line)
        streaming = headers.get("content-type") == "text/event-stream"
        if streaming or raw.startswith(b"HEAD"):
            body = b""
        elif "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        else:
            body = b"".join([piece async for piece in self._chunks()])
        if headers.get("connection") == "close" and not streaming:
            self.close()
        return status, body

    async def events(self, path: str, headers: str = "") -> AsyncIterator[dict[str, str]]:
        """Yield the fields of each event of a stream until the server ends it. Raise `Refused` without a stream."""
        status, body = await self.exchange(request("GET", path, origin=self._origin, headers=self._headers + headers))
        if status != 200:
            raise Refused(status, json.loads(body))
        read = b""
        async for piece in self._chunks():
            *blocks, read = (read + piece).split(b"\n\n")
            for block in blocks:
                yield {name: value for name, _, value in (line.partition(": ") for line in block.decode().split("\n"))}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _connect(self) -> None:
        self.opened_s = time.monotonic()
        connecting = make_socket(self._address)
        connecting.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connecting, ("127.0.0.1", self._place.port))
            self._reader, self._writer = await asyncio.open_connection(
                sock=connecting, ssl=self._context, server_hostname="127.0.0.1" if self._context else None
            )
        except BaseException:
            connecting.close()
            raise

    async def _chunks(self) -> AsyncIterator[bytes]:
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
