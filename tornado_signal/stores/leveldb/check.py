"""Consistency checks of a store's tables and of the sessions in memory. They read the whole store."""

import time
from collections.abc import Callable
from typing import Any

from ...errors import DamagedListing
from ...session import Side
from . import directory, layout, records
from .binding import plyvel
from .memory import Memory, Record


def flaws(db: Any) -> list[str]:
    """Return all problems of a database that nothing else uses."""
    try:
        memory = records.load(db)
    except (DamagedListing, plyvel.Error) as error:
        return [directory.reason(error)]
    return problems(db, memory, max(time.time_ns() // 1_000_000, memory.latest_ms))


def problems(view: Any, memory: Memory, now_ms: int) -> list[str]:
    """Return a sentence for each contradiction in a database that was loaded.

    Sessions that have expired by `now_ms` can be partly swept.
    """
    issues: list[str] = []
    numbers: set[tuple[bytes, Side, int]] = set()
    counters = records.counters(view)
    with view.iterator(prefix=layout.SESSIONS) as parts:
        for key, value in parts:
            _, code, part = layout.unpack_session_key(key)
            if part not in (layout.HEAD, layout.LEASES):
                side, number = layout.unpack_part(part, value)
                if (key[: -len(part)], side, number) in numbers:
                    issues.append(f"session {code.hex()} has two parts with number {number}")
                numbers.add((key[: -len(part)], side, number))
    for record in memory.sessions.values():
        name = f"session {record.code.hex()}"
        topic = None if record.topic is None else record.topic.name.decode()
        if record.created_ms > counters.latest_ms:
            issues.append(f"{name} is newer than the counters")
        if topic is not None and records.find(view, record).topic != topic:
            issues.append(f"{name} is listed in another topic")
        if now_ms < record.expires_ms:
            if (record.key, Side.OFFERER, 1) not in numbers:
                issues.append(f"{name} has no offer")
            if record.leases and topic is None:
                issues.append(f"{name} is held and not listed")
    serials = {record.serial for record in memory.sessions.values()}
    if len(serials) < len(memory.sessions) or max(serials, default=0) > counters.serial:
        issues.append("serials are not distinct or are beyond the counters")
    return issues


def differences(view: Any, memory: Memory, busy: Callable[[bytes], bool], now_ms: int) -> list[str]:
    """Return the problems of a database, and a sentence for each difference of its sessions from those in memory.

    `busy` says whether a session has uncommitted changes. Expired sessions can be partly swept.
    """
    stored = records.load(view)
    issues = problems(view, stored, now_ms)
    for key in stored.sessions.keys() | memory.sessions.keys():
        ours, theirs = memory.sessions.get(key), stored.sessions.get(key)
        if busy(key) or (ours is not None and ours.expires_ms <= now_ms):
            continue
        if ours is None or theirs is None or _fields(ours) != _fields(theirs):
            issues.append(f"the session {key!r} in memory differs from the records")
    listed = 0
    for origin in memory.origins.values():
        for topic in origin.topics.values():
            listed += len(topic.sessions)
            serials = [record.serial for record in topic.sessions]
            orders = sorted(record.order for record in topic.sessions)
            if not serials or serials != sorted(serials) or orders != topic.orders():
                issues.append(f"the listing of {origin.name} {topic.name.decode()} is not in order")
    counted = sum(origin.count for origin in memory.origins.values())
    topics = sum(len(origin.topics) for origin in memory.origins.values())
    if (listed, listed, topics) != (memory.listed, counted, memory.topic_count):
        issues.append("the counts in memory are wrong")
    return issues


def _fields(record: Record) -> tuple[object, ...]:
    topic = record.topic and (record.topic.origin.name, record.topic.name)
    return (topic, *(getattr(record, name) for name in Record.__slots__ if name != "topic"))
