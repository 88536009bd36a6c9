"""Records of sessions in the format of the scripts."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from ...session import ListedSession, Session, SessionUpdate, Side

CHUNK = 16  # messages of a side per field
SPREAD_MS = 30_000  # the key of a session is deleted at most this long after its expiry
_TIMES = struct.Struct(">QQQ")
_SENT = struct.Struct(">IIIIIB")
_NUMBERED = struct.Struct(">II")
NAMES = {Side.OFFERER: b"o", Side.ANSWERER: b"a"}


class Sent(NamedTuple):
    """The state of both sides' messages."""

    last: dict[Side, int]  # the last number of each side
    answered: int  # the number of the answer, 0 for none
    secret_hash: bytes  # the hash of the answerer's secret


UNANSWERED = Sent({Side.OFFERER: 1, Side.ANSWERER: 0}, 0, b"")


def pack_fixed(secret_hash: bytes, topic: str, info: str) -> bytes:
    """Return the fixed data of a session as an argument of its script, without times and serial."""
    name = topic.encode()
    return b"%c%b%b%b%b" % (len(secret_hash), secret_hash, struct.pack(">H", len(name)), name, info.encode())


def unpack_session(code: bytes, fixed: bytes, expires: bytes) -> Session:
    created_ms, timeout_ms, serial = _TIMES.unpack_from(fixed)
    at = 25 + fixed[24]
    secret_hash = fixed[25:at]
    topic = fixed[at + 2 :][: int.from_bytes(fixed[at : at + 2], "big")]
    info = fixed[at + 2 + len(topic) :]
    return Session(code, topic.decode(), info.decode(), created_ms, int(expires), timeout_ms, serial, secret_hash)


def unpack_secret(fixed: bytes) -> tuple[int, bytes]:
    return int.from_bytes(fixed[16:24], "big"), fixed[25 : 25 + fixed[24]]


def unpack_sent(field: bytes | None) -> Sent:
    if field is None:
        return UNANSWERED
    offerer, _, answerer, _, answered, length = _SENT.unpack_from(field)
    return Sent({Side.OFFERER: offerer, Side.ANSWERER: answerer}, answered, field[21 : 21 + length])


def chunk_fields(side: Side, first: int, last: int) -> list[bytes]:
    """Return the fields that hold a side's candidates from `first` to `last`."""
    return [b"%b%d" % (NAMES[side], number) for number in range(first // CHUNK, last // CHUNK + 1)]


def unpack_candidates(chunks: Sequence[bytes | None], since: int) -> list[tuple[int, str]]:
    """Return the candidates after the number `since`, with their numbers."""
    candidates = []
    for chunk in chunks:
        at = 0
        while chunk and at < len(chunk):
            number, length = _NUMBERED.unpack_from(chunk, at)
            at += 8
            if number > since:
                candidates.append((number, chunk[at : at + length].decode()))
            at += length
    return candidates


def unpack_listed(code: bytes, fields: Sequence[bytes | None]) -> tuple[ListedSession, int] | None:
    """Return a listed session from `h`, `e`, `k`, `o` and the first chunks of its candidates.

    Return also the offerer's last number, or None if the session no longer exists or is answered.
    """
    fixed, expires, state, offer, *chunks = fields
    if fixed is None or expires is None or offer is None:
        return None
    sent = unpack_sent(state)
    if sent.answered:
        return None
    candidates = [text for _, text in unpack_candidates(chunks, 0)]
    return ListedSession(unpack_session(code, fixed, expires), offer.decode(), candidates), sent.last[Side.OFFERER]


def unpack_update(side: Side, fields: Sequence[bytes | None], sent: Sent, serial: int, since: int) -> SessionUpdate:
    """Return the messages of a side, from `e`, its description and the chunks of its candidates."""
    expires, description, *chunks = fields
    assert expires is not None
    number = 1 if side is Side.OFFERER else sent.answered
    text = None if description is None else description.decode()
    return SessionUpdate(text, number, unpack_candidates(chunks, since), int(expires), serial)
