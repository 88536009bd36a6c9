"""What a session is and what may become of it. Nothing here reads a clock, a disk or a socket."""

import enum
import hashlib
from dataclasses import dataclass
from typing import NamedTuple

from .errors import AlreadyAnswered


class Side(enum.Enum):
    """Which peer is speaking (specification 2, Side)."""

    OFFERER = "offerer"
    ANSWERER = "answerer"

    @property
    def other(self) -> "Side":
        """The peer that it speaks with."""
        return Side.ANSWERER if self is Side.OFFERER else Side.OFFERER


@dataclass(frozen=True, slots=True)
class Session:
    """What is fixed when an offer is published; offer, answer and candidates are kept beside it.

    Attributes:
        code: the session's UUID, 16 bytes.
        topic: where it is listed, at most 256 code points.
        info: the peer's own words, at most 1024 code points.
        created_ms: Unix time in milliseconds; never goes backwards within a store.
        expires_ms: Unix time in milliseconds; the first instant at which it no longer exists.
        timeout_ms: how long it lives from its creation or its last refresh.
        serial: its place in the store's order of events; breaks ties within one millisecond.
    """

    code: bytes
    topic: str
    info: str
    created_ms: int
    expires_ms: int
    timeout_ms: int
    serial: int

    def live(self, now_ms: int) -> bool:
        """Contract B10: live while now is before the expiry."""
        return now_ms < self.expires_ms


class ListedSession(NamedTuple):
    """One entry of a topic's listing (specification 4, GET /:topic/sessions)."""

    session: Session
    offer: str
    candidates: list[str]


class News(NamedTuple):
    """What one side reads of the other (specification 4, POST /poll).

    Attributes:
        description: the offer, or the answer (None until there is one).
        candidates: in the order in which they were accepted.
    """

    description: str | None
    candidates: list[str]


def changes_answer(current: str | None, answer: str) -> bool:
    """Decide what an answer does to a session (contract B9): the first one stands.

    Args:
        current: the answer accepted so far, if any.
        answer: the one that has come now.

    Returns:
        True if it is the first, False if it repeats the first (a retry).

    Raises:
        AlreadyAnswered: it differs from the first.
    """
    if current is not None and current != answer:
        raise AlreadyAnswered
    return current is None


def content_code(origin: str, topics: list[str], offer: str) -> bytes:
    """Make the deterministic identifier of an offer (contract B16): a version 8 UUID, 16 bytes.

    The hash covers the origin, the sorted topics and the offer, each preceded by its length so that no two
    different offers run together to the same bytes; `info` is not part of it.
    """
    digest = hashlib.sha256()
    for text in (origin, *sorted(topics), offer):
        data = text.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    code = bytearray(digest.digest()[:16])
    code[6] = code[6] & 0x0F | 0x80  # RFC 9562, 5.8: version 8
    code[8] = code[8] & 0x3F | 0x80  # RFC 9562, 4.1: the variant
    return bytes(code)
