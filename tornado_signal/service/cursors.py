"""Cursors: opaque text that records how far a client has read. They contain sequence numbers, never times.

A cursor is a position of the store and a tag of its scope. So a damaged cursor, or one of another session or topic, is
recognised. The tag detects mistakes and is not a security measure.
"""

import zlib
from collections.abc import Callable
from typing import TypeVar

from ..errors import InvalidParameter
from ..session import Position, SessionPosition
from ..stores import Store

P = TypeVar("P")


def cursor_scope(origin: str, *names: str) -> bytes:
    """Return the scope of a cursor from the origin and the names of the topic or session."""
    return "\0".join((origin, *names)).encode("utf-8", "replace")


def format_cursor(store: Store, scope: bytes, position: Position | SessionPosition) -> str:
    text = store.format_position(position)
    return f"{text}.{_tag(scope, text)}"


def parse_cursor(parse: Callable[[str], P | None], scope: bytes, cursor: str, parameter: str) -> P | None:
    """Inverse of `format_cursor`, with the store's `parse_position` or `parse_session_position`.

    Return None for a position in another store, such as an earlier data directory. The reader then starts over. Raise
    InvalidParameter if the cursor is damaged or has another scope.
    """
    text, _, tag = cursor.rpartition(".")
    if tag != _tag(scope, text):
        raise InvalidParameter(parameter)
    try:
        return parse(text)
    except ValueError:
        raise InvalidParameter(parameter) from None


def _tag(scope: bytes, text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'replace'), zlib.crc32(scope)):08x}"
