"""The hash slots of keys."""

from binascii import crc_hqx
from typing import Final

SLOTS: Final = 16_384


def key_slot(key: bytes) -> int:
    """Return the hash slot of a key. Only the text in its first braces counts, unless it is empty."""
    tag, closed, _ = key.partition(b"{")[2].partition(b"}")
    return crc_hqx(tag if tag and closed else key, 0) % SLOTS
