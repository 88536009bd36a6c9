"""Cursors: positions with a tag that ties them to what they are about.

So a damaged cursor, or one of another session or topic, is recognised. The tag guards against mistakes; it is no secret
and protects nothing.
"""

import zlib


def tag(about: bytes, position: str) -> str:
    """A position as a client keeps it.

    Args:
        about: what it is a position in.
        position: as the store writes it.
    """
    return f"{position}.{_sum(about, position)}"


def untag(about: bytes, cursor: str) -> str:
    """Inverse of `tag`.

    Raises:
        ValueError: it is damaged, or about something else.
    """
    position, _, found = cursor.rpartition(".")
    if found != _sum(about, position):
        raise ValueError(cursor)
    return position


def _sum(about: bytes, position: str) -> str:
    return f"{zlib.crc32(position.encode('utf-8', 'replace'), zlib.crc32(about)):08x}"
