"""Reads of a database: all sessions when it is opened, and the texts of single ones."""

import gc
from collections import deque
from collections.abc import Iterable
from typing import Any

from ...errors import DamagedListing
from ...session import OFFERER, Answer, ListedSession, Session, SessionUpdate, Side
from . import layout
from .memory import Memory, Record

# Bounds of the reads in one event-loop iteration, for a millisecond or two.
LISTING_STEP = 50  # sessions
LISTING_STEP_BYTES = 256 * 1024  # of sessions; the last one can exceed it


def span(view: Any, start: bytes, stop: bytes, max_items: int) -> list[tuple[bytes, bytes]]:
    """Return at most `max_items` keys and values in [start, stop). A raw iterator costs half as much as a bounded one.

    `max_items` is their number if possible. Searching for another one would skip all later deleted entries.
    """
    entries: list[tuple[bytes, bytes]] = []
    if max_items == 0:
        return entries
    raw = view.raw_iterator()
    try:
        raw.seek(start)
        while raw.valid():
            entry = raw.item()
            if entry[0] >= stop:
                break
            entries.append(entry)
            if len(entries) == max_items:
                break
            raw.next()
    finally:
        raw.close()
    return entries


def find(view: Any, record: Record) -> Session:
    """Return a session, which can have expired."""
    return layout.unpack_head(record.code, view.get(record.key + layout.HEAD))


def counters(view: Any) -> tuple[int, int]:
    """Return the latest time that the store has seen, and the serial of the newest session."""
    return layout.unpack_counters(view.get(layout.COUNTERS_KEY))


def find_answer(view: Any, record: Record) -> Answer | None:
    return layout.unpack_answer(view.get(record.key + layout.ANSWER)) if record.answer_number else None


def news(view: Any, record: Record, side: Side, since: int) -> SessionUpdate:
    """Return the messages of one side of a session, with the candidates after the number `since`."""
    key = record.key
    description_key = key + layout.DESCRIPTION[side]
    start = key + layout.CANDIDATE[side] + layout.pack_number(since + 1) if since else description_key
    description = view.get(description_key) if since else None
    parts = span(view, start, key + layout.AFTER_SIDE[side], record.sent(side)[0] - since)
    if parts and parts[0][0] == description_key:
        description = parts.pop(0)[1]
    candidates = [(layout.unpack_number(part_key[-8:]), value.decode()) for part_key, value in parts]
    if description is None:
        return SessionUpdate(None, 0, candidates, record.expires_ms, record.serial)
    if side is OFFERER:
        return SessionUpdate(description.decode(), 1, candidates, record.expires_ms, record.serial)
    answer = layout.unpack_answer(description)
    return SessionUpdate(answer.text, answer.number, candidates, record.expires_ms, record.serial)


def listed(view: Any, record: Record) -> ListedSession:
    parts = span(view, record.key, record.key + layout.AFTER_OFFERER, 1 + record.offerer_last)
    head, offer, *candidates = (value for _, value in parts)
    return ListedSession(layout.unpack_head(record.code, head), offer.decode(), [text.decode() for text in candidates])


def listing_step(view: Any, records: Iterable[Record], max_items: int) -> tuple[list[ListedSession], int | None]:
    """Read some sessions of a topic's listing.

    Return them, and the serial of the last one. It is None after all sessions.
    """
    step: list[ListedSession] = []
    size = last = 0
    for record in records:
        if len(step) == max_items or size >= LISTING_STEP_BYTES:
            return step, last
        found = listed(view, record)
        step.append(found)
        size += found.size
        last = record.serial
    return step, None


def _verify(db: Any) -> None:
    """Verify the checksum of every block of every table.

    Otherwise LevelDB returns the content of a damaged block, or skips the block. A scan reports a block that it passes.
    For the first and the last block only a raw iterator does.
    """
    with db.raw_iterator(verify_checksums=True, fill_cache=False) as ends:
        ends.seek_to_first()
        ends.seek_to_last()
    with db.iterator(include_value=False, verify_checksums=True, fill_cache=False) as keys:
        deque(keys, maxlen=0)


def load(db: Any) -> Memory:
    """Read all sessions, when the database is opened.

    Raise plyvel.CorruptionError if a part of the database cannot be read, and DamagedListing if one is missing.
    """
    collects = gc.isenabled()
    gc.disable()  # collections find no garbage here, and would take a quarter of the time
    try:
        return _load(db)
    finally:
        if collects:
            gc.enable()


def _load(db: Any) -> Memory:
    _verify(db)
    memory = Memory(db.get(layout.IDENTITY_KEY, verify_checksums=True), *counters(db))
    with db.iterator(prefix=layout.SESSIONS, fill_cache=False) as parts:
        memory.fill(_sessions(parts))
    with db.iterator(prefix=layout.LISTING, fill_cache=False, reverse=True) as entries:
        for key, code in entries:  # the oldest of a topic first
            origin, topic, created_ms, serial = layout.unpack_listing_key(key)
            record = memory.sessions.get(layout.pack_session_prefix(origin, code))
            if record is None or record.created_ms != created_ms or record.serial != serial or record.topic:
                raise DamagedListing(f"listing entry {key!r} matches no session")
            memory.enlist(record, origin, topic)
    for record in memory.sessions.values():  # an expired one can be partly swept
        if record.expires_ms > memory.latest_ms and bool(record.answer_number) == (record.topic is not None):
            raise DamagedListing(f"session {record.code.hex()} must be either listed or answered")
    return memory


def _sessions(parts: Iterable[tuple[bytes, bytes]]) -> dict[bytes, Record]:
    """Return the sessions of all parts by their keys. The head of each precedes its other parts."""
    sessions: dict[bytes, Record] = {}
    prefix = layout.AFTER_ALL
    size = 0
    for key, value in parts:
        if not key.startswith(prefix):
            prefix, size = key[:-1], len(key) - 1
            if key[size:] != layout.HEAD:
                raise DamagedListing(f"a session has parts but no head: {key!r}")
            record = sessions[prefix] = Record(prefix, *layout.unpack_head_access(value))
            continue
        part = key[size:]
        if part == layout.OFFER:  # the usual case
            record.offerer_last, record.offerer_bytes = 1, len(value)
        elif part == layout.LEASES:
            record.leases = value
        else:
            side, number = layout.unpack_part(part, value)
            text_bytes = len(value)
            if part == layout.ANSWER:
                answer = layout.unpack_answer(value)
                record.answer_hash, record.answer_number = answer.secret_hash, number
                text_bytes = len(answer.text.encode())
            last, sent = record.sent(side)
            record.set_sent(side, max(last, number), sent + text_bytes)
    return sessions
