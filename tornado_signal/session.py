"""Sessions, their parts and the rules for changing them. Nothing here reads a clock, a disk or a socket."""

import enum
import hashlib
import hmac
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from .errors import AlreadyAnswered


class Side(enum.Enum):
    """The role of a peer in a session."""

    OFFERER = "offerer"
    ANSWERER = "answerer"

    __hash__ = object.__hash__  # hashing by identity costs a tenth of the enumeration's own hash

    @property
    def other(self) -> "Side":
        return ANSWERER if self is OFFERER else OFFERER


# Finding a member in its class takes 0.4 µs on Python 3.11, as long as a dozen other steps.
OFFERER: Final = Side.OFFERER
ANSWERER: Final = Side.ANSWERER


class Reason(enum.Enum):
    """The reason why a session was removed from its listing. The values are stored on disk."""

    ANSWERED = 1
    EXPIRED = 2
    WITHDRAWN = 3


Outcome = Literal["created", "answered", "expired", "withdrawn"]
"""An event of a session. Only an unanswered session expires as an event."""

Observer = Callable[[Outcome, str, bytes, str | None, int | None, int | None], None]
"""A function that is called after each event of a session. It must neither wait nor raise.

Its arguments are the event, the origin and the code, and if known the topic, the creation and the expiry. Times are in
Unix milliseconds.
"""


class Session(NamedTuple):
    """The fixed data of a session. The offer, the answer and the candidates are stored separately."""

    code: bytes  # the session's UUID, 16 bytes
    topic: str  # the topic that lists it, at most 256 code points
    info: str  # the offerer's description of itself, at most 1024 code points
    created_ms: int  # Unix time in milliseconds. It never goes backwards within a store
    expires_ms: int  # Unix time in milliseconds, the first instant at which the session no longer exists
    timeout_ms: int  # its lifetime from the creation or the last refresh
    serial: int  # its number in the store's order of events. It breaks ties within one millisecond
    secret_hash: bytes = b""  # hash of the offerer's secret. Empty if there is none (docs/http-api.md#secrets)


class ListedSession(NamedTuple):
    """One entry of a topic's listing."""

    session: Session
    offer: str
    candidates: list[str]

    @property
    def size(self) -> int:
        """The number of characters of its offer and candidates."""
        return len(self.offer) + sum(map(len, self.candidates))


class Answer(NamedTuple):
    """The answer of a session."""

    text: str  # the answerer's signaling data
    number: int  # its place in the order of the answerer's messages, from 1
    secret_hash: bytes = b""  # hash of the answerer's secret. Empty if there is none


class Position(NamedTuple):
    """The position of a reader in the events of a topic, or in its listing."""

    store: str  # what numbers the events, 12 hexadecimal digits. See `Store.knows`
    event: int  # the number of the newest known removal or refresh. For a listing: the serial of its newest session
    listed: int  # the serial of the newest known session. For a listing: its length


class SessionPosition(NamedTuple):
    """The position of a reader in the messages of one side of a session."""

    serial: int  # the session's serial. It distinguishes sessions that share a content-derived code
    number: int  # the number of the newest message read. 0 for none


class SessionUpdate(NamedTuple):
    """The messages that one side reads from the other."""

    description: str | None  # the offer, or the answer (None until there is one)
    description_number: int  # its place in the order of its side's messages, from 1. 0 for none
    candidates: list[tuple[int, str]]  # pairs of number and text, in the order of acceptance
    expires_ms: int  # the current expiry. A refresh moves it
    serial: int = 0

    @property
    def last(self) -> int:
        """The number of the newest message, or 0."""
        return max(self.description_number, self.candidates[-1][0] if self.candidates else 0)


class Refreshed(NamedTuple):
    """Result of a refresh."""

    expires_ms: int  # the new expiry, Unix milliseconds
    announced_bytes: int  # the size of the offerer's messages if the refresh is an event of the listing, otherwise 0


class Removed(NamedTuple):
    """A session removed from its topic's listing."""

    position: Position  # the position after this event
    code: bytes
    reason: Reason  # the reason of the removal


class Listed(NamedTuple):
    """A session added to its topic's listing, or a listed one that was refreshed."""

    position: Position  # the position after this event
    listed: ListedSession


class EventBatch(NamedTuple):
    """Changes of a topic's listing: first removals and refreshes in their order, then additions, oldest first."""

    events: list[Removed | Listed]
    position: Position  # the position after these changes
    more: bool  # whether further changes are available now
    reset: bool = False  # whether the reader must forget all sessions first, because earlier changes are lost


class TopicRange(NamedTuple):
    """A topic, or all topics with a prefix. They are adjacent in the order of code points."""

    text: str
    is_prefix: bool

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """The first name in UTF-8, and a bound above the last one."""
        name = self.text.encode("utf-8", "surrogatepass")
        return name, name + (b"\xff" if self.is_prefix else b"\x00")


class ListingState(NamedTuple):
    """The state of a topic's listing at one instant."""

    changed: bool  # whether it holds other sessions than at the given position
    position: Position  # the position of this state


def changes_answer(current: Answer | None, answer: str) -> bool:
    """Decide whether an answer changes a session: only the first one does (docs/decisions.md#first-answer).

    A retry of it changes nothing. A different answer raises AlreadyAnswered.
    """
    if current is not None and current.text != answer:
        raise AlreadyAnswered
    return current is None


SIDE_BODIES: Final = 4
"""The data of one side of a session is limited to this many bodies of the maximum size."""

LEASE_BYTES: Final = 12
MAX_LEASES: Final = 16  # per offer; the oldest are dropped
MIN_HELD_MS: Final = 40_000  # minimum lifetime of a held offer after a renewal; it bounds the work of renewing many


def split_leases(leases: bytes) -> list[bytes]:
    return [leases[at : at + LEASE_BYTES] for at in range(0, len(leases), LEASE_BYTES)]


def add_lease(leases: bytes, lease: bytes) -> bytes:
    """Return the leases of an offer with `lease` as the newest one."""
    return b"".join([*drop_leases(leases, lease), lease][-MAX_LEASES:])


def drop_leases(leases: bytes, prefix: bytes) -> list[bytes]:
    """Return the leases that do not begin with `prefix`, which is a lease or the id of a process."""
    return [lease for lease in split_leases(leases) if not lease.startswith(prefix)]


def utf8_length(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def hash_secret(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def owns(secret_hash: bytes, shown_hash: bytes) -> bool:
    """Return whether a request with `shown_hash` may act as a side with `secret_hash`, in constant time."""
    return not secret_hash or hmac.compare_digest(secret_hash, shown_hash)


def content_code(origin: str, topics: list[str], offer: str) -> bytes:
    """Return the content-derived code of an offer: a version 8 UUID of 16 bytes.

    The hash covers the origin, the sorted topics and the offer, but not `info`. The length of each part precedes it.
    So different parts never give the same bytes. See docs/decisions.md#deterministic-identifiers.
    """
    digest = hashlib.sha256()
    for text in (origin, *sorted(topics), offer):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return make_uuid(digest.digest()[:16], 8)


def make_uuid(data: bytes, version: int) -> bytes:
    """Return 16 bytes as a UUID by setting the variant and the version (RFC 9562, 4.1 and 4.2)."""
    code = bytearray(data)
    code[6] = code[6] & 0x0F | version << 4
    code[8] = code[8] & 0x3F | 0x80
    return bytes(code)
