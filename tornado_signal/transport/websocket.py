"""A connection after its upgrade to a WebSocket (RFC 6455): text messages in and out, pings, and its end."""

import asyncio
import logging
import re
import struct
from collections.abc import Callable
from typing import Final, Protocol, cast

from tornado import httputil
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import Protocol as Frames
from websockets.protocol import Side, State
from websockets.utils import accept_key

from .state import ServerState

try:
    from websockets.speedups import apply_mask
except ImportError:  # no compiled wheel for this platform
    from websockets.utils import apply_mask

logging.getLogger("websockets").setLevel(logging.WARNING)  # it would log every connection
_LOG: Final = logging.getLogger("websockets.server")

PING_S: Final = 20.0  # between two questions whether the client is there
SILENT_S: Final = 40.0  # after which it is not
CLOSE_S: Final = 2.0  # for a client to close what is closed
MAX_UNSENT_BYTES: Final = 1024 * 1024  # beyond it a client that stops reading is closed sooner
UNREAD_S: Final = 5.0  # without progress, after which it is
MAX_MESSAGES: Final = 64  # per connection in progress; further ones are not read
MAX_MESSAGES_BYTES: Final = 8 * 1024  # of these messages; a larger one is processed alone
PIECE_BYTES: Final = 2 * 1024  # parsed at once; a piece can hold hundreds of frames
TURN_BYTES: Final = 8 * PIECE_BYTES  # parsed per connection and event-loop iteration
POSTED_BYTES: Final = 64 * 1024  # kept for one write per event-loop iteration; beyond it they are written at once

DELIBERATE: Final = (CloseCode.NORMAL_CLOSURE, CloseCode.GOING_AWAY, CloseCode.NO_STATUS_RCVD)

_PING: Final = Frame(Opcode.PING, b"").serialize(mask=False)
_PONG: Final = b"\x8a\x80"  # what answers it, before the masking key
_PONG_BYTES: Final = 6
_WHOLE_TEXT: Final = 0x81
_MASKED: Final = 0x80
_CLOSE: Final = 0x88
_CLOSES: Final = {code: b"\x88%c%b" % (len(code), code) for code in (b"", b"\x03\xe8", b"\x03\xe9")}  # by their data
_CLOSE_SIZES: Final = (6, 8)  # of these frames from a client
_MEDIUM_SIZE: Final = struct.Struct("!H")
_LARGE_SIZE: Final = struct.Struct("!Q")
_MEDIUM: Final = struct.Struct("!BH")  # the size of a frame's data, after its first byte
_LARGE: Final = struct.Struct("!BQ")
_KEY: Final = re.compile("[A-Za-z0-9+/]{21}[AQgw]==")  # 16 bytes


class Receiver(Protocol):
    """Receiver of a WebSocket's messages."""

    def connected(self) -> None:
        """Handle the completed handshake. Messages can be sent."""

    def message_received(self, message: bytes) -> None:
        """Process a complete text message. At most MAX_MESSAGES are passed before `WebSocket.message_done`."""

    def frame_received(self) -> None:
        """Count a frame that is not a whole message: a fragment, a ping or an unsolicited pong."""

    def client_gone(self) -> None:
        """Handle the end of the connection."""


class WebSocket(asyncio.Protocol):
    """One client's connection, from its upgrade on.

    Args:
        max_message_bytes: the largest message.
        client_address: the client's IP address, which is not `remote_ip` behind a proxy.
        binary: whether binary messages are accepted like text.

    Attributes:
        receiver: the receiver of the messages, to be set by the owner.
        on_closed: is called with the code of the close (RFC 6455, 7.1.5) when the connection has ended, or None.
        refused: whether it is closed because of its client's behaviour. Its pending messages are dropped.
        state: shared with the server's other connections.
        remote_ip: the address of the other end, or empty on a Unix socket.
        client_address: as given.
        deadline_s: the time of the next check by the loop's clock.
    """

    __slots__ = (
        "_binary",
        "_client_code",
        "_closing",
        "_drained",
        "_fragments",
        "_frame_left",
        "_heard_s",
        "_max_message_bytes",
        "_owed_bytes",
        "_partial_bytes",
        "_paused",
        "_pinged",
        "_posted",
        "_protocol",
        "_refusal",
        "_running",
        "_running_bytes",
        "_stalled_s",
        "_taken_bytes",
        "_transport",
        "_unfinished_bytes",
        "_waiting",
        "_wakes",
        "_written_bytes",
        "client_address",
        "deadline_s",
        "on_closed",
        "receiver",
        "refused",
        "remote_ip",
        "state",
    )

    idle = False  # a stopping server closes it in `Server.close_websockets`
    receiver: Receiver
    _transport: asyncio.Transport

    def __init__(
        self,
        state: ServerState,
        remote_ip: str,
        refusal: int | None,
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
        self.refused = False
        self._refusal = refusal
        self._binary = binary
        self._max_message_bytes = max_message_bytes
        self._protocol: Frames | None = None  # see `_general`
        self._heard_s = 0.0
        self._pinged = False  # whether the latest ping has not been answered
        self._fragments: list[bytes] = []  # of a message that is not whole
        self._unfinished_bytes = 0  # since the last whole message
        self._partial_bytes = 0  # since the last whole frame
        self._frame_left = 0  # bytes due of a text message's only frame, or 0 if unknown
        self._waiting = b""  # what has been read and not been parsed
        self._wakes = False  # whether it is parsed in the next event-loop iteration
        self._running = 0  # messages in progress
        self._running_bytes = 0  # size of the messages in progress
        self._paused = False
        self._posted = b""  # frames to be written in the next event-loop iteration
        self._drained: asyncio.Future[None] | None = None
        self._owed_bytes = 0  # bytes that the receiver cannot send to the client yet
        self._stalled_s = 0.0  # time of the last read by a client that reads too slowly
        self._written_bytes = 0  # total
        self._taken_bytes = 0  # of these, taken by the client at the last check
        self._client_code: int | None = None  # the code of a close frame that the general parser has not seen
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
        self.state.release(self.remote_ip, self._refusal)
        self.resume_writing()
        self.receiver.client_gone()
        if self.on_closed is not None:
            self.on_closed(self._close_code)
        self._forget()
        if self._protocol is not None:
            # The parser is a generator that refers to its protocol, directly and by the traceback of an error.
            self._protocol.parser.close()
            self._protocol.parser_exc = None
            self._protocol = None
        del self.receiver  # which refers back

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._drained = self.state.loop.create_future()
        self._stalled_s = self.state.loop.time()
        self._taken_bytes = self._written_bytes - self._transport.get_write_buffer_size()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        self._count_unsent()
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes of frames, split anywhere."""
        if self._closing:
            return
        self._heard_s = self.state.loop.time()
        between_frames = not self._partial_bytes and not self._waiting
        if self._pinged and len(data) == _PONG_BYTES and data.startswith(_PONG) and between_frames:
            self._pinged = False
            return  # all that an idle client sends
        if self._waiting:
            self._keep(self._waiting + data)
            return
        if between_frames and self._protocol is None and len(data) in _CLOSE_SIZES and self._take_close(data):
            return
        taken = self._take_message(data, 0) if between_frames and self._has_room() else 0
        if taken < len(data) or taken >= PIECE_BYTES:
            self._parse(data, taken)

    def _take_message(self, data: bytes, at: int) -> int:
        """Take a message in one frame at an offset, without the general parser (RFC 6455, 5.2).

        Returns:
            The size of the frame, or 0 if it is not such a message, or incomplete. Of an incomplete one, `_frame_left`
            is the size.
        """
        size = len(data) - at
        if size < 6 or data[at] != _WHOLE_TEXT or self._fragments or not self._open:
            return 0
        length, head = data[at + 1] - _MASKED, 6
        if length > 125:
            if size < 14:
                return 0
            unpack, head, least = (_MEDIUM_SIZE, 8, 126) if length == 126 else (_LARGE_SIZE, 14, 65_536)
            (length,) = unpack.unpack_from(data, at + 2)
            if length < least:
                return 0
        if not 0 <= length <= self._max_message_bytes:
            return 0
        if head + length > size:
            self._frame_left = head + length
            return 0
        at += head
        self._running += 1
        self._running_bytes += length
        self.receiver.message_received(apply_mask(data[at : at + length], data[at - 4 : at]))
        return head + length

    def _take_close(self, data: bytes) -> bool:
        """Take a close frame that arrived alone, with code 1000 or 1001 or none, without the general parser.

        Returns:
            Whether the data is such a frame.
        """
        code = apply_mask(data[6:], data[2:6])
        response = _CLOSES.get(code)
        if response is None or data[0] != _CLOSE or data[1] != _MASKED | len(code):
            return False
        self._client_code = int.from_bytes(code, "big") or CloseCode.NO_STATUS_RCVD
        self._flush(response)
        self._end()
        return True

    def _parse(self, data: bytes, taken: int = 0) -> None:
        while taken < min(len(data), TURN_BYTES) and self._has_room() and not self._closing:
            if not self._partial_bytes and (size := self._take_message(data, taken)):
                taken += size
                continue
            # Not beyond an incomplete message, so that the next one is at an offset that is known.
            piece = data[taken : taken + min(PIECE_BYTES, self._frame_left or PIECE_BYTES)]
            self._frame_left -= len(piece) if self._frame_left else 0
            taken += len(piece)
            self._unfinished_bytes += len(piece)
            self._partial_bytes += len(piece)
            frames = self._general
            frames.receive_data(piece)
            for frame in frames.events_received():
                self._take(cast(Frame, frame))
            self._flush()
        if self._closing:
            return
        self._keep(data[taken:] if taken else data)
        if self._paused != bool(self._waiting) and not self._transport.is_closing():
            self._paused = not self._paused
            (self._transport.pause_reading if self._paused else self._transport.resume_reading)()

    def _has_room(self) -> bool:
        return self._running < MAX_MESSAGES and self._running_bytes < MAX_MESSAGES_BYTES

    def _take(self, frame: Frame) -> None:
        size = len(frame.data)
        self._partial_bytes -= 6 + size + (0 if size < 126 else 2 if size < 65_536 else 8)
        if self._closing:
            return
        if frame.opcode is Opcode.BINARY and not self._binary:
            self.close(CloseCode.UNSUPPORTED_DATA, "messages are text")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT, Opcode.BINARY):
            data = bytes(frame.data)
            if not frame.fin or self._fragments:
                self._fragments.append(data)
                if not frame.fin:
                    self.receiver.frame_received()
                    return
                data = b"".join(self._fragments)
                self._fragments = []
            self._unfinished_bytes = 0
            self._running += 1
            self._running_bytes += len(data)
            self.receiver.message_received(data)
        else:
            if not self._fragments:
                self._unfinished_bytes = 0
            if frame.opcode is Opcode.PONG and self._pinged:
                self._pinged = False
            elif frame.opcode is not Opcode.CLOSE:
                self.receiver.frame_received()

    def _keep(self, waiting: bytes) -> None:
        """Update the size of unprocessed input, which is bounded for all connections together."""
        self._waiting = waiting
        if waiting or self._unfinished_bytes or self._running_bytes >= PIECE_BYTES:
            self.state.unfinished.grown(self, self.unfinished_bytes)
        else:
            self.state.unfinished.forget(self)
        self._parse_soon()

    def _parse_soon(self) -> None:
        """Parse waiting input in the next event-loop iteration, if more messages can be processed."""
        if self._waiting and not self._wakes and not self._closing and self._has_room():
            self._wakes = True
            self.state.loop.call_soon(self._parse_the_rest)

    # From the receiver and the server

    @property
    def protocol(self) -> str:
        return self.state.protocol

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() + len(self._posted) + self._owed_bytes

    @property
    def unfinished_bytes(self) -> int:
        return len(self._waiting) + self._unfinished_bytes + self._running_bytes

    @property
    def room(self) -> "asyncio.Future[None]":
        """A future that is done when more may be sent, or the connection is closed."""
        return self._drained or self.state.done

    @property
    def _general(self) -> Frames:
        """The general parser and serializer, created when needed. Most connections need it only to be closed."""
        if self._protocol is None:
            self._protocol = Frames(Side.SERVER, max_size=self._max_message_bytes, logger=_LOG)
        return self._protocol

    @property
    def _open(self) -> bool:
        """Whether no close frame has been sent or received."""
        return self._protocol is None or self._protocol.state is State.OPEN

    @property
    def _between_messages(self) -> bool:
        """Whether a whole message can be sent now."""
        protocol = self._protocol
        return protocol is None or (protocol.state is State.OPEN and not protocol.expect_continuation_frame)

    def send(self, *messages: bytes, last: bool = True) -> "asyncio.Future[None]":
        """Send text messages, or the first part of one. Return `room`."""
        if not self._closing:
            if last and self._between_messages:
                self._flush(*map(_frame, messages))
            else:
                for message in messages:
                    self._general.send_text(message, fin=last)
                self._flush()
        return self.room

    def post(self, message: bytes) -> None:
        """Send a text message in the next event-loop iteration, in one write with others of this one.

        A sender of many messages uses `send`, which reports whether the client reads them.
        """
        if self._closing:
            return
        if not self._between_messages:
            self.send(message)
            return
        if not self._posted:
            self.state.write_soon(self)
        self._posted += _frame(message)
        if len(self._posted) >= POSTED_BYTES:
            self._flush()

    def write_posted(self) -> None:
        """Write the posted messages."""
        if self._posted and not self._closing:
            self._flush()

    def send_more(self, part: bytes, *, last: bool) -> "asyncio.Future[None]":
        """Send another part of a message. Return `room`."""
        if not self._closing:
            self._general.send_continuation(part, fin=last)
            self._flush()
        return self.room

    def owe(self, size: int) -> None:
        """Add `count` to the bytes that cannot be sent to the client yet. It can be negative."""
        self._owed_bytes += size
        self._count_unsent()

    def message_done(self, size: int) -> None:
        """Allow another message: one of `size` bytes is done or waits."""
        self._running -= 1
        self._running_bytes -= size
        if size >= PIECE_BYTES and not self._closing:
            self._keep(self._waiting)
        else:
            self._parse_soon()

    @property
    def closed_by_client(self) -> bool:
        """Whether the client has closed the connection deliberately (RFC 6455, 7.4.1: 1000, 1001 or no code)."""
        protocol = self._protocol
        if protocol is None or protocol.close_rcvd is None:
            return self._client_code is not None
        return protocol.close_rcvd.code in DELIBERATE and bool(protocol.close_rcvd_then_sent)

    @property
    def _close_code(self) -> int:
        """The code of the first close frame, 1005 if it has none, or 1006 without a close frame."""
        protocol = self._protocol
        if protocol is None:
            return self._client_code or CloseCode.ABNORMAL_CLOSURE
        first = protocol.close_rcvd if protocol.close_rcvd_then_sent else protocol.close_sent or protocol.close_rcvd
        return CloseCode.ABNORMAL_CLOSURE if first is None else first.code

    def close(self, code: int | None = CloseCode.SERVICE_RESTART, reason: str = "") -> None:
        """Close the connection. None closes it without a code."""
        self.refused = self.refused or code == CloseCode.POLICY_VIOLATION
        if not self._closing and self._open:  # otherwise the client has closed after the messages taken so far
            self._general.send_close(code, reason)
            self._general.send_eof()
            self._flush()

    def abort(self) -> None:
        self._closing = self.refused = True
        self._forget()
        self._transport.abort()

    def deadline_passed(self) -> None:
        now_s = self.state.loop.time()
        unsent = self._transport.get_write_buffer_size()
        if self._drained is not None and self._written_bytes - unsent > self._taken_bytes:
            self._taken_bytes = self._written_bytes - unsent
            self._stalled_s = self._heard_s = now_s
        stalled_s = now_s - self._stalled_s if self._drained is not None else 0.0
        if self._closing or stalled_s >= SILENT_S or now_s >= self._heard_s + SILENT_S:
            self.abort()
            return
        self.deadline_s = min(now_s + (PING_S if unsent <= MAX_UNSENT_BYTES else UNREAD_S), self._heard_s + SILENT_S)
        if unsent > MAX_UNSENT_BYTES and stalled_s >= UNREAD_S:
            self.close(CloseCode.POLICY_VIOLATION, "messages are not read")
        elif self._drained is None and not self._transport.is_closing():  # otherwise it has enough to read
            self._write(_PING)
            self._pinged = True

    def _parse_the_rest(self) -> None:
        self._wakes = False
        if not self._closing:
            self._parse(self._waiting)

    def _flush(self, *frames: bytes) -> None:
        """Send posted messages, what the protocol has to send, and frames. End the connection if that is all."""
        protocol, writes = self._protocol, frames
        if self._posted:
            writes, self._posted = (self._posted, *frames), b""
        if protocol is not None and protocol.writes:
            # Only a message is posted or given, and none after a close frame.
            writes = (*writes, *protocol.data_to_send())
        if not writes or self._transport.is_closing():
            return
        self._write(b"".join(writes))
        if protocol is not None and protocol.eof_sent:
            self._end()
        elif self._drained is not None:
            self._count_unsent()
            if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES and not self._closing:
                self.deadline_s = min(self.deadline_s, self.state.loop.time() + UNREAD_S)

    def _write(self, data: bytes) -> None:
        self._transport.write(data)
        self._written_bytes += len(data)

    def _count_unsent(self) -> None:
        if self._closing:  # it is over soon
            return
        if self._drained is not None or self._owed_bytes:
            self.state.unsent.grown(self, self.unsent_bytes)
        else:
            self.state.unsent.forget(self)

    def _forget(self) -> None:
        """Let go of what has come: it is not going to be parsed."""
        if self._unfinished_bytes:
            self._general.receive_eof()
        self._fragments, self._waiting, self._posted, self._unfinished_bytes = [], b"", b"", 0
        self.state.unfinished.forget(self)

    def _end(self) -> None:
        """Close once the client has read everything sent. Discard further input."""
        self._closing = True
        self._forget()
        self.deadline_s = self.state.loop.time() + CLOSE_S
        received = self._client_code is not None or self._general.close_rcvd is not None
        if received or not self._transport.can_write_eof():
            self._transport.close()
            return
        self._transport.write_eof()
        if self._paused:
            self._transport.resume_reading()


def _frame(message: bytes) -> bytes:
    """Return a whole text message in a frame (RFC 6455, 5.2). A general frame of websockets costs ten times more."""
    size = len(message)
    if size < 126:
        return b"\x81%c%b" % (size, message)
    return b"\x81" + (_MEDIUM.pack(126, size) if size < 65_536 else _LARGE.pack(127, size)) + message


def accept(headers: httputil.HTTPHeaders, version: str, subprotocol: str) -> list[tuple[str, str]] | None:
    """Check a handshake, a GET (RFC 6455, 4.2). No extension is accepted.

    Args:
        headers: of the request.
        version: of HTTP.
        subprotocol: what is chosen if the client offers it.

    Returns:
        The headers of the 101 response, or None if the request is not a handshake.
    """
    if version != "HTTP/1.1" or headers.get("Sec-WebSocket-Version") != "13":
        return None
    if headers.get("Upgrade", "").lower() != "websocket":
        return None
    if "upgrade" not in map(str.lower, _tokens(headers, "Connection")):
        return None
    key = headers.get("Sec-WebSocket-Key", "")
    if not _KEY.fullmatch(key):
        return None
    answer = [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept_key(key))]
    if subprotocol in _tokens(headers, "Sec-WebSocket-Protocol"):  # compared exactly, unlike the tokens of HTTP
        answer.append(("Sec-WebSocket-Protocol", subprotocol))
    return answer


def _tokens(headers: httputil.HTTPHeaders, name: str) -> list[str]:
    return headers.get(name, "").replace(",", " ").split()
