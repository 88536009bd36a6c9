"""A connection after its upgrade to a WebSocket (RFC 6455): text messages in and out, pings, and its end."""

import asyncio
import functools
import hashlib
import re
from binascii import b2a_base64
from collections.abc import Callable
from typing import Final, Protocol, cast

from . import frames
from .frames import CloseCode, FrameReader, InvalidFrame, make_frame
from .headers import Headers
from .pacing import is_full
from .state import Admission, ServerState

PING_S: Final = 20.0  # interval between two pings
SILENT_S: Final = 40.0  # a client from which nothing has arrived for this time counts as gone
CLOSE_S: Final = 2.0  # time for the client to close the connection after a close frame
MAX_UNSENT_BYTES: Final = 1024 * 1024  # beyond it a client that stops reading is closed sooner
UNREAD_S: Final = 5.0  # such a client is closed after this time without progress
MAX_MESSAGES: Final = 64  # per connection in progress; further ones are not read
MAX_MESSAGES_BYTES: Final = 8 * 1024  # of these messages; a larger one is processed alone
SMALL_BYTES: Final = 2 * 1024  # of messages in progress, which cost no more than the connection itself
MAX_FRAMES: Final = 256  # parsed per connection and event-loop iteration
POSTED_BYTES: Final = 64 * 1024  # kept for one write per event-loop iteration; beyond it they are written at once

BLAMES_CLIENT: Final = {
    CloseCode.PROTOCOL_ERROR,
    CloseCode.UNSUPPORTED_DATA,
    CloseCode.INVALID_DATA,
    CloseCode.POLICY_VIOLATION,
    CloseCode.MESSAGE_TOO_BIG,
}
NOT_READ: Final = "messages are not read"
DELIBERATE: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)

make_text: Final = functools.lru_cache(1)(functools.partial(make_frame, frames.TEXT))  # many get the same message

VERSION_HEADER: Final = "Sec-WebSocket-Version"
WEBSOCKET_VERSION: Final = "13"

_PING: Final = make_frame(frames.PING)
_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes
_ACCEPTED: Final = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, 1.3


class MessageReceiver(Protocol):
    """Receiver of a WebSocket's messages."""

    def connected(self) -> None:
        """Handle the completed handshake. Messages can be sent."""

    def message_received(self, message: bytes) -> bool:
        """Process a complete text message. Return whether it is done.

        Otherwise it is in progress until `WebSocket.message_done`. At most MAX_MESSAGES are.
        """

    def frame_received(self) -> None:
        """Count a frame that is not a whole message: a fragment, a ping or an unsolicited pong."""

    def client_gone(self) -> None:
        """Handle the end of the connection."""


class WebSocket(asyncio.Protocol):
    """One client's connection, from its upgrade on. The owner sets `receiver`, the receiver of its messages.

    `on_closed` is called at the end with the code of the close (RFC 6455, 7.1.5). `drops_messages` says whether it is
    closed because of its client's behaviour. Then its pending messages are dropped. `closed_by_client` says whether the
    client has closed it deliberately (RFC 6455, 7.4.1: 1000, 1001 or no code). With `binary`, binary messages are
    accepted like text.
    """

    __slots__ = (
        "_admission",
        "_close_code",
        "_closing",
        "_frames",
        "_heard_s",
        "_is_unfinished",
        "_kept_bytes",
        "_paused",
        "_pinged",
        "_posted",
        "_running",
        "_running_bytes",
        "_stalled_s",
        "_transport",
        "_unread_bytes",
        "_wakes",
        "client_address",
        "closed_by_client",
        "deadline_s",
        "drained",
        "drops_messages",
        "on_closed",
        "receiver",
        "remote_ip",
        "state",
    )

    idle = readable = False  # a stopping server closes it in `Server.close_websockets`
    receiver: MessageReceiver
    _transport: asyncio.Transport

    def __init__(
        self,
        state: ServerState,
        remote_ip: str,
        admission: Admission,
        max_message_bytes: int,
        client_address: str,
        *,
        binary: bool = False,
    ) -> None:
        self.state = state
        self.remote_ip = remote_ip
        self.client_address = client_address
        self.deadline_s = 0.0
        self.on_closed: Callable[[int], None] | None = None
        self.drops_messages = self.closed_by_client = False
        self._admission = admission
        self._frames = FrameReader(max_message_bytes, binary=binary)
        self._heard_s = 0.0
        self._pinged = False  # whether the latest ping has not been answered
        self._paused = False  # whether reading is, because there are frames that are not parsed yet
        self._wakes = False  # whether they are parsed in the next event-loop iteration
        self._running = 0  # messages in progress
        self._running_bytes = 0  # size of the messages in progress
        self._is_unfinished = False  # whether the budget for unfinished input has this connection
        self._posted = b""  # frames to be written in the next event-loop iteration
        self.drained: asyncio.Future[None] | None = None  # while the client reads too slowly
        self._kept_bytes = 0
        self._stalled_s = 0.0  # time of the last read by a client that reads too slowly
        self._unread_bytes = 0  # of such a client at the last check, and written since
        self._close_code: int = CloseCode.ABNORMAL_CLOSURE  # of the first close frame
        self._closing = False  # whether nothing more is to be sent or understood

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.state.connections.add(self)
        self.state.websockets += 1
        self._heard_s = self.state.loop.time()
        self.deadline_s = self._heard_s + PING_S
        self.receiver.connected()
        if self.state.stopping:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.state.websockets -= 1
        self.state.remove(self)
        self._admission.release()
        if self.drained is not None:
            self.resume_writing()
        self._frames.clear()
        self._posted = b""
        self.receiver.client_gone()
        if self.on_closed is not None:
            self.on_closed(self._close_code)
        del self.receiver  # which refers back

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self.drained is not None:
            return
        self.drained = self.state.loop.create_future()
        self._stalled_s = self.state.loop.time()
        self._unread_bytes = self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        if is_full(self._transport):
            return
        drained, self.drained = self.drained, None
        self._update_unsent()
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Process a message that is one short frame at once. Parse anything else."""
        if self._closing:
            return
        self._heard_s = self.state.loop.time()
        message = self._frames.read_text(data) if not self._running or self._has_room() else None
        if message is None:
            self._frames.receive(data)
            self._parse()
        elif not self.receiver.message_received(message):  # it is in progress
            self._count(message)
            if self._running_bytes >= SMALL_BYTES:
                self._update_unfinished()

    def _count(self, message: bytes) -> None:
        """Count a message in progress, until `message_done`, which can have been called."""
        self._running += 1
        self._running_bytes += len(message)

    def _parse(self) -> None:
        """Process frames while there is room for messages. The rest waits, and nothing more is read."""
        left, frame_reader = MAX_FRAMES, self._frames
        waits = False
        try:
            while frame_reader.data and not self._closing:
                waits = left == 0 or not self._has_room()
                if waits or (received := frame_reader.next()) is None:
                    break
                left -= 1
                opcode, data = received
                if opcode == frames.TEXT or opcode == frames.BINARY:
                    if not self.receiver.message_received(data):
                        self._count(data)
                else:
                    self._process(opcode, data)
        except InvalidFrame as error:
            self.close(error.code, error.reason)
        if self._closing:
            return
        if self._paused is not waits and not self._transport.is_closing():
            self._paused = waits
            (self._transport.pause_reading if waits else self._transport.resume_reading)()
        self._update_unfinished()
        if waits:
            self._parse_soon()

    def _has_room(self) -> bool:
        return self._running < MAX_MESSAGES and self._running_bytes < MAX_MESSAGES_BYTES

    def _process(self, opcode: int, data: bytes) -> None:
        if opcode == frames.CLOSE:
            code = frames.close_code(data)
            self.closed_by_client = code in DELIBERATE
            self._send_close(code, data, received=True)
        elif opcode == frames.PONG and self._pinged:
            self._pinged = False
        else:
            self.receiver.frame_received()
            if opcode == frames.PING:
                self._post_frame(make_frame(frames.PONG, data))

    def _parse_soon(self) -> None:
        """Parse the frames that wait in the next event-loop iteration, if more messages can be processed."""
        if self._paused and not self._wakes and not self._closing and self._has_room():
            self._wakes = True
            self.state.loop.call_soon(self._parse_the_rest)

    def _parse_the_rest(self) -> None:
        self._wakes = False
        if not self._closing:
            self._parse()

    # From the receiver and the server

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._posted) + self._kept_bytes

    @property
    def unfinished_bytes(self) -> int:
        return self._frames.buffered_bytes + self._running_bytes

    def send(self, message: bytes, *more: bytes) -> "asyncio.Future[None]":
        """Send text messages. Return a future that is done when more may be sent, or the connection is closed."""
        if not self._closing:
            frame = make_frame(frames.TEXT, message)
            self._flush(b"".join((frame, *map(make_text, more))) if more else frame)
        return self.drained or self.state.done

    def post(self, message: bytes) -> None:
        """Send a text message in the next event-loop iteration, in one write with others of this one.

        A sender of many messages uses `send`, which reports whether the client reads them.
        """
        self._post_frame(make_text(message))

    def _write_posted(self) -> None:
        if self._posted and not self._closing:
            self._flush()

    def send_part(self, part: bytes, *, first: bool = False, last: bool = False) -> "asyncio.Future[None]":
        """Send a part of a text message. Until the last one no other message may be sent. See `send` for the result."""
        if not self._closing:
            self._flush(make_frame(frames.TEXT if first else frames.CONTINUATION, part, last=last))
        return self.drained or self.state.done

    def add_kept(self, size: int) -> None:
        """Add bytes that the receiver keeps for a client to the budget of unread data. The size can be negative."""
        self._kept_bytes += size
        self._update_unsent()

    def message_done(self, size: int) -> None:
        """Allow another message: one of `size` bytes is done or waits."""
        self._running -= 1
        self._running_bytes -= size
        if self._is_unfinished:
            self._update_unfinished()
        if self._paused:
            self._parse_soon()

    def close(self, code: int | None = CloseCode.SERVICE_RESTART, reason: str = "") -> None:
        """Close the connection. None closes it without a code."""
        self.drops_messages = self.drops_messages or code == CloseCode.POLICY_VIOLATION
        if not self._closing:  # otherwise the client has closed after the messages taken so far
            if code in BLAMES_CLIENT:
                self.state.cut_off[reason] += 1
            self._send_close(code or CloseCode.NO_STATUS_RCVD, frames.close_data(code, reason), received=False)

    def abort(self) -> None:
        self._closing = self.drops_messages = True
        self._drop_input()
        self._transport.abort()

    def deadline_passed(self) -> None:
        now_s = self.state.loop.time()
        unsent = self._transport.get_write_buffer_size()
        if self.drained is not None and unsent < self._unread_bytes:
            self._unread_bytes = unsent
            self._stalled_s = self._heard_s = now_s
        stalled_s = now_s - self._stalled_s if self.drained is not None else 0.0
        if self._closing or stalled_s >= SILENT_S or now_s >= self._heard_s + SILENT_S:
            if stalled_s and not self._closing:
                self.state.cut_off[NOT_READ] += 1
            self.abort()
            return
        self.deadline_s = min(now_s + (PING_S if unsent <= MAX_UNSENT_BYTES else UNREAD_S), self._heard_s + SILENT_S)
        if unsent > MAX_UNSENT_BYTES and stalled_s >= UNREAD_S:
            self.close(CloseCode.POLICY_VIOLATION, NOT_READ)
        elif self.drained is None and not self._transport.is_closing():  # otherwise it has enough to read
            self._flush(_PING)
            self._pinged = True

    def _post_frame(self, frame: bytes) -> None:
        if self._closing:
            return
        if not self._posted:
            self.state.write_soon(self._write_posted)
        self._posted += frame
        if len(self._posted) >= POSTED_BYTES:
            self._flush()

    def _flush(self, data: bytes = b"") -> None:
        """Write posted frames, then others."""
        if self._transport.is_closing():
            return
        if self._posted:
            data, self._posted = self._posted + data, b""
        self._transport.write(data)
        if self.drained is not None:
            self._unread_bytes += len(data)
            self._update_unsent()
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
                self.deadline_s = min(self.deadline_s, self.state.loop.time() + UNREAD_S)

    def _update_unsent(self) -> None:
        """Report the size of unread output to the budget `unsent`."""
        if self._closing:  # it is over soon
            return
        if self.drained is not None or self._kept_bytes:
            self.state.unsent.update(self, self.unsent_bytes)
        else:
            self.state.unsent.forget(self)

    def _update_unfinished(self) -> None:
        """Report the size of unprocessed input to the budget `unfinished`."""
        if self._closing:  # it is over soon
            return
        if self._frames.buffered_bytes or self._running_bytes >= SMALL_BYTES:
            self._is_unfinished = True
            self.state.unfinished.update(self, self.unfinished_bytes)
        elif self._is_unfinished:
            self._is_unfinished = False
            self.state.unfinished.forget(self)

    def _drop_input(self) -> None:
        """Drop input that is not going to be parsed."""
        self._frames.clear()
        self._posted = b""
        self.state.unfinished.forget(self)

    def _send_close(self, code: int, data: bytes, *, received: bool) -> None:
        """Send a close frame, and close once the client has read everything. Discard further input."""
        if self._transport.is_closing():
            return
        self._flush(make_frame(frames.CLOSE, data))
        self._close_code = code
        self._closing = True
        self._drop_input()
        self.deadline_s = self.state.loop.time() + CLOSE_S
        if received or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._paused:
            self._transport.resume_reading()


def accept(headers: Headers, version: str, subprotocol: str) -> bytes | None:
    """Check a handshake, a GET (RFC 6455, 4.2). No extension is accepted.

    Return the headers of the 101 response, each ending its line, or None if the request is not a handshake.
    `version` is that of HTTP. `subprotocol` is chosen if the client offers it.
    """
    sent = headers.sent
    if version != "HTTP/1.1" or sent.get(b"sec-websocket-version") != WEBSOCKET_VERSION.encode():
        return None
    if sent.get(b"upgrade", b"").lower() != b"websocket":
        return None
    if b"upgrade" not in _tokens(sent.get(b"connection", b"").lower()):
        return None
    key = sent.get(b"sec-websocket-key", b"")
    if not _KEY.fullmatch(key):
        return None
    digest = hashlib.sha1(key + _GUID, usedforsecurity=False).digest()
    answer = _ACCEPTED % b2a_base64(digest, newline=False)
    # Compared exactly, unlike the tokens of HTTP.
    if subprotocol and subprotocol.encode() in _tokens(sent.get(b"sec-websocket-protocol", b"")):
        answer += b"Sec-WebSocket-Protocol: %b\r\n" % subprotocol.encode()
    return answer


def _tokens(value: bytes) -> list[bytes]:
    return value.replace(b",", b" ").split()
