"""Partitions of origins, each in one hash slot, the names of their keys, and the identities in positions.

The hash of a topic selects its partition. The code of a session contains the number of its partition.
"""

import hashlib
import os
import re
import zlib
from base64 import urlsafe_b64encode
from functools import lru_cache

from ...redis.slots import key_slot
from ...session import Position, Session

PARTITIONS_KEPT = 10_000
STORE_DIGITS = 4  # hexadecimal digits of the store in the identity of a partition
# The keys of a script in order: a session, its tombstone, and the shared keys of the partition.
KEY_NAMES = ("session", "tomb", "meta", "listing", "expiries", "due", "topics", "departed", "forgetting")
_KEY = re.compile(rb"\{([\w-]+)\.[0-9a-f]+\}:(?:m|s:([0-9a-f]{32}))$")


class Partition:
    """One partition of an origin."""

    __slots__ = ("_tag", "name", "number", "origin", "shared", "slot")

    def __init__(self, prefix: bytes, origin: str, number: int) -> None:
        self.origin = origin
        self.number = number
        # Long enough that nobody can find two origins with the same hash.
        digest = hashlib.sha256(origin.encode("utf-8", "surrogatepass")).digest()[:16]
        self.name = urlsafe_b64encode(digest).rstrip(b"=")  # the hash that represents the origin in the names of keys
        self._tag = b"%b{%b.%x}:" % (prefix, self.name, number)
        self.slot = key_slot(self._tag)  # its hash slot
        # The keys that its sessions share.
        self.shared = tuple(self._tag + kind for kind in (b"m", b"l", b"e", b"u", b"n", b"d", b"f"))

    @property
    def meta(self) -> bytes:
        return self.shared[0]

    @property
    def listing(self) -> bytes:
        return self.shared[1]

    @staticmethod
    def listing_prefix(topic: str) -> bytes:
        """Return the beginning of the members of the listing for a topic."""
        name = topic.encode()
        return len(name).to_bytes(2, "big") + name

    def listing_member(self, session: Session) -> bytes:
        return self.listing_prefix(session.topic) + session.serial.to_bytes(8, "big") + session.code

    def session(self, code: bytes) -> bytes:
        """Return the key of a session, which is also the channel of its changes."""
        return self._tag + b"s:" + code.hex().encode()

    def keys(self, code: bytes) -> tuple[bytes, ...]:
        return (self.session(code), self._tag + b"w:" + code.hex().encode(), *self.shared)

    @property
    def topic_keys(self) -> tuple[bytes, ...]:
        """Return all keys that a script for topics can use. No session has the first name."""
        return (self._tag + b"s:", self._tag + b"w:", *self.shared)

    def topic_channel(self, topic: str) -> bytes:
        return self._tag + b"t:" + topic.encode("utf-8", "surrogatepass")


class Partitions:
    """All partitions of a store. Each origin has `count`.

    `identity` is that of the store: 12 hexadecimal digits, or empty until it is open. Each partition has one that
    derives from it, and changes if the partition is lost.
    """

    def __init__(self, prefix: str, count: int) -> None:
        self.count = count
        self.identity = ""
        name = prefix.encode()
        # Most origins use few of their partitions.
        self._partition = lru_cache(PARTITIONS_KEPT)(lambda origin, number: Partition(name, origin, number))

    def all(self, origin: str) -> list[Partition]:
        return [self._partition(origin, number) for number in range(self.count)]

    def of_topic(self, origin: str, topic: str) -> Partition:
        return self._partition(origin, self.number(topic))

    def of_code(self, origin: str, code: bytes) -> Partition:
        """Return the partition of a session, whether or not the session exists."""
        return self._partition(origin, int.from_bytes(code[:2], "big") % self.count)

    def place(self, code: bytes, topic: str) -> bytes:
        """Return a code with the number of the topic's partition in it."""
        random = int.from_bytes(code[:2], "big")
        random = random - random % self.count + self.number(topic)
        if random > 0xFFFF:
            random -= self.count
        return random.to_bytes(2, "big") + code[2:]

    def number(self, text: str) -> int:
        """Return the partition number of a topic, or of another text to distribute."""
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.count

    # Identities

    def make_identity(self) -> str:
        return self.identity[:STORE_DIGITS] + os.urandom(4).hex()

    @property
    def nowhere(self) -> Position:
        """The position of readers that know no session, because the topic was empty."""
        return Position(self.identity[:STORE_DIGITS].ljust(12, "0"), 0, 0)

    def identity_in_history(self, identity: bytes, history: bytes) -> str:
        """Return the identity of a partition for streams.

        It also depends on `history`, the node's replication id: another primary can lack sessions that readers know.
        """
        if not identity:
            return self.nowhere.store
        digest = hashlib.blake2b(identity + history, digest_size=4).hexdigest()
        return identity.decode()[:STORE_DIGITS] + digest

    def covers(self, identity: str) -> bool:
        """Return whether an identity can belong to a partition of this store."""
        return identity[:STORE_DIGITS] == self.identity[:STORE_DIGITS]


def parse_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Parse the name of a key.

    Return the name of an origin's partitions, and the code of the session, empty for a partition's counts. None for
    every other key.
    """
    match = _KEY.search(key)
    return (match[1], bytes.fromhex((match[2] or b"").decode())) if match else None
