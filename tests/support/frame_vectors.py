"""WebSocket frames of a client, valid and invalid, and how a server handles them (RFC 6455, 5 and 7)."""

from typing import NamedTuple

TEXT, BINARY, CONT, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
MORE = 0x80  # added to an opcode: another fragment follows
MAX_BYTES = 262_144  # the largest message
NO_CODE = 1005  # of a close frame without data


class Vector(NamedTuple):
    """The frames of a client, and their meaning for a server.

    Attributes:
        sent: the bytes, which can be split anywhere.
        messages: the complete messages.
        pings: the data of each ping.
        code: the code of the server's close frame, or None if the connection stays open.
        binary: whether the last message is binary. Where messages are text only, the server closes with 1003 instead.
    """

    sent: bytes
    messages: tuple[bytes, ...] = ()
    pings: tuple[bytes, ...] = ()
    code: int | None = None
    binary: bool = False


def frame(kind: int, data: bytes = b"", *, key: bytes = b"\x37\xfa\x21\x3d", rsv: int = 0, form: int = 0) -> bytes:
    """Return a client's frame, whatever it is.

    Args:
        kind: the opcode, plus MORE unless it is the last fragment.
        data: its data.
        key: the masking key. Without one the frame is not masked.
        rsv: the reserved bits: 4, 2 and 1.
        form: the least size of the length: 0, 2 or 8 bytes.
    """
    size = len(data)
    form = max(form, 8 if size > 65_535 else 2 if size > 125 else 0)
    mask = (key * (size // 4 + 1))[:size]
    masked = (int.from_bytes(data) ^ int.from_bytes(mask)).to_bytes(size) if key else data
    length = {0: size, 2: 126, 8: 127}[form]
    head = bytes([(kind ^ MORE) | rsv << 4, length | (0x80 if key else 0)])
    return head + (size.to_bytes(form) if form else b"") + key + masked


def whole(data: bytes, kind: int = TEXT, **options) -> Vector:
    return Vector(frame(kind, data, **options), (data,), binary=kind == BINARY)


def split(*parts: bytes, kind: int = TEXT, between: bytes = b"", pings: tuple[bytes, ...] = ()) -> Vector:
    """Return a message in fragments, with the same bytes between all of them."""
    first, *rest = parts
    frames = [frame(kind | MORE, first), *(frame(CONT | MORE, part) for part in rest[:-1]), frame(CONT, rest[-1])]
    return Vector(between.join(frames), (b"".join(parts),), pings * (len(parts) - 1), binary=kind == BINARY)


def refused(sent: bytes, code: int = 1002) -> Vector:
    return Vector(sent, code=code)


def closed(code: int, reason: bytes = b"", answer: int | None = None) -> Vector:
    return Vector(frame(CLOSE, code.to_bytes(2) + reason), code=answer or code)


def halves(data: bytes, at: int) -> tuple[bytes, bytes]:
    return data[:at], data[at:]


SHORT = b"a message"
WIDE = "text ä€😀".encode()  # characters of two, three and four bytes
_AT = WIDE.index("ä".encode())
# Overlong forms, a surrogate, a code point beyond the last, lone and missing continuations, bytes of no character.
NOT_UTF8 = [b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]
NOT_UTF8 += [b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xfe", b"\xff", b"\xc3\x28", b"\xf8\x88\x80\x80\x80"]
PING_125 = frame(PING, b"p" * 125)

VECTORS = {
    # Lengths
    **{f"{size} bytes": whole(b"x" * size) for size in (125, 126, 127, 65_535, 65_536, MAX_BYTES)},
    "no bytes": whole(b""),
    "a byte": whole(b"1"),
    **{f"{size} bytes, length of 8": refused(frame(TEXT, b"x" * size, form=8)) for size in (126, 65_535)},
    **{f"no bytes, length of {form}": refused(frame(TEXT, b"", form=form)) for form in (2, 8)},
    **{f"125 bytes, length of {form}": refused(frame(TEXT, b"x" * 125, form=form)) for form in (2, 8)},
    "a byte too many": refused(frame(TEXT, b"x" * (MAX_BYTES + 1)), 1009),
    "a length too great": refused(b"\x81\xff" + (MAX_BYTES + 1).to_bytes(8) + b"mask", 1009),
    "the greatest length": refused(b"\x81\xff" + (2**63 - 1).to_bytes(8) + b"mask", 1009),
    "a negative length": refused(b"\x81\xff" + b"\xff" * 8 + b"mask", 1009),
    # Masks
    **{f"mask {key.hex()}": whole(SHORT, key=key) for key in (bytes(4), b"\xff" * 4, b"\x80\0\0\x01")},
    **{f"unmasked {kind}": refused(frame(kind, b"", key=b"")) for kind in (TEXT, CONT, PING, PONG, CLOSE)},
    # Fragments
    "two fragments": split(*halves(SHORT, 7)),
    "empty fragments": split(b"", b"", SHORT, b"", b""),
    "only empty fragments": split(b"", b""),
    "a byte each": split(*(SHORT[at : at + 1] for at in range(len(SHORT)))),
    "pings between": split(*halves(SHORT, 7), b"", between=frame(PING, b"!"), pings=(b"!",)),
    "pongs between": split(*halves(SHORT, 7), b"", between=frame(PONG, b"!") + frame(PONG)),
    "fragments of the greatest size": split(*halves(b"x" * MAX_BYTES, 65_536)),
    "fragments too large": refused(frame(TEXT | MORE, b"x" * MAX_BYTES) + frame(CONT, b"x"), 1009),
    "continuation of nothing": refused(frame(CONT, b"x")),
    "fragment of nothing": refused(frame(CONT | MORE, b"x")),
    "text among fragments": refused(frame(TEXT | MORE, b"x") + frame(TEXT, SHORT)),
    "binary among fragments": refused(frame(TEXT | MORE, b"x") + frame(BINARY, SHORT)),
    "continuation of a whole message": Vector(frame(TEXT, SHORT) + frame(CONT, b"x"), (SHORT,), code=1002),
    "close among fragments": Vector(frame(TEXT | MORE, b"x") + frame(CLOSE, b"\3\xe8"), code=1000),
    # Binary messages
    "binary": whole(SHORT, BINARY),
    "binary in fragments": split(*halves(SHORT, 7), kind=BINARY, between=frame(PING), pings=(b"",)),
    # Reserved bits and opcodes
    **{f"bit {rsv} on {kind}": refused(frame(kind, b"", rsv=rsv)) for rsv in (1, 2, 4) for kind in (TEXT, PING, CLOSE)},
    "bit 4 on a continuation": refused(frame(TEXT | MORE, b"x") + frame(CONT, b"x", rsv=4)),
    **{f"opcode {kind}": refused(frame(kind)) for kind in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)},
    # Control frames
    "pings": Vector(frame(PING) + PING_125 + frame(TEXT, SHORT), (SHORT,), (b"", b"p" * 125)),
    "ping of any bytes": Vector(frame(PING, b"\xff\0"), pings=(b"\xff\0",)),
    "unsolicited pongs": Vector(frame(PONG) + frame(PONG, b"\xff" * 125) + frame(TEXT, SHORT), (SHORT,)),
    **{f"large {kind}": refused(frame(kind, b"\3\xe8" + b"x" * 124)) for kind in (PING, PONG, CLOSE)},
    **{f"fragment of {kind}": refused(frame(kind | MORE)) for kind in (PING, PONG, CLOSE)},
    "ping with a length of 2": refused(frame(PING, b"x", form=2)),
    # Closes
    "close": Vector(frame(CLOSE), code=NO_CODE),
    "close of one byte": refused(frame(CLOSE, b"\3")),
    **{f"close {code}": closed(code) for code in (*range(1000, 1004), *range(1007, 1015), 3000, 3999, 4000, 4999)},
    **{f"close {code}": closed(code, answer=1002) for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65_535)},
    "close with a reason": closed(1000, b"r" * 123),
    "close with a reason that is not UTF-8": closed(1000, b"\xff", 1007),
    "messages after a close": Vector(frame(CLOSE, b"\3\xe8") + frame(TEXT, SHORT), code=1000),
    # UTF-8
    **{f"UTF-8 split at {at}": split(*halves(WIDE, _AT + at)) for at in range(10)},
    "UTF-8, pings between": split(*halves(WIDE, _AT + 6), between=PING_125, pings=(b"p" * 125,)),
    "noncharacters": whole("\ufffe\uffff\U0010ffff\0".encode()),
    **{f"not UTF-8: {some.hex()}": refused(frame(TEXT, some), 1007) for some in NOT_UTF8},
    **{f"not UTF-8, in fragments: {some.hex()}": refused(split(*halves(some, 1)).sent, 1007) for some in NOT_UTF8[3:5]},
}  # fmt: skip
