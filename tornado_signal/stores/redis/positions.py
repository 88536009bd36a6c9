"""Positions of this engine. Each contains the identity of the partition, which changes if the partition is lost."""

import os
from typing import NamedTuple

STORE_DIGITS = 4  # hexadecimal digits of the store in an identity; the others are of the partition


class PartitionPosition(NamedTuple):
    """The position of a reader of a topic or of its listing."""

    identity: str  # the identity of the partition, 12 hexadecimal digits
    serial: int  # the newest known removal. For a listing: its newest session
    listed: int  # the newest known session. For a listing: its length


class StoreIdentity:
    """The identity of a store, from which the identities of its partitions derive.

    Attributes:
        name: 12 hexadecimal digits, or empty until the store is open.
    """

    name = ""

    def make(self) -> str:
        """Return a new identity for a partition."""
        return self.name[:STORE_DIGITS] + os.urandom(4).hex()

    @property
    def nothing(self) -> str:
        """The identity of partitions that have never held a session."""
        return self.name[:STORE_DIGITS].ljust(12, "0")

    def covers(self, identity: str) -> bool:
        """Return whether an identity can belong to a partition of this store."""
        return identity[:STORE_DIGITS] == self.name[:STORE_DIGITS]
