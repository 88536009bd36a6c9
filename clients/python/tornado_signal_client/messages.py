"""The messages of an application: text, bytes and JSON values over one data channel."""

import asyncio
import contextlib
import json
import logging
import re
import sys
from collections import deque
from typing import Any, Generic
from weakref import WeakKeyDictionary

from aiortc import InvalidStateError, RTCDataChannel, RTCPeerConnection

from .errors import SignalError
from .parsing import checked, parse_json, parse_object
from .records import Parts, is_size
from .types import T

log = logging.getLogger(__name__)

MARK = "\x1e"  # precedes JSON, as in RFC 7464. Text that begins with it is also sent as JSON
PARTS = MARK + MARK  # precedes the JSON header of a message in parts
MAX_MESSAGE = 67_108_864  # bytes of a message
SMALL = 16_384  # bytes that every implementation takes
PART = 65_536  # bytes, which every implementation takes
WHOLE = 262_144  # bytes of the largest message that is not split, if the other side joins parts
BUFFER = 1_048_576  # bytes that the channel may have in its buffer
MAX_WAITING_BYTES = MAX_MESSAGE + BUFFER  # of messages that wait for a recipient, before another one
OVERHEAD = 512  # bytes of memory that each of them takes in addition
DEFAULT_LIMIT = 65_536  # bytes, where the other side does not announce a limit
MAX_UNREAD_BYTES = 16 << 20
LARGE_BYTES = 1 << 20  # of an item that is not counted in `MAX_UNREAD_BYTES`
MAX_LARGE_BYTES = 256 << 20  # of all unread large items: text that is not ASCII needs more than it has in UTF-8
ITEM_BYTES = 512  # memory of an item beyond its data

_announced: WeakKeyDictionary[RTCPeerConnection, int] = WeakKeyDictionary()


class Messages:
    """The messages of one connection, in both directions."""

    def __init__(self, connection: RTCPeerConnection, channel: RTCDataChannel) -> None:
        self._connection, self._channel = connection, channel
        self._waiting: deque[tuple[str | bytes, int, asyncio.Future[None]]] = deque()  # with the size in bytes
        self._waiting_bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._has_space = asyncio.Event()
        # The bytes so far of a message in parts, their final number, and whether it is text.
        self._incomplete: tuple[bytearray, int, bool] | None = None
        channel.bufferedAmountLowThreshold = BUFFER // 2
        channel.on("bufferedamountlow", self._has_space.set)
        channel.on("open", self._has_space.set)
        channel.on("close", self._on_close)

    @property
    def sending(self) -> bool:
        return bool(self._waiting or self._channel.bufferedAmount)

    def _limits(self) -> tuple[int, int]:
        """Return the bytes of the largest message that is sent whole, and of the largest one."""
        # aiortc composes the description for each read.
        announced = re.search(r"^a=max-message-size:(\d{1,18})", self._connection.remoteDescription.sdp, re.MULTILINE)
        whole = (int(announced[1]) if announced else DEFAULT_LIMIT) or MAX_MESSAGE
        is_reliable = self._channel.maxRetransmits is None and self._channel.maxPacketLifeTime is None
        parts = _announced.get(self._connection, 0) if self._channel.ordered and is_reliable else 0
        whole = min(whole, WHOLE) if parts > 0 else whole
        return whole, max(whole, parts)

    def check(self, size: int) -> None:
        if size > SMALL and size > (limit := self._limits()[1]):
            text = f"the message has {size} bytes, and the connection takes {limit}: use send_file"
            raise SignalError("message-too-large", text)

    def send(self, message: str | bytes, size: int) -> asyncio.Future[None]:
        """Send a message of `size` bytes that `check` accepts. While the buffer is full, it waits behind earlier ones.

        Returns:
            A future that is done when all of it is in the buffer or lost. If it is cancelled before, nothing is sent.
            Its error is `peer-slow` if more than `MAX_WAITING_BYTES` wait.
        """
        sent = asyncio.get_running_loop().create_future()
        if self._sending is None and self._has_room and self._is_whole(size):
            self._channel.send(message)
            sent.set_result(None)
        elif self._waiting_bytes > MAX_WAITING_BYTES:
            text = f"the peer is too slow: {self._waiting_bytes} bytes wait for it"
            sent.set_exception(SignalError("peer-slow", text, retryable=True))
        else:
            self._waiting.append((message, size, sent))
            self._waiting_bytes += size + OVERHEAD
            if self._sending is None:
                self._sending = asyncio.create_task(self._send_waiting())
        return sent

    @property
    def _has_room(self) -> bool:
        return self._channel.readyState != "connecting" and self._channel.bufferedAmount <= BUFFER

    def _is_whole(self, size: int) -> bool:
        return size <= SMALL or size <= self._limits()[0]

    async def _send_waiting(self) -> None:
        try:
            while self._waiting:
                message, size, sent = self._waiting[0]
                await self._wait_for_space()
                if self._is_whole(size) and not sent.cancelled():
                    self._channel.send(message)
                elif not sent.cancelled():
                    data = message.encode() if isinstance(message, str) else message
                    self._channel.send(PARTS + json.dumps({"size": size, "text": isinstance(message, str)}))
                    for start in range(0, size, PART):
                        await self._wait_for_space()
                        self._channel.send(data[start : start + PART])
                self._complete_first()
        except InvalidStateError:  # the channel is closed
            self._on_close()
        finally:
            self._sending = None

    async def _wait_for_space(self) -> None:
        while not self._has_room:
            self._has_space.clear()
            await self._has_space.wait()

    def _complete_first(self) -> None:
        _, size, sent = self._waiting.popleft()
        self._waiting_bytes -= size + OVERHEAD
        if not sent.done():
            sent.set_result(None)

    def _on_close(self) -> None:
        self._incomplete = None
        if self._sending is not None:
            self._sending.cancel()
        while self._waiting:
            self._complete_first()

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


def _header(text: str) -> tuple[int, bool] | None:
    """Return the size and whether it is text, if this is the header of a message in parts."""
    header = checked(parse_object(text[len(PARTS) :]), Parts) if text.startswith(PARTS) else None
    is_header = header is not None and is_size(header["size"]) and header["size"] <= MAX_MESSAGE
    return (int(header["size"]), header["text"]) if header and is_header else None


def encode(data: Any) -> tuple[str | bytes, int]:
    """Return the message of text, bytes or a JSON value, and its size in bytes.

    Raises:
        SignalError: JSON cannot represent it (`invalid-message`), or it has more than 64 MiB (`message-too-large`).
    """
    message = data
    try:
        if not isinstance(data, bytes) and (not isinstance(data, str) or data.startswith(MARK)):
            message = MARK + json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        size = len(message.encode() if isinstance(message, str) else message)
    except (TypeError, ValueError, RecursionError) as error:
        raise SignalError("invalid-message", f"a message is text, bytes or a JSON value: {error}") from error
    if size > MAX_MESSAGE:
        raise SignalError("message-too-large", f"the message has {size} bytes, more than {MAX_MESSAGE}: use send_file")
    return message, size


def decode(message: str | bytes) -> Any:
    if isinstance(message, str) and message.startswith(MARK):
        with contextlib.suppress(ValueError):  # otherwise it is of a program that does not use the mark
            return parse_json(message[1:])
    return message


class Inbox(Generic[T]):
    """Received items in order, until the program reads them.

    aiortc cannot pause a sender. So data that exceeds `MAX_UNREAD_BYTES` is dropped, and the first time it is logged.
    Large items have a limit of their own, so that small ones are not dropped after them.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._queue: asyncio.Queue[tuple[T, int]] = asyncio.Queue()
        self._bytes = self._large_bytes = 0

    def put(self, item: T, data: str | bytes) -> bool:
        """Add an item with data of another peer, or drop it. Return whether it was added."""
        size = ITEM_BYTES + sys.getsizeof(data)
        large = size > LARGE_BYTES
        if self._large_bytes + size > MAX_LARGE_BYTES if large else self._bytes + size > MAX_UNREAD_BYTES:
            if not self.dropped:
                unread_bytes = self._bytes + self._large_bytes
                log.warning("messages are dropped, because the program has %d bytes of them to read", unread_bytes)
            self.dropped += 1
            return False
        self._count(size)
        self._queue.put_nowait((item, size))
        return True

    def put_always(self, item: T) -> None:
        """Add a small item, or None as the end, which is also the next item from then on."""
        self._queue.put_nowait((item, 0))

    async def get(self) -> T:
        item, size = await self._queue.get()
        self._count(-size)
        if item is None:
            self.put_always(item)
        return item

    def _count(self, size: int) -> None:
        if abs(size) > LARGE_BYTES:
            self._large_bytes += size
        else:
            self._bytes += size
