"""The format of keys and values on disk. Nothing here reads or writes a database.

The first byte of a key names its table. Strings in keys are escaped and terminated. So the byte order of keys is the
order of the strings, and the keys of a string never lie between those of a longer one. Numbers have 8 bytes in
big-endian order, so that byte order is numeric order. `~n` stands for 2^64 - 1 - n: newest first.

    F                                      -> format version
    I                                      -> the random identity of this store, its secret
    M                                      -> counters: newest time, last serial
    S origin code HEAD                     -> created_ms expires_ms timeout_ms serial, topic, secret's hash, info
    S origin code OFFER                    -> the offer
    S origin code OFFER_CANDIDATE number   -> a candidate of the offerer
    S origin code ANSWER                   -> its number, secret's hash, the answer
    S origin code ANSWER_CANDIDATE number  -> a candidate of the answerer
    S origin code LEASES                   -> the leases of an unanswered session that is held
    L origin topic ~created_ms ~serial     -> code: the unanswered sessions of a topic

Serials order the sessions of the whole store. Numbers order the messages of one side of a session, from 1. The offer
is always number 1 of its side. The answer can come after candidates of its side.

Format 1 also had tables of expiries, removals and leases, and the expiry in the values of L. Earlier versions append
the number of L entries to the counters.
"""

import functools
import struct
from collections.abc import Iterator
from typing import Final

from ...errors import DatabaseError
from ...session import Answer, Session, Side

FORMAT: Final = 2
FORMAT_1: Final = 1

FORMAT_KEY: Final = b"F"
IDENTITY_KEY: Final = b"I"
COUNTERS_KEY: Final = b"M"
SESSIONS: Final = b"S"
LISTING: Final = b"L"
# Not keys of the store. One sorts before all of them, the other after all.
BEFORE_ALL: Final = b"\x00"
AFTER_ALL: Final = b"\xff"

HEAD: Final = b"\x00"
OFFER: Final = b"\x01"
OFFER_CANDIDATE: Final = b"\x02"
ANSWER: Final = b"\x03"
ANSWER_CANDIDATE: Final = b"\x04"
LEASES: Final = b"\x05"
# Upper bounds of scans of one side of a session.
AFTER_OFFERER: Final = ANSWER
AFTER_ANSWERER: Final = LEASES

DESCRIPTION: Final = {Side.OFFERER: OFFER, Side.ANSWERER: ANSWER}
CANDIDATE: Final = {Side.OFFERER: OFFER_CANDIDATE, Side.ANSWERER: ANSWER_CANDIDATE}
AFTER_SIDE: Final = {Side.OFFERER: AFTER_OFFERER, Side.ANSWERER: AFTER_ANSWERER}

CODE_BYTES: Final = 16
IDENTITY_BYTES: Final = 6
SECRET_BYTES: Final = 32
_LAST: Final = 2**64 - 1
_NUMBER: Final = struct.Struct(">Q")
_TWO_NUMBERS: Final = struct.Struct(">QQ")
_HEAD: Final = struct.Struct(">QQQQHB")
_ANSWER: Final = struct.Struct(">QB")

pack_number = _NUMBER.pack


def unpack_number(data: bytes) -> int:
    number: int = _NUMBER.unpack(data)[0]
    return number


def pack_string(data: bytes) -> bytes:
    """Escape and terminate one component of a key.

    A NUL becomes NUL FF, and the end is NUL NUL. So the end sorts before any continuation and before an escaped NUL.
    """
    return data.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


def unpack_string(key: bytes, start: int) -> tuple[bytes, int]:
    """Inverse of `pack_string` at an offset of a key. Return the component, and the offset after it."""
    end = key.index(b"\x00", start)
    while key[end + 1]:
        end = key.index(b"\x00", end + 2)
    return key[start:end].replace(b"\x00\xff", b"\x00"), end + 2


@functools.lru_cache(maxsize=1024)
def pack_origin(origin: str) -> bytes:
    """Return an origin as a component of a key. Header values are ISO-8859-1, so every byte is kept."""
    return pack_string(origin.encode("latin-1"))


# Key: M   Value: the latest time that the store has seen in Unix milliseconds, serial of the newest session
pack_counters = _TWO_NUMBERS.pack


def unpack_counters(value: bytes | None) -> tuple[int, int]:
    """Return zeros for a new store."""
    latest_ms, serial = _TWO_NUMBERS.unpack_from(value) if value is not None else (0, 0)
    return latest_ms, serial


# Key: S origin code part [serial]
def pack_session_prefix(origin: str, code: bytes) -> bytes:
    """Return the prefix of all keys of a session. It contains the origin, so other origins cannot reach the session."""
    return SESSIONS + pack_origin(origin) + code


def unpack_session_key(key: bytes) -> tuple[str, bytes, bytes]:
    """Return origin, code and part of a key of the session table. The part includes its number, if any."""
    origin, at = unpack_string(key, 1)
    return origin.decode("latin-1"), key[at : at + CODE_BYTES], key[at + CODE_BYTES :]


def unpack_part(part: bytes, value: bytes) -> tuple[Side, int]:
    """Return the side that sent a part of a session, and the number of the part. The part is not the head."""
    if part == OFFER:
        return Side.OFFERER, 1
    if part == ANSWER:
        return Side.ANSWERER, unpack_answer(value).number
    return Side.OFFERER if part.startswith(OFFER_CANDIDATE) else Side.ANSWERER, unpack_number(part[1:])


def pack_candidate_keys(key: bytes, side: Side, last: int, described: int) -> Iterator[bytes]:
    """Yield the keys of one side's candidates, which have all numbers up to `last` except that of the description."""
    return (key + CANDIDATE[side] + pack_number(number) for number in range(1, last + 1) if number != described)


# Value of S origin code HEAD
def pack_head(session: Session) -> bytes:
    """Return a session without its code, which is in the key."""
    topic = session.topic.encode()
    numbers = (session.created_ms, session.expires_ms, session.timeout_ms, session.serial)
    head = _HEAD.pack(*numbers, len(topic), len(session.secret_hash))
    return head + topic + session.secret_hash + session.info.encode()


def unpack_head(code: bytes, value: bytes) -> Session:
    created_ms, expires_ms, timeout_ms, serial, topic_length, secret_length = _HEAD.unpack_from(value)
    secret_at = _HEAD.size + topic_length
    info_at = secret_at + secret_length
    topic = value[_HEAD.size : secret_at].decode()
    secret_hash = value[secret_at:info_at]
    return Session(code, topic, value[info_at:].decode(), created_ms, expires_ms, timeout_ms, serial, secret_hash)


def unpack_head_access(value: bytes) -> tuple[int, int, int, bytes]:
    """Return created_ms, expires_ms, serial and the hash of the secret, which are all that most requests need."""
    created_ms, expires_ms, _, serial, topic_length, secret_length = _HEAD.unpack_from(value)
    secret_at = _HEAD.size + topic_length
    return created_ms, expires_ms, serial, value[secret_at : secret_at + secret_length]


# Value of S origin code ANSWER
def pack_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(answer.number, len(answer.secret_hash)) + answer.secret_hash + answer.text.encode()


def unpack_answer(value: bytes) -> Answer:
    number, secret_length = _ANSWER.unpack_from(value)
    text_at = _ANSWER.size + secret_length
    return Answer(value[text_at:].decode(), number, value[_ANSWER.size : text_at])


# Key: L origin topic ~created_ms ~serial   Value: code
def pack_listing_prefix(origin: str, topic: str) -> bytes:
    """Return the prefix of the listing keys of a topic. Within it, byte order is newest first."""
    return LISTING + pack_origin(origin) + pack_string(topic.encode())


def pack_listing_key(origin: str, topic: str, created_ms: int, serial: int) -> bytes:
    return pack_listing_prefix(origin, topic) + _TWO_NUMBERS.pack(_LAST - created_ms, _LAST - serial)


def unpack_listing_key(key: bytes) -> tuple[str, str, int, int]:
    origin, at = unpack_string(key, 1)
    topic, at = unpack_string(key, at)
    created, serial = _TWO_NUMBERS.unpack_from(key, at)
    return origin.decode("latin-1"), topic.decode(), _LAST - created, _LAST - serial


def check_format(value: bytes | None, path: str) -> int:
    """Return the format of a database. Refuse one that this version cannot read."""
    if value is None:
        raise DatabaseError(f"{path} holds a LevelDB database that is not tornado-signal's; choose another --data-dir")
    version = int.from_bytes(value, "big")
    if version not in (FORMAT_1, FORMAT):
        raise DatabaseError(
            f"{path} has format {version}, this version reads format {FORMAT}; "
            "run the version that wrote it, or choose another --data-dir"
        )
    return version
