"""What can be read from the store: sessions and listings, out of one view (a LevelDB database or snapshot of it)."""

import itertools
from typing import Any

from . import layout
from .index import TopicIndex
from .session import ListedSession, News, Session, Side

# How much is read in one turn of the event loop: a millisecond or two.
LISTING_STEP = 50  # sessions
PASSING_STEP = 2000  # expired entries passed over


def find(view: Any, key: bytes, code: bytes) -> Session | None:
    """The head of a session, expired or not, by its key; None where there is none."""
    head = view.get(key + layout.HEAD)
    return None if head is None else layout.unpack_head(code, head)


def part_keys(view: Any, key: bytes, most: int | None = None) -> list[bytes]:
    """The keys of a session's parts, the head first, at most so many."""
    with view.iterator(start=key, stop=key + layout.AFTER_SESSION, include_value=False) as parts:
        return list(itertools.islice(parts, most))


def news(view: Any, key: bytes, side: Side) -> News:
    """What one side of a session has sent."""
    description_key = key + layout.DESCRIPTION[side]
    description = None
    candidates = []
    with view.iterator(start=description_key, stop=key + layout.AFTER_SIDE[side]) as parts:
        for part_key, value in parts:
            if part_key == description_key:
                description = value.decode()
            else:
                candidates.append(value.decode())
    return News(description, candidates)


def listing_step(
    view: Any, origin: str, after: bytes, stop: bytes, now_ms: int
) -> tuple[list[ListedSession], bytes, bool]:
    """Read some of a topic's listing, in its order.

    Args:
        view: where to read.
        origin: whose listing it is.
        after: the listing key (or the topic's prefix) behind which to begin.
        stop: the key at which the listing ends.
        now_ms: what has expired by now is passed over.

    Returns:
        The sessions, the key behind which to go on, and whether there may be more.
    """
    step: list[ListedSession] = []
    passed = 0
    with view.iterator(start=after, include_start=False, stop=stop) as entries:
        for entry, value in entries:
            code, expires_ms = layout.unpack_listing_value(value)
            if now_ms < expires_ms:
                step.append(_listed(view, layout.pack_session_prefix(origin, code), code))
            else:
                passed += 1
            if len(step) == LISTING_STEP or passed == PASSING_STEP:
                return step, entry, True
    return step, stop, False


def _listed(view: Any, key: bytes, code: bytes) -> ListedSession:
    with view.iterator(start=key, stop=key + layout.AFTER_OFFERER, include_key=False) as parts:
        head, offer, *candidates = parts
    return ListedSession(layout.unpack_head(code, head), offer.decode(), [text.decode() for text in candidates])


def load(db: Any) -> tuple[TopicIndex, int, int]:
    """Read what is kept in memory beside the database: the counts, the newest creation time and the last serial."""
    index = TopicIndex()
    with db.iterator(prefix=layout.LISTING) as entries:
        for key, value in entries:
            origin, topic, _, _ = layout.unpack_listing_key(key)
            index.add(origin, topic, layout.unpack_listing_value(value)[1])
    mark = db.get(layout.MARK_KEY)
    return (index, *(layout.unpack_mark(mark) if mark else (0, 0)))
