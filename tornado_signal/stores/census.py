"""The numbers of `inspect`: origins, topics, counts and sizes, and nothing that peers send. No I/O."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

COUNTS = (
    "sessions",  # live and expired
    "unanswered",  # live, without an answer
    "answered",  # live, with an answer
    "expired",  # to be deleted by the next sweep
    "candidates",  # of both sides of all sessions
    "bytes",  # of all these entries, keys included
)


def make_numbers(
    total: Counter[str],
    origins: int,
    topics: int,
    entries: int,
    total_bytes: int,
    largest_origins: Iterable[tuple[int, str, Counter[str]]],
    largest_topics: Iterable[tuple[int, str, str]],
) -> dict[str, Any]:
    """Return the numbers as a JSON object.

    Args:
        total: the `COUNTS` of all sessions.
        origins: the number of origins.
        topics: the number of topics with unanswered sessions.
        entries: the number of keys.
        total_bytes: the size of all keys and values.
        largest_origins: number of sessions, name and `COUNTS` of each.
        largest_topics: number of unanswered sessions, origin and name of each.
    """
    return {
        **total,
        "origins": origins,
        "topics": topics,
        "entries": entries,
        "total_bytes": total_bytes,
        "largest_origins": [
            {"origin": origin, **held} for _, origin, held in sorted(largest_origins, key=lambda row: (-row[0], row[1]))
        ],
        "largest_topics": [
            {"origin": origin, "topic": topic, "unanswered": count}
            for count, origin, topic in sorted(largest_topics, key=lambda row: (-row[0], *row[1:]))
        ],
    }


def zeros() -> Counter[str]:
    return Counter(dict.fromkeys(COUNTS, 0))
