"""What attackers, honest peers and probes share: a server's place, connections from a given address, and requests."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

ATTACKER = "127.0.0.2"
HONEST = "127.0.0.3"
PROBE = "127.0.0.4"
PREPARER = "127.0.0.5"  # has no limit: does in seconds what an attacker has minutes for before it begins

BIND_ADDRESS_NO_PORT = 24  # IP_BIND_ADDRESS_NO_PORT, which Python 3.11 does not name
BROKEN = (OSError, EOFError, ValueError, TimeoutError)  # what becomes of a request that is not answered


@dataclass(frozen=True)
class Place:
    """Where a server is.

    Attributes:
        port: on 127.0.0.1.
        certificate: of a server with HTTPS, to be trusted.
    """

    port: int
    certificate: Path | None = None

    def context(self) -> ssl.SSLContext | None:
        """What a client of HTTPS needs."""
        return ssl.create_default_context(cafile=self.certificate) if self.certificate else None


def make_socket(address: str, room: int | None = None) -> socket.socket:
    """A socket that connects from an address.

    Args:
        address: one of the loopback network.
        room: how many bytes the kernel keeps of what has not been read; its own choice if not given.
    """
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_IP, BIND_ADDRESS_NO_PORT, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if room:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.bind((address, 0))
    return made


def reset(connected: socket.socket) -> None:
    """Close without a farewell."""
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connected.close()


def request(method: str, path: str, body: object = None, *, origin: str, headers: str = "") -> bytes:
    """The bytes of a request.

    Args:
        method: of HTTP.
        path: and query.
        body: bytes, or what becomes JSON.
        origin: of the page that asks.
        headers: more of them, each with its line end.
    """
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    length = f"Content-Length: {len(data)}\r\n" if body is not None else ""
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\nOrigin: {origin}\r\n{length}{headers}\r\n".encode() + data


class Client:
    """One kept connection, opened when it is needed.

    Args:
        place: of the server.
        address: from which it connects.
        origin: of its requests.
    """

    def __init__(self, place: Place, address: str, origin: str) -> None:
        self._place = place
        self._address = address
        self._origin = origin
        self._context = place.context()
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader

    async def ask(self, method: str, path: str, fields: object = None) -> tuple[int, dict]:
        """Send a request; status and JSON of the response."""
        status, body = await self.exchange(request(method, path, fields, origin=self._origin))
        return status, json.loads(body)

    async def exchange(self, raw: bytes) -> tuple[int, bytes]:
        """Send the bytes of a request; status and body of the response."""
        headers, status = await self._begin(raw)
        if raw.startswith(b"HEAD"):
            body = b""
        elif "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        else:
            body = b"".join([piece async for piece in self._chunks()])
        if headers.get("connection") == "close":
            self.close()
        return status, body

    async def events(self, path: str, headers: str = "") -> AsyncIterator[dict[str, str]]:
        """Read a stream until the server ends it: the fields of each event."""
        found, status = await self._begin(request("GET", path, origin=self._origin, headers=headers))
        if status != 200:
            raise ConnectionError(f"a stream: {status} {found}")
        read = b""
        async for piece in self._chunks():
            *blocks, read = (read + piece).split(b"\n\n")
            for block in blocks:
                yield {name: value for name, _, value in (line.partition(": ") for line in block.decode().split("\n"))}

    def close(self) -> None:
        """End the connection; the next request opens another one."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    async def _begin(self, raw: bytes) -> tuple[dict[str, str], int]:
        if self._writer is None or self._writer.is_closing() or self._reader.at_eof():
            self.close()
            await self._connect()
        self._writer.write(raw)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        return dict(line.split(": ", 1) for line in lines if line), int(first.split(" ")[1])

    async def _connect(self) -> None:
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
