"""Consistency checks of a store's tables. They read the whole store."""

import time
from typing import Any

from ...errors import DamagedListing
from ...session import Side
from . import directory, layout, records
from .binding import plyvel
from .memory import Memory


def flaws(db: Any) -> list[str]:
    """Return all problems of a database that nothing else uses."""
    try:
        memory = records.load(db)
    except (DamagedListing, plyvel.Error) as error:
        return [directory.reason(error)]
    # The store's clock is never before its newest session.
    return contradictions(db, memory, max(time.time_ns() // 1_000_000, memory.latest_ms))


def contradictions(view: Any, memory: Memory, now_ms: int) -> list[str]:
    """Return a sentence for each contradiction in a database that was loaded.

    Sessions that have expired by `now_ms` can be partly swept.
    """
    issues: list[str] = []
    numbers: set[tuple[bytes, Side, int]] = set()
    latest_ms, serial = records.counters(view)
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
        if record.created_ms > latest_ms:
            issues.append(f"{name} is newer than the counters")
        if topic is not None and records.find(view, record).topic != topic:
            issues.append(f"{name} is listed in another topic")
        if now_ms < record.expires_ms:
            if (record.key, Side.OFFERER, 1) not in numbers:
                issues.append(f"{name} has no offer")
            if record.leases and topic is None:
                issues.append(f"{name} is held and not listed")
    serials = {record.serial for record in memory.sessions.values()}
    if len(serials) < len(memory.sessions) or max(serials, default=0) > serial:
        issues.append("serials are not distinct or are beyond the counters")
    return issues
