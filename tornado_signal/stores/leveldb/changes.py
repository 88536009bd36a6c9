"""The entries that each event of a session writes and deletes, in the format of `layout`. No I/O."""

from collections.abc import Iterable
from typing import NamedTuple

from ...session import Answer, Reason, Session, Side
from . import layout


class Change(NamedTuple):
    """One atomic change: first the deletes, then the puts."""

    puts: list[tuple[bytes, bytes]]  # keys with their new values
    deletes: list[bytes]
    listed: int = 0  # the number of entries by which the listings grow


class Removal(NamedTuple):
    """The removal of a session from its topic's listing, or its refresh."""

    serial: int  # the serial of this event
    reason: Reason | None  # the reason of the removal. None for a refresh: the session stays listed
    forget_ms: int  # the time until which resumed streams report it
    held: bool = False  # whether the session has leases, which are deleted


def created(origin: str, session: Session, offer: str) -> Change:
    """Return the change for a published offer."""
    key = layout.pack_session_prefix(origin, session.code)
    puts = [
        (key + layout.HEAD, layout.pack_head(session)),
        (key + layout.OFFER, offer.encode()),
        (layout.pack_listing_key(origin, session), layout.pack_listing_value(session)),
        (layout.pack_expiry_key(session.expires_ms, key), b""),
    ]
    return Change(puts, [], 1)


def answered(origin: str, session: Session, answer: Answer, removal: Removal) -> Change:
    """Return the change for the first answer, which also removes the session from its listing."""
    change = delisted(origin, session, removal)
    key = layout.pack_session_prefix(origin, session.code)
    change.puts.append((key + layout.ANSWER, layout.pack_answer(answer)))
    return change


def candidates_added(key: bytes, side: Side, candidates: Iterable[tuple[int, str]]) -> Change:
    """Return the change for numbered candidates of one side. `key` is the key of the session."""
    prefix = key + layout.CANDIDATE[side]
    return Change([(prefix + layout.pack_number(number), text.encode()) for number, text in candidates], [])


def refreshed(origin: str, before: Session, after: Session, *, listed: bool, event: Removal | None = None) -> Change:
    """Return the change for a new expiry, and for its event if any. A listed session keeps its place."""
    key = layout.pack_session_prefix(origin, after.code)
    puts = [
        (key + layout.HEAD, layout.pack_head(after)),
        (layout.pack_expiry_key(after.expires_ms, key), b""),
    ]
    if listed:
        puts.append((layout.pack_listing_key(origin, after), layout.pack_listing_value(after)))
    if event is not None:
        puts += _recorded(origin, after, event)
    return Change(puts, [layout.pack_expiry_key(before.expires_ms, key)])


def delisted(origin: str, session: Session, removal: Removal) -> Change:
    """Return the change that removes a session from its listing and records the removal."""
    deletes = [layout.pack_listing_key(origin, session)]
    if removal.held:
        deletes.append(layout.pack_leases_key(layout.pack_session_prefix(origin, session.code)))
    return Change(_recorded(origin, session, removal), deletes, -1)


def _recorded(origin: str, session: Session, removal: Removal) -> list[tuple[bytes, bytes]]:
    prefix = layout.pack_removal_prefix(origin, session.topic, layout.KIND[removal.reason])
    removal_key = prefix + layout.pack_number(removal.serial)
    return [
        (removal_key, layout.pack_removal_value(session, removal.reason)),
        (layout.pack_expiry_key(removal.forget_ms, removal_key), b""),
    ]


def leased(key: bytes, leases: bytes) -> Change:
    """Return the change that replaces the leases of a session."""
    return Change([(layout.pack_leases_key(key), leases)], [])


def removed(key: bytes, session: Session, parts: Iterable[bytes]) -> Change:
    """Return the change that deletes a session, given the keys of its parts. `delisted` removes it from the listing."""
    return Change([], [*parts, layout.pack_expiry_key(session.expires_ms, key)])


def merge(*changes: Change) -> Change:
    """Combine several changes into one."""
    puts = [put for change in changes for put in change.puts]
    deletes = [key for change in changes for key in change.deletes]
    return Change(puts, deletes, sum(change.listed for change in changes))
