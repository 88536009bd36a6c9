"""What each event in a session's life writes and deletes, in the words of `layout`. Nothing is read or written here."""

from collections.abc import Iterable
from typing import NamedTuple

from . import layout
from .session import Session, Side


class Change(NamedTuple):
    """One change: deletes first, then puts, all or nothing."""

    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]


def created(origin: str, session: Session, offer: str) -> Change:
    """An offer is published: the session is listed and will expire."""
    key = layout.pack_session_prefix(origin, session.code)
    puts = [
        (key + layout.HEAD, layout.pack_head(session)),
        (key + layout.OFFER, offer.encode()),
        (layout.pack_listing_key(origin, session), layout.pack_listing_value(session)),
        (layout.pack_expiry_key(origin, session), b""),
        mark(session.created_ms, session.serial),
    ]
    return Change(puts, [])


def answered(origin: str, session: Session, answer: str) -> Change:
    """The first answer comes: the session is no longer listed."""
    key = layout.pack_session_prefix(origin, session.code)
    return Change([(key + layout.ANSWER, answer.encode())], [layout.pack_listing_key(origin, session)])


def candidates_added(key: bytes, side: Side, candidates: Iterable[tuple[int, str]]) -> Change:
    """One side sends candidates, each with its serial, under the key of the session."""
    prefix = key + layout.CANDIDATE[side]
    return Change([(prefix + layout.pack_number(serial), text.encode()) for serial, text in candidates], [])


def refreshed(origin: str, before: Session, after: Session) -> Change:
    """An unanswered session gets another expiry; its place in the listing stays."""
    puts = [
        (layout.pack_session_prefix(origin, after.code) + layout.HEAD, layout.pack_head(after)),
        (layout.pack_listing_key(origin, after), layout.pack_listing_value(after)),
        (layout.pack_expiry_key(origin, after), b""),
    ]
    return Change(puts, [layout.pack_expiry_key(origin, before)])


def removed(origin: str, session: Session, parts: Iterable[bytes]) -> Change:
    """A session is no more.

    Args:
        origin: the session's.
        session: its head.
        parts: the keys of all its parts.
    """
    deletes = [*parts, layout.pack_expiry_key(origin, session), layout.pack_listing_key(origin, session)]
    return Change([], deletes)


def mark(created_ms: int, serial: int) -> tuple[bytes, bytes]:
    """Where the store's own clock and order of events have come to; put with whatever moves them."""
    return layout.MARK_KEY, layout.pack_mark(created_ms, serial)
