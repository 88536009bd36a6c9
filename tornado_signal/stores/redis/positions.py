"""Positions of this engine. Each contains the identity of its partition.

The identity changes if the partition is lost. That of a stream also depends on the history of the node, because another
primary can lack sessions that the reader knows.
"""

import hashlib
import os

from ...session import Position

STORE_DIGITS = 4  # hexadecimal digits of the store in an identity; the others are of the partition


class StoreIdentity:
    """The identity of a store, from which the identities of its partitions derive.

    `name` has 12 hexadecimal digits, or is empty until the store is open.
    """

    name = ""

    def make(self) -> str:
        return self.name[:STORE_DIGITS] + os.urandom(4).hex()

    @property
    def nowhere(self) -> Position:
        """The position of readers that know no session, because the topic was empty."""
        return Position(self.name[:STORE_DIGITS].ljust(12, "0"), 0, 0)

    def in_history(self, identity: bytes, history: bytes) -> str:
        """Return the identity of a partition in the history of its node."""
        if not identity:
            return self.nowhere.store
        digest = hashlib.blake2b(identity + history, digest_size=4).hexdigest()
        return identity.decode()[:STORE_DIGITS] + digest

    def covers(self, identity: str) -> bool:
        """Return whether an identity can belong to a partition of this store."""
        return identity[:STORE_DIGITS] == self.name[:STORE_DIGITS]
