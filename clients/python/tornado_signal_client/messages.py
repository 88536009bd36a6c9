"""The messages of an application: text, bytes and JSON values over one data channel."""

import asyncio
import contextlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from aiortc import InvalidStateError, RTCDataChannel, RTCPeerConnection

from .parsing import parse_json, parse_object
from .records import decode_parts

MARK = "\x1e"  # precedes JSON, as in RFC 7464. Text that begins with it is also sent as JSON
PARTS = MARK + MARK  # precedes the JSON header of a message in parts
MAX_MESSAGE = 67_108_864  # bytes of a message
SMALL = 16_384  # bytes that every implementation takes
PART = 65_536  # bytes, which every implementation takes
WHOLE = 262_144  # bytes of the largest message that is not split, if the other side joins parts
BUFFER = 1_048_576  # bytes that the channel may have in its buffer
DEFAULT_LIMIT = 65_536  # bytes, where the other side does not announce a limit

_announced: WeakKeyDictionary[RTCPeerConnection, int] = WeakKeyDictionary()


class Messages:
    """The messages of one connection, in both directions."""

    def __init__(self, connection: RTCPeerConnection, channel: RTCDataChannel) -> None:
        self._connection, self._channel = connection, channel
        self._waiting: deque[tuple[str | bytes, asyncio.Future[None]]] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._has_space = asyncio.Event()
        self._incomplete: tuple[bytearray, int, bool] | None = (
            None  # the bytes so far, their final number, whether text
        )
        channel.bufferedAmountLowThreshold = BUFFER // 2
        channel.on("bufferedamountlow", self._has_space.set)
        channel.on("close", self._on_close)

    @property
    def sending(self) -> bool:
        """Whether data is not sent yet."""
        return bool(self._waiting or self._channel.bufferedAmount)

    def limits(self) -> tuple[int, int]:
        """Return the bytes of the largest message that is sent whole, and of the largest one."""
        # aiortc composes the description for each read.
        announced = re.search(r"^a=max-message-size:(\d{1,18})", self._connection.remoteDescription.sdp, re.MULTILINE)
        whole = (int(announced[1]) if announced else DEFAULT_LIMIT) or MAX_MESSAGE
        parts = _announced.get(self._connection, 0)
        whole = min(whole, WHOLE) if parts > 0 else whole
        return whole, max(whole, parts)

    def send(self, message: str | bytes, size: int) -> asyncio.Future[None] | None:
        """Send a message, or queue it and return a future, which is done when it is sent or lost."""
        if not self._waiting and (size <= SMALL or size <= self.limits()[0]):
            self._channel.send(message)
            return None
        sent = asyncio.get_running_loop().create_future()
        self._waiting.append((message, sent))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_waiting())
        return sent

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                message, sent = self._waiting[0]
                data = message.encode() if isinstance(message, str) else message
                self._channel.send(PARTS + json.dumps({"size": len(data), "text": isinstance(message, str)}))
                for start in range(0, len(data), PART):
                    while self._channel.bufferedAmount > BUFFER:
                        self._has_space.clear()
                        await self._has_space.wait()
                    self._channel.send(data[start : start + PART])
                self._waiting.popleft()
                _complete(sent)
        except InvalidStateError:  # the channel is closed
            self._on_close()
        finally:
            self._sending = None

    def _on_close(self) -> None:
        self._incomplete = None
        if self._sending is not None:
            self._sending.cancel()
        while self._waiting:
            _complete(self._waiting.popleft()[1])

    def take(self, data: str | bytes) -> str | bytes | None:
        """Take a string or bytes of the other side. Return a message, or None while parts are missing."""
        incomplete, self._incomplete = self._incomplete, None  # also lost by another message in the middle
        if isinstance(data, str):
            header = _header(data)
            if header is None:
                return data
            buffer, size, text = bytearray(), *header
        else:
            if incomplete is None:
                return data
            buffer, size, text = incomplete
            if len(buffer) + len(data) > size:
                return None
            buffer += data
        if len(buffer) < size:
            self._incomplete = buffer, size, text
            return None
        return buffer.decode(errors="replace") if text else bytes(buffer)


def announce_joins(connection: RTCPeerConnection, size: int) -> None:
    """Note what the other side announces as the largest message that it joins from parts, in bytes."""
    _announced[connection] = min(size, MAX_MESSAGE)


def send(data: Any, recipients: Sequence[Messages]) -> Awaitable[object]:
    """Send a message to all recipients."""
    message = _serialize(data)
    size = len(message.encode() if isinstance(message, str) else message)
    if size > SMALL:
        for limit in (recipient.limits()[1] for recipient in recipients):
            if size > limit:
                raise ValueError(f"the message has {size} bytes, and the connection takes {limit}: use send_file")
    waiting = [recipient.send(message, size) for recipient in recipients]
    return asyncio.gather(*filter(None, waiting))


def _complete(sent: asyncio.Future[None]) -> None:
    if not sent.done():
        sent.set_result(None)


def _header(text: str) -> tuple[int, bool] | None:
    """Return the size and whether it is text, if this is the header of a message in parts."""
    header = decode_parts(parse_object(text[len(PARTS) :])) if text.startswith(PARTS) else None
    return None if header is None or header[0] > MAX_MESSAGE else header


def _serialize(data: Any) -> str | bytes:
    if isinstance(data, bytes) or (isinstance(data, str) and not data.startswith(MARK)):
        return data
    return MARK + json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def decode(message: str | bytes) -> Any:
    """Return a received message: text, bytes or a JSON value."""
    if isinstance(message, str) and message.startswith(MARK):
        with contextlib.suppress(ValueError):  # otherwise it is of a program that does not use the mark
            return parse_json(message[1:])
    return message
