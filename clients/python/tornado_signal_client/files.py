"""Files between peers, each over a data channel of its own. docs/room-protocol.md describes the messages."""

import asyncio
import io
import json
import math
import mimetypes
import os
import re
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal

from aiortc import RTCDataChannel, RTCPeerConnection

from .errors import SignalError
from .parsing import checked, parse_object
from .records import Control, File, is_size

PROTOCOL = "tornado-signal-file"  # of the data channels
CHUNK = 65_536  # bytes, which every implementation accepts
READ = 1_048_576  # bytes that are read at once
BUFFER = 1_048_576  # bytes that a channel may have in its buffer
MAX_UNREAD_BYTES = 1_048_576  # of a file in memory; the others are in a temporary file
MAX_INCOMING = 100  # files of one peer at a time
# Media types that no browser runs, without parameters. XML, such as SVG, can contain scripts.
HARMLESS = re.compile(r"(?:(?:image|audio|video)/[\w.-]+|text/plain)(?=[ ;]|\Z)", re.ASCII | re.IGNORECASE)
UNKNOWN = "application/octet-stream"


class IncomingFile:
    """A file that another peer sends. Nothing is sent before `read`, `save` or an iteration over its chunks.

    If the program reads slowly, received bytes beyond 1 MiB wait in a temporary file.

    Attributes:
        name: the name at the sender, or an empty string. It is untrusted: never use it as a path.
        type: the media type that the sender claims, if it is harmless: an image except SVG, audio, video, or
            text/plain. Otherwise application/octet-stream.
    """

    def __init__(self, channel: RTCDataChannel, name: str, type: str, size: int) -> None:
        self.name, self.type, self.size = name, type, size
        self.received = 0
        self._channel = channel
        # The received bytes that the program has not read, once the file is accepted. aiortc cannot pause a sender.
        self._unread: tempfile.SpooledTemporaryFile[bytes] | None = None
        self._read_at = self._write_at = 0
        self._changed = asyncio.Event()
        self._error: SignalError | None = None
        self._ended = False
        channel.on("message", self._receive)
        channel.on("close", lambda: self._end(_failure("interrupted")))

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        """Receive the file and yield its bytes in chunks."""
        if self._unread is not None:
            raise RuntimeError("a file can be received only once")
        with tempfile.SpooledTemporaryFile(MAX_UNREAD_BYTES) as self._unread:
            try:
                if not self._ended:
                    _send_control(self._channel, accept=True)
                    self._finish()
                while chunk := await self._next_chunk(self._unread):
                    yield chunk
            finally:
                self.cancel()
        if self._error is not None:
            raise self._error

    async def _next_chunk(self, unread: tempfile.SpooledTemporaryFile[bytes]) -> bytes:
        """Wait for the next bytes, and remove them. There are none at the end."""
        while not self._write_at and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        unread.seek(self._read_at)
        chunk = unread.read(min(READ, self._write_at - self._read_at))
        self._read_at += len(chunk)
        if self._read_at == self._write_at:
            unread.truncate(0)
            self._read_at = self._write_at = 0
        return chunk

    async def read(self) -> bytes:
        """Receive the file and return its bytes."""
        async with aclosing(self.__aiter__()) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Receive the file and write it to `path`, which must not exist. An incomplete file is removed."""
        path = Path(path)
        with path.open("xb") as file:  # noqa: ASYNC230 (a cancelled thread would leave the file)
            try:
                async with aclosing(self.__aiter__()) as chunks:
                    async for chunk in chunks:
                        await asyncio.to_thread(file.write, chunk)
            except BaseException:
                await asyncio.to_thread(path.unlink)
                raise

    def cancel(self) -> None:
        """Refuse the file, or cancel the transfer. At the other side, `send_file` or `sendFile` fails."""
        if not self._ended:
            _send_control(self._channel, cancel="refused" if self._unread is None else "cancelled")
            self._end(_failure("cancelled"))

    def _receive(self, data: str | bytes) -> None:
        if isinstance(data, str):
            if (control := checked(parse_object(data), Control)) and control.get("cancel"):
                self._channel.close()
                self._end(_failure("cancelled"))
        elif not self._ended:
            # Nothing is kept that this side has not accepted.
            if self._unread is None or self.received + len(data) > self.size:
                return self.cancel()
            try:
                self._unread.seek(self._write_at)
                self._write_at += self._unread.write(data)
                self._unread.flush()
            except OSError:  # the disk of the temporary file is full
                return self.cancel()
            self.received += len(data)
            self._changed.set()
            self._finish()

    def _finish(self) -> None:
        if self.received == self.size:
            _send_control(self._channel, received=True)
            self._end(None)

    def _end(self, error: SignalError | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
            self._changed.set()


def on_channels(
    connection: RTCPeerConnection, protocol: str, most: int, use: Callable[[RTCDataChannel], object]
) -> None:
    """Use the channels of a protocol that the other side opens, at most `most` at a time."""
    used: set[RTCDataChannel] = set()

    def on_channel(channel: RTCDataChannel) -> None:
        if channel.protocol == protocol and len(used) < most:
            used.add(channel)
            channel.on("close", lambda: used.discard(channel))
            use(channel)
        elif channel.protocol == protocol:
            channel.close()

    connection.on("datachannel", on_channel)


def receive_files(connection: RTCPeerConnection, on_file: Callable[[IncomingFile], None]) -> None:
    """Call a function with each file that the other side of a connection sends."""

    def wait_for_header(channel: RTCDataChannel) -> None:
        channel.once("message", partial(on_header, channel, on_file))

    on_channels(connection, PROTOCOL, MAX_INCOMING, wait_for_header)


def on_header(channel: RTCDataChannel, on_file: Callable[[IncomingFile], None], header: str | bytes) -> None:
    file = checked(parse_object(header), File)
    if file and is_size(file["size"]):
        harmless = HARMLESS.match(file["type"])
        type = harmless[0].lower() if harmless else UNKNOWN
        on_file(IncomingFile(channel, file["name"], type, int(file["size"])))
    else:
        channel.close()


class OutgoingFile:
    """A file that this side sends."""

    def __init__(self, connection: RTCPeerConnection) -> None:
        self._channel = connection.createDataChannel("file", protocol=PROTOCOL)
        self._channel.bufferedAmountLowThreshold = BUFFER // 2
        self._changed = asyncio.Event()
        self._accepted = self._received = False
        self._unsent: float = math.inf  # bytes
        self._error: SignalError | None = None
        self._channel.on("open", self._changed.set)
        self._channel.on("bufferedamountlow", self._changed.set)
        self._channel.on("message", self._on_message)
        self._channel.on("close", lambda: self._fail(_failure("interrupted")))

    async def send(self, source: Path | bytes, name: str, on_progress: Callable[[int], None]) -> None:
        """Send a file and return when the other side has all of it."""
        try:
            with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as file:
                size = file.seek(0, io.SEEK_END)
                file.seek(0)
                await self._send(file, size, name, on_progress)
        finally:
            if not self._received and self._error is None:
                if self._channel.readyState == "open":
                    _send_control(self._channel, cancel="cancelled")
                else:
                    self._channel.close()

    async def _send(self, file: BinaryIO, size: int, name: str, on_progress: Callable[[int], None]) -> None:
        await self._wait(lambda: self._channel.readyState == "open")
        self._unsent = size
        _send_control(self._channel, name=name, type=mimetypes.guess_type(name)[0] or "", size=size)
        await self._wait(lambda: self._accepted)
        while self._unsent:
            block = await asyncio.to_thread(file.read, min(READ, self._unsent))
            if not block:
                raise OSError("the file has become shorter")
            for start in range(0, len(block), CHUNK):
                await self._wait(lambda: self._channel.bufferedAmount < BUFFER)
                chunk = block[start : start + CHUNK]
                if self._channel.readyState != "open":  # the other side is closing it
                    raise _failure("interrupted")
                self._channel.send(chunk)
                self._unsent -= len(chunk)
                on_progress(size - self._unsent)
        await self._wait(lambda: self._received)

    async def _wait(self, condition: Callable[[], bool]) -> None:
        while self._error is None and not condition():
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error

    def _on_message(self, data: str | bytes) -> None:
        fields = checked(parse_object(data), Control) or {}
        self._accepted = self._accepted or bool(fields.get("accept"))
        if fields.get("cancel"):
            self._fail(_failure("refused" if fields["cancel"] == "refused" else "cancelled"))
        elif fields.get("received") and self._unsent:
            self._fail(_failure("interrupted"))
        elif fields.get("received"):
            self._received = True
        if self._received or self._error:
            self._channel.close()
        self._changed.set()

    def _fail(self, error: SignalError) -> None:
        if not self._received and self._error is None:
            self._error = error
        self._changed.set()


def _failure(how: Literal["refused", "cancelled", "interrupted"]) -> SignalError:
    """Return the error of a transfer that the other side, or the end of the connection, has stopped."""
    return SignalError(f"file-{how}", f"the file transfer was {how}", retryable=how == "interrupted")


def _send_control(channel: RTCDataChannel, **fields: object) -> None:
    """Send the fields if the channel is open."""
    if channel.readyState == "open":
        channel.send(json.dumps(fields))
