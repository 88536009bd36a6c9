"""The format of keys and values on disk. Nothing here reads or writes a database.

The first byte of a key names its table. Strings in keys are escaped and terminated. So the byte order of keys is the
order of the strings, and the keys of a string never lie between those of a longer one. Numbers have 8 bytes in
big-endian order, so that byte order is numeric order. `~n` stands for 2^64 - 1 - n: newest first.

    F                                      -> format version
    I                                      -> the random identity of this store, its secret
    M                                      -> counters: newest time, last serial, number of L entries
    Mf                                     -> the serial of the last removal whose G entry was deleted
    S origin code HEAD                     -> created_ms expires_ms timeout_ms serial, topic, secret's hash, info
    S origin code OFFER                    -> the offer
    S origin code OFFER_CANDIDATE number   -> a candidate of the offerer
    S origin code ANSWER                   -> its number, secret's hash, the answer
    S origin code ANSWER_CANDIDATE number  -> a candidate of the answerer
    L origin topic ~created_ms ~serial     -> code, expires_ms: the unanswered sessions of a topic
    G origin topic kind serial             -> code, the session's serial, reason or 0: recent removals and refreshes
    E expires_ms key                       -> nothing: the time to delete a session (S origin code) or a G key
    H S origin code                        -> the leases of a listed session that is held

Serials order the events of the whole store. Numbers order the messages of one side of a session, from 1. The offer is
always number 1 of its side. The answer can come after candidates of its side.
"""

import functools
import struct
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ...errors import DatabaseError
from ...session import Answer, Reason, Session, Side

FORMAT: Final = 1

FORMAT_KEY: Final = b"F"
IDENTITY_KEY: Final = b"I"
COUNTERS_KEY: Final = b"M"
FORGOTTEN_KEY: Final = b"Mf"
SESSIONS: Final = b"S"
LISTING: Final = b"L"
REMOVALS: Final = b"G"
EXPIRY: Final = b"E"
LEASES: Final = b"H"
# Not keys of the store. One sorts before all of them, the other after all.
BEFORE_ALL: Final = b"\x00"
AFTER_ALL: Final = b"\xff"
AFTER_KEYS: Final = b"\xff" * 4  # after a table's byte: sorts after all keys of the table
QUEUES: Final = (EXPIRY, REMOVALS)  # tables whose entries are deleted soon and in their order

HEAD: Final = b"\x00"
OFFER: Final = b"\x01"
OFFER_CANDIDATE: Final = b"\x02"
ANSWER: Final = b"\x03"
ANSWER_CANDIDATE: Final = b"\x04"
# Upper bounds of scans of one side of a session, and of the whole session.
AFTER_OFFERER: Final = ANSWER
AFTER_ANSWERER: Final = b"\x05"
AFTER_SESSION: Final = AFTER_ANSWERER

# The kinds of removals. Refreshes are among them.
KIND: Final = {Reason.ANSWERED: b"\x00", Reason.EXPIRED: b"\x01", Reason.WITHDRAWN: b"\x00", None: b"\x02"}
KINDS: Final = sorted({*KIND.values()})

# Sorts after every number.
AFTER_NUMBERS: Final = b"\xff" * 9

DESCRIPTION: Final = {Side.OFFERER: OFFER, Side.ANSWERER: ANSWER}
CANDIDATE: Final = {Side.OFFERER: OFFER_CANDIDATE, Side.ANSWERER: ANSWER_CANDIDATE}
AFTER_SIDE: Final = {Side.OFFERER: AFTER_OFFERER, Side.ANSWERER: AFTER_ANSWERER}

CODE_BYTES: Final = 16
IDENTITY_BYTES: Final = 6
SECRET_BYTES: Final = 32
_LAST: Final = 2**64 - 1
_NUMBER: Final = struct.Struct(">Q")
_TWO_NUMBERS: Final = struct.Struct(">QQ")
_THREE_NUMBERS: Final = struct.Struct(">QQQ")
_HEAD: Final = struct.Struct(">QQQQHB")
_ANSWER: Final = struct.Struct(">QB")
_REMOVAL: Final = struct.Struct(">16sQB")

pack_number = _NUMBER.pack


def unpack_number(data: bytes) -> int:
    """Inverse of `pack_number`."""
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


# Key: M   Value: newest time, last serial, number of listed sessions
class StoreCounters(NamedTuple):
    """The counters of the whole store."""

    created_ms: int  # the latest time that the store has seen. No session is newer. 0 for none
    serial: int  # the serial of the newest event, 0 for none
    listed: int  # the number of entries in the listings, including expired ones that are not swept


def pack_counters(counters: StoreCounters) -> bytes:
    return _THREE_NUMBERS.pack(*counters)


def unpack_counters(value: bytes) -> StoreCounters:
    """Inverse of `pack_counters`."""
    return StoreCounters(*_THREE_NUMBERS.unpack(value))


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


def pack_part_keys(key: bytes, numbers: Mapping[Side, int], answer_number: int) -> Iterator[bytes]:
    """Yield the keys of a session's parts in order, from the last number of each side and of the answer."""
    yield key + HEAD
    yield key + OFFER
    for number in range(2, numbers[Side.OFFERER] + 1):
        yield key + OFFER_CANDIDATE + pack_number(number)
    if answer_number:
        yield key + ANSWER
    for number in range(1, numbers[Side.ANSWERER] + 1):
        if number != answer_number:
            yield key + ANSWER_CANDIDATE + pack_number(number)


# Value of S origin code HEAD
def pack_head(session: Session) -> bytes:
    """Return a session without its code, which is in the key."""
    topic = session.topic.encode()
    numbers = (session.created_ms, session.expires_ms, session.timeout_ms, session.serial)
    head = _HEAD.pack(*numbers, len(topic), len(session.secret_hash))
    return head + topic + session.secret_hash + session.info.encode()


def unpack_head(code: bytes, value: bytes) -> Session:
    """Inverse of `pack_head`."""
    created_ms, expires_ms, timeout_ms, serial, topic_length, secret_length = _HEAD.unpack_from(value)
    secret_at = _HEAD.size + topic_length
    info_at = secret_at + secret_length
    topic = value[_HEAD.size : secret_at].decode()
    secret_hash = value[secret_at:info_at]
    return Session(code, topic, value[info_at:].decode(), created_ms, expires_ms, timeout_ms, serial, secret_hash)


def unpack_head_access(value: bytes) -> tuple[int, int, bytes]:
    """Return expires_ms, serial and the hash of the secret, which are all that most requests need."""
    _, expires_ms, _, serial, topic_length, secret_length = _HEAD.unpack_from(value)
    secret_at = _HEAD.size + topic_length
    return expires_ms, serial, value[secret_at : secret_at + secret_length]


# Value of S origin code ANSWER
def pack_answer(answer: Answer) -> bytes:
    return _ANSWER.pack(answer.number, len(answer.secret_hash)) + answer.secret_hash + answer.text.encode()


def unpack_answer(value: bytes) -> Answer:
    """Inverse of `pack_answer`."""
    number, secret_length = _ANSWER.unpack_from(value)
    text_at = _ANSWER.size + secret_length
    return Answer(value[text_at:].decode(), number, value[_ANSWER.size : text_at])


def unpack_answer_access(value: bytes) -> tuple[bytes, int]:
    """Return the hash of the secret and the number, which are all that most requests need."""
    number, secret_length = _ANSWER.unpack_from(value)
    return value[_ANSWER.size : _ANSWER.size + secret_length], number


# Key: L origin topic ~created_ms ~serial   Value: code, expires_ms
def pack_listing_prefix(origin: str, topic: str) -> bytes:
    """Return the prefix of the listing keys of a topic. Within it, byte order is newest first."""
    return LISTING + pack_origin(origin) + pack_string(topic.encode())


def pack_listing_key(origin: str, session: Session) -> bytes:
    """Return the key of an unanswered session in its topic's listing."""
    order = _TWO_NUMBERS.pack(_LAST - session.created_ms, _LAST - session.serial)
    return pack_listing_prefix(origin, session.topic) + order


def listing_prefix(key: bytes) -> bytes:
    """Return the part of a listing key that holds origin and topic."""
    return key[: -_TWO_NUMBERS.size]


def unpack_listing_prefix(prefix: bytes) -> tuple[str, str]:
    """Return origin and topic of a listing key or of its prefix."""
    origin, at = unpack_string(prefix, 1)
    return origin.decode("latin-1"), unpack_string(prefix, at)[0].decode()


def unpack_listing_key(key: bytes) -> tuple[str, str, int, int]:
    """Return origin, topic, created_ms and serial of a listing key."""
    created, serial = _TWO_NUMBERS.unpack(key[-_TWO_NUMBERS.size :])
    return *unpack_listing_prefix(key), _LAST - created, _LAST - serial


def pack_listing_value(session: Session) -> bytes:
    """Return code and expiry, which are enough to skip an expired entry without reading its session."""
    return session.code + pack_number(session.expires_ms)


def unpack_listing_value(value: bytes) -> tuple[bytes, int]:
    """Inverse of `pack_listing_value`: code and expires_ms."""
    return value[:CODE_BYTES], unpack_number(value[CODE_BYTES:])


def unpack_listed(key: bytes, value: bytes) -> tuple[int, int, bytes]:
    """Return expires_ms, serial and code of an entry of a listing."""
    return unpack_number(value[CODE_BYTES:]), _LAST - unpack_number(key[-_NUMBER.size :]), value[:CODE_BYTES]


# Key: G origin topic kind serial   Value: code, serial, reason or 0
def pack_removal_prefix(origin: str, topic: str, kind: bytes) -> bytes:
    """Return the prefix of a topic's removals of a kind. Byte order is the order of removal."""
    return REMOVALS + pack_origin(origin) + pack_string(topic.encode()) + kind


def pack_removal_value(session: Session, reason: Reason | None) -> bytes:
    """Return the value of a removal. Without a reason, it is a refresh: the session stays listed."""
    return _REMOVAL.pack(session.code, session.serial, reason.value if reason else 0)


def unpack_removal_value(value: bytes) -> tuple[bytes, int, Reason | None]:
    """Inverse of `pack_removal_value`: code, the session's serial, reason."""
    code, serial, reason = _REMOVAL.unpack(value)
    return code, serial, Reason(reason) if reason else None


# Key: E expires_ms key   Value: nothing
def pack_expiry_key(expires_ms: int, key: bytes) -> bytes:
    """Return the expiry key of a session, given by its prefix, or of a removal, given by its key."""
    return EXPIRY + pack_number(expires_ms) + key


def pack_expired_stop(now_ms: int) -> bytes:
    """Return the upper bound of a scan for entries that have expired by `now_ms`."""
    return EXPIRY + pack_number(now_ms + 1)


def unpack_expiry_key(key: bytes) -> tuple[int, bytes]:
    """Inverse of `pack_expiry_key`."""
    return unpack_number(key[1:9]), key[9:]


# Key: H S origin code   Value: leases
def pack_leases_key(key: bytes) -> bytes:
    """Return the key of a session's leases, given the key of the session."""
    return LEASES + key


NO_COUNTERS: Final = pack_counters(StoreCounters(0, 0, 0))


def check_format(value: bytes | None, path: str) -> None:
    """Check the value of the format key, and refuse a database that this version cannot read."""
    if value is None:
        raise DatabaseError(f"{path} holds a LevelDB database that is not tornado-signal's; choose another --data-dir")
    version = int.from_bytes(value, "big")
    if version != FORMAT:
        raise DatabaseError(
            f"{path} has format {version}, this version reads format {FORMAT}; "
            "run the version that wrote it, or choose another --data-dir"
        )
