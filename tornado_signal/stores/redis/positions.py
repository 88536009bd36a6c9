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


class StoreIdentity:
    """The identity of a store, from which those of its partitions are made.

    Attributes:
        name: 12 hexadecimal digits; empty until the store is open.
    """

    name = ""

    def make(self) -> str:
        """Make the identity of a partition."""
        return self.name[:STORE_DIGITS] + os.urandom(4).hex()

    @property
    def nothing(self) -> str:
        """Identity of the partitions that have never held anything."""
        return self.name[:STORE_DIGITS].ljust(12, "0")

    def covers(self, identity: str) -> bool:
        """Return whether an identity may be a partition's of this store."""
        return identity[:STORE_DIGITS] == self.name[:STORE_DIGITS]
