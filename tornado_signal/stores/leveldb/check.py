"""Consistency checks of a store's tables and of the state in memory. They read the whole store."""

import time
from collections import Counter, defaultdict
from typing import Any

from ...errors import DamagedListing
from ...session import Session, Side
from . import directory, layout, records
from .binding import plyvel
from .topic_index import ANY_SERIAL, TopicIndex


def flaws(db: Any) -> list[str]:
    """Return all problems of a database that nothing else uses."""
    try:
        loaded = records.load(db)
    except (DamagedListing, plyvel.Error) as error:
        return [directory.reason(error)]
    return problems(db, loaded.topics, max(time.time_ns() // 1_000_000, loaded.counters.created_ms))


def problems(view: Any, index: TopicIndex, now_ms: int) -> list[str]:
    """Return a sentence for each difference of listings, expiry entries, counters and counts from the sessions.

    Counts are compared as of `now_ms`. Sessions that have expired by then can be partly swept.
    """
    issues: list[str] = []
    sessions: dict[tuple[str, bytes], Session] = {}
    parts: dict[tuple[str, bytes], set[bytes]] = {}
    numbers: set[tuple[str, bytes, tuple[Side, int]]] = set()
    serials: list[int] = []
    for key, value in view.iterator(prefix=layout.SESSIONS):
        origin, code, part = layout.unpack_session_key(key)
        parts.setdefault((origin, code), set()).add(part[:1])
        if part == layout.HEAD:
            sessions[origin, code] = session = layout.unpack_head(code, value)
            serials.append(session.serial)
        elif part != layout.OFFER:
            sent = layout.unpack_part(part, value)
            if (origin, code, sent) in numbers:
                issues.append(f"session {code.hex()} has two parts with number {sent[1]}")
            numbers.add((origin, code, sent))
    listed: dict[tuple[str, bytes], int] = {}
    listings: defaultdict[tuple[str, str], list[tuple[int, bytes]]] = defaultdict(list)
    counts: Counter[tuple[str, str]] = Counter()
    for key, value in view.iterator(prefix=layout.LISTING):
        origin, topic, created_ms, serial = layout.unpack_listing_key(key)
        code, expires_ms = layout.unpack_listing_value(value)
        entry = sessions.get((origin, code))
        like = (topic, created_ms, serial, expires_ms)
        if entry is None or (entry.topic, entry.created_ms, entry.serial, entry.expires_ms) != like:
            issues.append(f"listing entry {key!r} matches no session")
        if (origin, code) in listed:
            issues.append(f"session {code.hex()} is listed twice")
        listed[origin, code] = expires_ms
        counts[origin, topic] += now_ms < expires_ms
        if now_ms < expires_ms:
            listings[origin, topic].append((serial, code))
    removals = set()
    for key, value in view.iterator(prefix=layout.REMOVALS):
        removals.add(key)
        serials.append(layout.unpack_number(key[-8:]))
        if layout.unpack_removal_value(value)[1] >= serials[-1]:
            issues.append(f"{key!r} records a removal that is older than its session")
    expected_expiries = [(session.expires_ms, layout.pack_session_prefix(*name)) for name, session in sessions.items()]
    expiries = [layout.unpack_expiry_key(key) for key in view.iterator(prefix=layout.EXPIRY, include_value=False)]
    if sorted(expected_expiries) != [entry for entry in expiries if entry[1][:1] == layout.SESSIONS]:
        issues.append("sessions and their expiry entries do not match")
    if sorted(removals) != sorted(key for _, key in expiries if key[:1] == layout.REMOVALS):
        issues.append("removals and their expiry entries do not match")
    for name, held in parts.items():
        owner = sessions.get(name)
        if owner is None:
            issues.append(f"session {name[1].hex()} has parts but no head")
        elif owner.live(now_ms) and layout.OFFER not in held:
            issues.append(f"session {name[1].hex()} has no offer")
        elif owner.live(now_ms) and (layout.ANSWER in held) == (name in listed):
            issues.append(f"session {name[1].hex()} must be either listed or answered")
    for key in records.leases(view):
        origin, code, _ = layout.unpack_session_key(key)
        if (origin, code) not in listed:
            issues.append(f"session {code.hex()} is held and not listed")
    counters = layout.unpack_counters(view.get(layout.COUNTERS_KEY, layout.NO_COUNTERS))
    if counters.listed != len(listed):
        issues.append(f"the counters say that {counters.listed} sessions are listed, there are {len(listed)}")
    if any(session.created_ms > counters.created_ms for session in sessions.values()):
        issues.append("a session is newer than the counters")
    if len(serials) != len(set(serials)) or max(serials, default=0) > counters.serial:
        issues.append("serials are not distinct or are beyond the counters")
    for origin in {name[0] for name in sessions} | set(index.origins()):
        while not index.prune(origin, now_ms, 1000):
            pass
        expected = sorted((topic, count) for (of, topic), count in counts.items() if of == origin and count)
        held_counts, total = index.page(origin, 0, len(expected) + 1)
        if held_counts != expected or total != len(expected):
            issues.append(f"counts of {origin}: {held_counts[:10]}, the listing has {expected[:10]}")
        for topic, _ in expected:
            in_memory = [
                (serial, code)
                for serial, code in index.listing(origin, topic, 0, ANY_SERIAL)
                if now_ms < listed.get((origin, code), now_ms + 1)
            ]
            if in_memory != listings[origin, topic]:
                issues.append(f"the listing of {origin} {topic} in memory differs")
    return issues
