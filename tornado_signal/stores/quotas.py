"""How much an origin may have in the store."""

from typing import NamedTuple

UNLIMITED = 2**53


class Quotas(NamedTuple):
    """The most there may be.

    Attributes:
        sessions_per_origin: unanswered sessions of one origin.
        sessions_per_topic: unanswered sessions of one topic.
        topics_per_origin: topics with unanswered sessions of one origin.
        candidates: of one side of a session.
        side_bytes: of one side of a session: its offer or answer, and its candidates.
        store_bytes: of everything, where the engine counts them.
        free_bytes: how much of the engine's disk is to stay free.
    """

    sessions_per_origin: int = UNLIMITED
    sessions_per_topic: int = UNLIMITED
    topics_per_origin: int = UNLIMITED
    candidates: int = UNLIMITED
    side_bytes: int = UNLIMITED
    store_bytes: int = UNLIMITED
    free_bytes: int = 0
