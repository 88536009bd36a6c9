"""Positions of this engine: each names the partition's identity, which is made anew when all of it has been lost."""

import os
from typing import NamedTuple

STORE_DIGITS = 4  # of an identity, hexadecimal; the others are the partition's own


class TopicPosition(NamedTuple):
    """Where a reader of a topic or of its listing has come to.

    Attributes:
        identity: the partition's: 12 hexadecimal digits.
        serial: the newest departure that it knows; of a listing, the newest session in it.
        listed: the newest session that it has been told of; of a listing, how many there are.
    """

    identity: str
    serial: int
    listed: int


def make_identity(store: str) -> str:
    """A new one for a partition of a store, whose own is given."""
    return store[:STORE_DIGITS] + os.urandom(4).hex()


def nothing_of(store: str) -> str:
    """That of all partitions of a store that hold nothing yet."""
    return store[:STORE_DIGITS].ljust(12, "0")


def is_of(identity: str, store: str) -> bool:
    """Whether an identity may be one of a store's."""
    return identity[:STORE_DIGITS] == store[:STORE_DIGITS]
