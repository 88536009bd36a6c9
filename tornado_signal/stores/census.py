"""The numbers of `inspect`: origins, topics, counts and sizes, and nothing that peers send. No I/O."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

COUNTS = (
    "sessions",  # expired or not
    "unanswered",  # live ones without an answer
    "answered",  # live ones with an answer
    "expired",  # those that the next sweep deletes
    "candidates",  # of both sides of all sessions
    "bytes",  # of all of that, with its keys
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
    """The numbers as an object of JSON.

    Args:
        total: the `COUNTS` of all sessions.
        origins: how many there are.
        topics: how many with unanswered sessions.
        entries: how many keys.
        total_bytes: of these, with their values.
        largest_origins: their sessions, names and `COUNTS`.
        largest_topics: their unanswered sessions, origins and names.
    """
    return {
        **total,
        "origins": origins,
        "topics": topics,
        "entries": entries,
        "total_bytes": total_bytes,
        "largest_origins": [
            {"origin": origin, **held}
            for _, origin, held in sorted(largest_origins, key=lambda each: (-each[0], each[1]))
        ],
        "largest_topics": [
            {"origin": origin, "topic": topic, "unanswered": count}
            for count, origin, topic in sorted(largest_topics, key=lambda each: (-each[0], *each[1:]))
        ],
    }


def zeros() -> Counter[str]:
    """The `COUNTS` of nothing."""
    return Counter(dict.fromkeys(COUNTS, 0))
