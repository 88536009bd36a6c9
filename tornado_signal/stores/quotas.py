"""The quotas of a store."""

from typing import NamedTuple

UNLIMITED = 2**53


class Quotas(NamedTuple):
    """Upper bounds."""

    sessions_per_origin: int = UNLIMITED  # unanswered sessions of one origin
    candidates: int = UNLIMITED  # candidates of one side of a session
    side_bytes: int = UNLIMITED  # offer or answer and candidates of one side of a session
    store_bytes: int = UNLIMITED  # all entries, where the engine counts them
    free_bytes: int = 0  # lower bound of the free space on the engine's disk
