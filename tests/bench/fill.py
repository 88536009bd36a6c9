"""Data directories with many sessions, written with the package's own encoding and without its server."""

import uuid
from pathlib import Path

from tornado_signal.session import Session
from tornado_signal.stores.leveldb import changes, layout
from tornado_signal.stores.leveldb.directory import open_leveldb

from . import messages

BATCH = 1000
ORIGIN = "http://filled.example"


def topic(number: int) -> str:
    return f"topic-{number:07}"


def fill(path: Path, sessions: int, a_topic: int, now_ms: int, expires_ms: int) -> list[str]:
    """Write sessions that all expire at once, with the topics in order. Return an even sample of 1 % of the codes."""
    sample = []
    noise = messages.NOISE * 2
    db = open_leveldb(path)
    for first in range(0, sessions, BATCH):
        with db.write_batch() as batch:
            for number in range(first, min(sessions, first + BATCH)):
                times = {"created_ms": now_ms, "expires_ms": expires_ms, "timeout_ms": expires_ms - now_ms}
                named = {"topic": topic(number // a_topic), "info": messages.INFO, "serial": number + 1}
                session = Session(code=uuid.uuid4().bytes, **named, **times)
                at = number * 7919 % len(messages.NOISE)
                for key, value in changes.created(ORIGIN, session, noise[at : at + len(messages.OFFER)]).puts:
                    batch.put(key, value)
                if number % 100 == 0:
                    sample.append(str(uuid.UUID(bytes=session.code)))
    db.put(layout.COUNTERS_KEY, layout.pack_counters(layout.StoreCounters(now_ms, sessions, sessions)))
    db.close()
    return sample


def set_clock(path: Path, now_ms: int) -> None:
    """Let the server's clock start here: it never precedes the newest session in its store."""
    db = open_leveldb(path)
    mark = layout.unpack_counters(db.get(layout.COUNTERS_KEY))
    db.put(layout.COUNTERS_KEY, layout.pack_counters(mark._replace(created_ms=now_ms)))
    db.close()


def left(path: Path, expires_ms: int) -> int:
    """Return the number of sessions that expire by `expires_ms` and are still in an unused directory."""
    db = open_leveldb(path)
    with db.iterator(start=layout.EXPIRY, stop=layout.pack_expired_stop(expires_ms), include_value=False) as keys:
        count = sum(1 for _ in keys)
    db.close()
    return count
