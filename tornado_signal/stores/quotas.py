"""The quotas of a store."""

from typing import NamedTuple

UNLIMITED = 2**53


class Quotas(NamedTuple):
    """Upper bounds.

    Attributes:
        sessions_per_origin: unanswered sessions of one origin.
        sessions_per_topic: unanswered sessions of one topic.
        topics_per_origin: topics with unanswered sessions of one origin.
        candidates: candidates of one side of a session.
        side_bytes: offer or answer and candidates of one side of a session.
        store_bytes: all entries, where the engine counts them.
        free_bytes: lower bound of the free space on the engine's disk.
    """

    sessions_per_origin: int = UNLIMITED
    sessions_per_topic: int = UNLIMITED
    topics_per_origin: int = UNLIMITED
    candidates: int = UNLIMITED
    side_bytes: int = UNLIMITED
    store_bytes: int = UNLIMITED
    free_bytes: int = 0
