"""What a session is and what may become of it. Nothing here reads a clock, a disk or a socket."""

import enum
import hashlib
import hmac
from collections.abc import Hashable
from typing import Final, NamedTuple

from .errors import AlreadyAnswered


class Side(enum.Enum):
    """Which peer is speaking (specification 2, Side)."""

    OFFERER = "offerer"
    ANSWERER = "answerer"

    __hash__ = object.__hash__  # by identity, which costs a tenth of the enumeration's own

    @property
    def other(self) -> "Side":
        """The peer that it speaks with."""
        return Side.ANSWERER if self is Side.OFFERER else Side.OFFERER


class Reason(enum.Enum):
    """Why a session is no longer to be found (contract C3); the values are those on disk."""

    ANSWERED = 1
    EXPIRED = 2
    WITHDRAWN = 3


class Session(NamedTuple):
    """What is fixed when an offer is published; offer, answer and candidates are kept beside it.

    Attributes:
        code: the session's UUID, 16 bytes.
        topic: where it is listed, at most 256 code points.
        info: the peer's own words, at most 1024 code points.
        created_ms: Unix time in milliseconds; never goes backwards within a store.
        expires_ms: Unix time in milliseconds; the first instant at which it no longer exists.
        timeout_ms: how long it lives from its creation or its last refresh.
        serial: its place in the store's order of events; breaks ties within one millisecond.
        secret_hash: of the secret that the offerer must show; empty if it showed none (contract C5).
    """

    code: bytes
    topic: str
    info: str
    created_ms: int
    expires_ms: int
    timeout_ms: int
    serial: int
    secret_hash: bytes = b""

    def live(self, now_ms: int) -> bool:
        """Contract B10: live while now is before the expiry."""
        return now_ms < self.expires_ms


class ListedSession(NamedTuple):
    """One entry of a topic's listing (specification 4, GET /:topic/sessions)."""

    session: Session
    offer: str
    candidates: list[str]


class Answer(NamedTuple):
    """The answer of a session.

    Attributes:
        text: the answerer's signaling data.
        number: its place among all that the answerer has sent, from 1.
        secret_hash: of the secret that the answerer must show; empty if it showed none (contract C5).
    """

    text: str
    number: int
    secret_hash: bytes = b""


Position = Hashable
"""Where a reader of a topic or of its listing has come to: the engine's own business, but that equal ones are equal."""


class SessionPosition(NamedTuple):
    """Where a reader of one side of a session has come to.

    Attributes:
        serial: the session's own; where codes come from content it tells a session from the one before it.
        number: that of the newest that it knows; 0 for nothing.
    """

    serial: int
    number: int


class SessionUpdate(NamedTuple):
    """What one side reads of the other (specification 4, POST /poll; contract C1).

    Attributes:
        description: the offer, or the answer (None until there is one).
        description_number: its place among all that its side has sent, from 1; 0 for none.
        candidates: pairs of number and text, in the order in which they were accepted.
        expires_ms: when the session ends, as things are.
        serial: the session's own.
    """

    description: str | None
    description_number: int
    candidates: list[tuple[int, str]]
    expires_ms: int
    serial: int = 0

    @property
    def last(self) -> int:
        """The number of the newest of them; 0 for none."""
        return max(self.description_number, self.candidates[-1][0] if self.candidates else 0)


class Removed(NamedTuple):
    """A session that has left its topic's listing (contract C3).

    Attributes:
        position: where a reader has come to that knows it.
        code: the session's.
        reason: why it left.
    """

    position: Position
    code: bytes
    reason: Reason


class Added(NamedTuple):
    """A session that has come to its topic's listing (contract C3).

    Attributes:
        position: where a reader has come to that knows it.
        listed: the session.
    """

    position: Position
    listed: ListedSession


class EventBatch(NamedTuple):
    """Something that has happened to a topic's listing, in this order.

    Attributes:
        removed: the sessions that were removed, in order.
        added: the sessions that were added, oldest first.
        position: where a reader has come to that knows it.
        more: whether there is more to be told.
    """

    removed: list[Removed]
    added: list[Added]
    position: Position
    more: bool


class ListingState(NamedTuple):
    """A topic's listing at an instant (contract C2).

    Attributes:
        changed: whether it holds other sessions than at the position that was asked about.
        position: where a reader has come to that knows it.
        changes_ms: when the next session in it expires; None if there is none.
    """

    changed: bool
    position: Position
    changes_ms: int | None


def changes_answer(current: Answer | None, answer: str) -> bool:
    """Decide what an answer does to a session (contract B9): the first one stands.

    Args:
        current: the answer accepted so far, if any.
        answer: the one that has come now.

    Returns:
        True if it is the first, False if it repeats the first (a retry).

    Raises:
        AlreadyAnswered: it differs from the first.
    """
    if current is not None and current.text != answer:
        raise AlreadyAnswered
    return current is None


LEASE_BYTES: Final = 12
MAX_LEASES: Final = 16  # of one offer; the oldest give way
MIN_HELD_MS: Final = 40_000  # how long a held offer lives from its renewal, at least: many are renewed all the time


def split_leases(leases: bytes) -> list[bytes]:
    """Return the leases of an offer, the oldest first."""
    return [leases[at : at + LEASE_BYTES] for at in range(0, len(leases), LEASE_BYTES)]


def add_lease(leases: bytes, lease: bytes) -> bytes:
    """Return the leases of an offer with one more, which is the newest."""
    return b"".join([*drop_leases(leases, lease), lease][-MAX_LEASES:])


def drop_leases(leases: bytes, prefix: bytes) -> list[bytes]:
    """Return the leases of an offer that do not begin with a prefix: a lease, or the identifier of a process."""
    return [lease for lease in split_leases(leases) if not lease.startswith(prefix)]


def utf8_length(text: str) -> int:
    """Return how many bytes a text takes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def hash_secret(secret: str | None) -> bytes:
    """What is kept of a secret: its SHA-256; empty for none."""
    return b"" if secret is None else hashlib.sha256(secret.encode()).digest()


def owns(kept: bytes, shown: bytes) -> bool:
    """Whether a side that kept one hash may act with another, in constant time (contract C5)."""
    return not kept or hmac.compare_digest(kept, shown)


def content_code(origin: str, topics: list[str], offer: str) -> bytes:
    """Make the deterministic identifier of an offer (contract B16): a version 8 UUID, 16 bytes.

    The hash covers the origin, the sorted topics and the offer, each preceded by its length so that no two
    different offers run together to the same bytes; `info` is not part of it.
    """
    digest = hashlib.sha256()
    for text in (origin, *sorted(topics), offer):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return make_uuid(digest.digest()[:16], 8)


def make_uuid(data: bytes, version: int) -> bytes:
    """Make a UUID (RFC 9562, 4.1 and 4.2) of 16 bytes by setting its variant and version."""
    code = bytearray(data)
    code[6] = code[6] & 0x0F | version << 4
    code[8] = code[8] & 0x3F | 0x80
    return bytes(code)
