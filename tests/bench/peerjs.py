"""The PeerJS server of npm, and peers that meet by it: over a WebSocket each, as its own client has them meet."""

import asyncio
import os
import re
import shutil
import struct
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import orjson

from . import npm
from .peers import Pair, Peer
from .processes import BenchError, Server

PACKAGES = Path(__file__).with_name("peerjs")
_STARTED = re.compile(r"Started PeerServer on (\S+), port: (\d+)")
_TEXT, _CLOSE = 0x81, 0x88


class PeerJs(Server):
    """The server as its command starts it, on a port of its own choice.

    Args:
        log: where its output goes.
    """

    environment: ClassVar[dict[str, str]] = {"PORT": "0", "NODE_ENV": "production"}

    def __init__(self, log: Path) -> None:
        node = shutil.which("node")
        if node is None:
            raise BenchError("there is no Node.js (node)")
        program = npm.node_modules(PACKAGES) / "peer/dist/bin/peerjs.js"
        super().__init__([node, str(program), "--host", "127.0.0.1"], log)

    def _listening(self) -> str | None:
        found = _STARTED.search(self.log())
        return f"http://{found[1]}:{found[2]}" if found else None


def version() -> str:
    """The version of the server."""
    return orjson.loads((PACKAGES / "package.json").read_bytes())["dependencies"]["peer"]


class WebSocket(asyncio.Protocol):
    """A client's end of a WebSocket that reads whole texts; what it sends are frames made by `frame`."""

    def __init__(self) -> None:
        self._received = b""
        self._open = False
        self._texts: list[bytes] = []
        self._waiting: asyncio.Future[bytes] | None = None
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, data: bytes) -> None:
        """Send the upgrade or a frame."""
        self._transport.write(data)

    async def next(self, kind: str) -> dict:
        """The next message, which must be of that type."""
        if self._texts:
            text = self._texts.pop(0)
        elif self.ended.done():
            raise BenchError("PeerJS has closed a connection")
        else:
            self._waiting = asyncio.get_running_loop().create_future()
            text = await self._waiting
        message = orjson.loads(text)
        if message["type"] != kind:
            raise BenchError(f"PeerJS sent {text[:200]!r}, which is no {kind}")
        return message

    async def close(self) -> None:
        """Close as a page does that is left (1001), and wait for the server's end."""
        self._transport.write(frame(struct.pack("!H", 1001), _CLOSE))
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
        while self._open and len(received) >= 2:
            kind, length, at = received[0], received[1], 2
            if length == 126:
                if len(received) < 4:
                    break
                length, at = int.from_bytes(received[2:4]), 4
            if len(received) < at + length:
                break
            text, received = received[at : at + length], received[at + length :]
            if kind == _CLOSE:
                self._transport.close()
            elif kind == _TEXT:
                self._arrived(text)
        self._received = received

    def _arrived(self, text: bytes) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(text)
        else:
            self._texts.append(text)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BenchError("PeerJS has closed a connection"))


def frame(payload: bytes, kind: int = _TEXT) -> bytes:
    """A frame of a client, masked with a random key as RFC 6455 (5.3) wants it; at most 64 KiB."""
    key = os.urandom(4)
    length = len(payload)
    mask = int.from_bytes((key * (length // 4 + 1))[:length])
    masked = (int.from_bytes(payload) ^ mask).to_bytes(length)
    size = bytes((kind, 0x80 | length)) if length < 126 else struct.pack("!BBH", kind, 0x80 | 126, length)
    return size + key + masked


class Meeting:
    """One pair's way to each other, its bytes prepared.

    Args:
        base: the base URL of the server.
        pair: the peers.
    """

    def __init__(self, base: str, pair: Pair) -> None:
        parts = urlsplit(base)
        self._at = parts.hostname, parts.port or 80
        self._offerer, self._answerer = pair.offerer, pair.answerer
        self._upgrades = {
            peer: peer.upgrade(base, f"/peerjs?key=peerjs&id={peer.identity}&token={peer.token}&version=1.5.5")
            for peer in (pair.offerer, pair.answerer)
        }
        connection = {"type": "data", "connectionId": f"dc_{pair.offerer.token}"}
        ways = (("OFFER", pair.offerer, pair.answerer), ("ANSWER", pair.answerer, pair.offerer))
        self._descriptions = {
            kind: _message(kind, {"sdp": orjson.Fragment(peer.description), **connection}, other)
            for kind, peer, other in ways
        }
        self._candidates = {
            peer: [
                _message("CANDIDATE", {"candidate": orjson.Fragment(candidate), **connection}, other)
                for candidate in peer.candidates
            ]
            for _, peer, other in ways
        }

    async def broker(self) -> None:
        """Broker it: an offer, an answer, and the candidates one by one as they are found."""
        answerer = await self._join(self._answerer)
        offerer = await self._join(self._offerer)
        offerer.send(self._descriptions["OFFER"])
        await answerer.next("OFFER")
        answerer.send(self._descriptions["ANSWER"])
        await offerer.next("ANSWER")
        for mine, theirs in zip(self._candidates[self._offerer], self._candidates[self._answerer], strict=True):
            offerer.send(mine)
            await answerer.next("CANDIDATE")
            answerer.send(theirs)
            await offerer.next("CANDIDATE")
        await offerer.close()
        await answerer.close()

    async def _join(self, peer: Peer) -> WebSocket:
        loop = asyncio.get_running_loop()
        try:
            _, opened = await loop.create_connection(WebSocket, *self._at, local_addr=(peer.address, 0))
        except OSError as error:
            raise BenchError(f"cannot connect to PeerJS: {error}") from error
        opened.send(self._upgrades[peer])
        await opened.next("OPEN")
        return opened


def _message(kind: str, payload: dict, other: Peer) -> bytes:
    return frame(orjson.dumps({"type": kind, "payload": payload, "dst": other.identity}))
