"""WebSocket frames: what a client sends into messages, and messages into frames (RFC 6455, 5 to 8). No I/O."""

import struct
from typing import Final

try:
    # Undocumented, but a hundred times faster than Python: https://github.com/tornadoweb/tornado/pull/579
    from tornado.speedups import websocket_mask as unmask
except ImportError:  # no compiled wheel for this platform

    def unmask(mask: bytes, data: bytes) -> bytes:
        """Return masked data without its mask, or the reverse (RFC 6455, 5.3)."""
        size = len(data)
        masks = (mask * (size // 4 + 1))[:size]
        return (int.from_bytes(data) ^ int.from_bytes(masks)).to_bytes(size)


CONTINUATION: Final = 0
TEXT: Final = 1
BINARY: Final = 2
CLOSE: Final = 8
PING: Final = 9
PONG: Final = 10
FRAGMENT: Final = -1  # in place of the opcode of a message that is incomplete

MAX_CONTROL_BYTES: Final = 125

_FIN: Final = 0x80
_RESERVED: Final = 0x70
_OPCODE: Final = 0x0F
_MASKED: Final = 0x80
_DATA: Final = (CONTINUATION, TEXT, BINARY)
_CONTROL: Final = (CLOSE, PING, PONG)
_KEY_BYTES: Final = 4
_CODE: Final = struct.Struct("!H")
# By the first length: the longer length, the size of the head before the key, and the least valid length.
_LONGER: Final = {126: (_CODE, 4, 126), 127: (struct.Struct("!Q"), 10, 1 << 16)}
_HEAD: Final = struct.Struct("!BBH")
_MASKED_HEAD: Final = struct.Struct("!HH4s")
_SHORT_TEXT: Final = (_FIN | TEXT) << 8 | _MASKED  # plus the length
_MEDIUM_TEXT: Final = _SHORT_TEXT | 126  # followed by a length of two bytes
_LARGE: Final = struct.Struct("!BBQ")


class CloseCode:
    """Codes of close frames (RFC 6455, 7.4). The last two mark connections that were closed without one."""

    NORMAL_CLOSURE: Final = 1000
    GOING_AWAY: Final = 1001
    PROTOCOL_ERROR: Final = 1002
    UNSUPPORTED_DATA: Final = 1003
    INVALID_DATA: Final = 1007
    POLICY_VIOLATION: Final = 1008
    MESSAGE_TOO_BIG: Final = 1009
    INTERNAL_ERROR: Final = 1011
    SERVICE_RESTART: Final = 1012
    TRY_AGAIN_LATER: Final = 1013
    NO_STATUS_RCVD: Final = 1005
    ABNORMAL_CLOSURE: Final = 1006


def _is_valid(code: int) -> bool:
    """Return whether a close frame can have a code (the IANA registry, and those of libraries and applications)."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


class InvalidFrame(Exception):
    """A client violates the protocol or sends a message that is not accepted."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code  # the code to close the connection with
        self.reason = reason  # the reason for the close frame


class FrameReader:
    """Parser of a client's frames. After an exception or a close frame it must not be used."""

    __slots__ = ("_at", "_binary", "_is_text", "_max_message_bytes", "_message", "data")

    def __init__(self, max_message_bytes: int, *, binary: bool = False) -> None:
        self._max_message_bytes = max_message_bytes
        self._binary = binary
        self.data: bytes | bytearray = b""  # the data that is not parsed
        self._at = 0  # offset of the next frame
        self._message: bytearray | None = None  # its fragments so far, or None between messages
        self._is_text = True

    @property
    def buffered_bytes(self) -> int:
        """The size of unparsed data and of an incomplete message."""
        return len(self.data) + len(self._message or b"")

    def receive(self, data: bytes) -> None:
        if not self.data:
            self.data = data
            return
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        self.data += data

    def read_text(self, data: bytes) -> bytes | None:
        """Return the message of new data that is just one short text frame in ASCII, otherwise None."""
        size = len(data)
        if size < 8 or self.data or self._message is not None:
            return None
        head, medium, key = _MASKED_HEAD.unpack_from(data)
        if head == _MEDIUM_TEXT and medium == size - 8 > MAX_CONTROL_BYTES:
            masked = data[8:]
        elif head == size - 6 + _SHORT_TEXT < _MEDIUM_TEXT:
            key, masked = data[2:6], data[6:]
        else:
            return None
        if size > self._max_message_bytes:  # at the limit without the head, `next` reads it
            return None
        message = unmask(key, masked)
        return message if message.isascii() else None

    def clear(self) -> None:
        self.data, self._at, self._message = b"", 0, None

    def next(self) -> tuple[int, bytes] | None:
        """Return the next opcode and its data, or None if the frame is incomplete.

        TEXT and BINARY have a complete message, a control frame its data, and FRAGMENT nothing. Raise InvalidFrame if
        the connection must be closed.
        """
        data, at = self.data, self._at
        size = len(data)
        if size - at < 2:
            self._keep_unparsed()
            return None
        first, length = data[at], data[at + 1] - _MASKED
        self._check(first, length)
        head = 2
        if length > MAX_CONTROL_BYTES:
            longer, head, least = _LONGER[length]
            if size - at < head:
                self._keep_unparsed()
                return None
            (length,) = longer.unpack_from(data, at + 2)
            if length < least:
                raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "length not in its shortest form")
        earlier_bytes = len(self._message) if self._message and first & _OPCODE in _DATA else 0
        if earlier_bytes + length > self._max_message_bytes:
            raise InvalidFrame(CloseCode.MESSAGE_TOO_BIG, f"messages have at most {self._max_message_bytes} bytes")
        begin = at + head + _KEY_BYTES
        end = begin + length
        if size < end:
            self._keep_unparsed()
            return None
        payload = unmask(bytes(data[begin - _KEY_BYTES : begin]), bytes(data[begin:end]))
        if end < size:
            self._at = end
        else:  # the data of the latest frame would stay in memory
            self.data, self._at = b"", 0
        opcode = first & _OPCODE
        if opcode in _CONTROL:
            return opcode, _check_close(payload) if opcode == CLOSE else payload
        return self._join(opcode, payload, last=bool(first & _FIN))

    def _check(self, first: int, length: int) -> None:
        """Check the first byte of a frame, and its length in the second one."""
        opcode = first & _OPCODE
        if length < 0:
            raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "frame without a mask")
        if first & _RESERVED:
            raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "reserved bits must be 0")
        if opcode in _DATA:
            if (opcode == CONTINUATION) is (self._message is None):
                raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "fragments out of order")
            if opcode == BINARY and not self._binary:
                raise InvalidFrame(CloseCode.UNSUPPORTED_DATA, "messages are text")
        elif opcode not in _CONTROL:
            raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "invalid opcode")
        elif length > MAX_CONTROL_BYTES or not first & _FIN:
            raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "control frame too long or fragmented")

    def _join(self, opcode: int, payload: bytes, *, last: bool) -> tuple[int, bytes]:
        """Add a fragment to its message, whose order `_check` has checked, and return that if it is complete."""
        if opcode != CONTINUATION:
            self._is_text = opcode == TEXT
        if not last or self._message is not None:
            if self._message is None:
                self._message = bytearray()
            self._message += payload
            if not last:
                return FRAGMENT, b""
            payload, self._message = bytes(self._message), None
        if self._is_text:
            _check_utf8(payload)
        return TEXT if self._is_text else BINARY, payload

    def _keep_unparsed(self) -> None:
        """Drop parsed data, which can be much more than the beginning of the next frame."""
        if self._at:
            self.data, self._at = self.data[self._at :], 0


def _check_utf8(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError:
        raise InvalidFrame(CloseCode.INVALID_DATA, "text must be UTF-8") from None


def _check_close(data: bytes) -> bytes:
    if data and (len(data) == 1 or not _is_valid(_CODE.unpack_from(data)[0])):
        raise InvalidFrame(CloseCode.PROTOCOL_ERROR, "invalid close frame")
    _check_utf8(data[2:])
    return data


def close_code(data: bytes) -> int:
    return int(_CODE.unpack_from(data)[0]) if data else CloseCode.NO_STATUS_RCVD


def close_data(code: int | None, reason: str = "") -> bytes:
    """Return the data of a close frame. None stands for no code."""
    if code is None:
        return b""
    shortened = reason.encode()[: MAX_CONTROL_BYTES - 2].decode(errors="ignore")
    return _CODE.pack(code) + shortened.encode()


def make_frame(opcode: int, data: bytes = b"", *, last: bool = True) -> bytes:
    """Return a frame of a server, which is not masked."""
    first, size = opcode | _FIN if last else opcode, len(data)
    if size <= MAX_CONTROL_BYTES:
        return b"%c%c%b" % (first, size, data)
    return (_HEAD.pack(first, 126, size) if size < 1 << 16 else _LARGE.pack(first, 127, size)) + data
