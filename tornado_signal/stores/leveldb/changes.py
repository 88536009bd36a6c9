"""What each event in a session's life writes and deletes, in the words of `layout`. Nothing is read or written here."""

from collections.abc import Iterable
from typing import NamedTuple

from ...session import Answer, Reason, Session, Side
from . import layout


class Change(NamedTuple):
    """One change: deletes first, then puts, all or nothing.

    Attributes:
        puts: keys with their new values.
        deletes: keys to remove.
        listed: by how many entries it makes the listings longer.
    """

    puts: list[tuple[bytes, bytes]]
    deletes: list[bytes]
    listed: int = 0


class Removal(NamedTuple):
    """How a session leaves its topic's listing.

    Attributes:
        serial: of this event.
        reason: of it.
        forget_ms: until when it is told to those who come back to a stream.
        held: whether the session has leases, which it loses.
    """

    serial: int
    reason: Reason
    forget_ms: int
    held: bool = False


def created(origin: str, session: Session, offer: str) -> Change:
    """An offer is published: the session is listed and will expire."""
    key = layout.pack_session_prefix(origin, session.code)
    puts = [
        (key + layout.HEAD, layout.pack_head(session)),
        (key + layout.OFFER, offer.encode()),
        (layout.pack_listing_key(origin, session), layout.pack_listing_value(session)),
        (layout.pack_expiry_key(session.expires_ms, key), b""),
    ]
    return Change(puts, [], 1)


def answered(origin: str, session: Session, answer: Answer, leaving: Removal) -> Change:
    """The first answer comes: the session is no longer listed."""
    change = delisted(origin, session, leaving)
    key = layout.pack_session_prefix(origin, session.code)
    change.puts.append((key + layout.ANSWER, layout.pack_answer(answer)))
    return change


def candidates_added(key: bytes, side: Side, candidates: Iterable[tuple[int, str]]) -> Change:
    """One side sends candidates, each with its number, under the key of the session."""
    prefix = key + layout.CANDIDATE[side]
    return Change([(prefix + layout.pack_number(number), text.encode()) for number, text in candidates], [])


def refreshed(origin: str, before: Session, after: Session, *, listed: bool) -> Change:
    """A session gets another expiry; its place in the listing, if it has one, stays."""
    key = layout.pack_session_prefix(origin, after.code)
    puts = [
        (key + layout.HEAD, layout.pack_head(after)),
        (layout.pack_expiry_key(after.expires_ms, key), b""),
    ]
    if listed:
        puts.append((layout.pack_listing_key(origin, after), layout.pack_listing_value(after)))
    return Change(puts, [layout.pack_expiry_key(before.expires_ms, key)])


def delisted(origin: str, session: Session, leaving: Removal) -> Change:
    """A session leaves its topic's listing; that is remembered for a while."""
    prefix = layout.pack_departure_prefix(origin, session.topic, expired=leaving.reason is Reason.EXPIRED)
    departure_key = prefix + layout.pack_number(leaving.serial)
    puts = [
        (departure_key, layout.pack_departure_value(session, leaving.reason)),
        (layout.pack_expiry_key(leaving.forget_ms, departure_key), b""),
    ]
    deletes = [layout.pack_listing_key(origin, session)]
    if leaving.held:
        deletes.append(layout.pack_leases_key(layout.pack_session_prefix(origin, session.code)))
    return Change(puts, deletes, -1)


def leased(key: bytes, leases: bytes) -> Change:
    """A session has these leases."""
    return Change([(layout.pack_leases_key(key), leases)], [])


def removed(key: bytes, session: Session, parts: Iterable[bytes]) -> Change:
    """A session is no more, with the keys of all its parts; its place in the listing, if it has one, goes by `left`."""
    return Change([], [*parts, layout.pack_expiry_key(session.expires_ms, key)])


def merge(*changes: Change) -> Change:
    """Several changes as one."""
    puts = [put for change in changes for put in change.puts]
    deletes = [key for change in changes for key in change.deletes]
    return Change(puts, deletes, sum(change.listed for change in changes))
