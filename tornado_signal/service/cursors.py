"""Cursors: opaque text that records how far a client has read. They contain sequence numbers, never times.

A cursor is a position of the store and a tag of its scope. So a damaged cursor, or one of another session or topic, is
recognised. The tag detects mistakes and is not a security measure.
"""

import re
import zlib
from typing import Final

from ..errors import InvalidParameter
from ..session import Position, SessionPosition
from ..stores import Store

# The identity of the store and two numbers, which are canonical, and small enough to have successors.
_NUMBERS: Final = re.compile(r"([0-9a-f]{12})\.(0|[1-9a-f][0-9a-f]{0,14})\.(0|[1-9a-f][0-9a-f]{0,14})")


def cursor_scope(origin: str, *names: str) -> bytes:
    """Return the scope of a cursor from the origin and the names of the topic or session."""
    return "\0".join((origin, *names)).encode("utf-8", "replace")


def format_cursor(store: Store, scope: bytes, position: Position | tuple[int, int]) -> str:
    identity, first, second = position if len(position) == 3 else (store.identity, *position)
    text = f"{identity}.{first:x}.{second:x}"
    return f"{text}.{_tag(scope, text)}"


def parse_cursor(store: Store, scope: bytes, cursor: str, parameter: str) -> Position | None:
    """Inverse of `format_cursor` for a position in a topic.

    Return None for a position in another store, such as an earlier data directory. The reader then starts over. Raise
    InvalidParameter if the cursor is damaged or has another scope.
    """
    position = _parse(scope, cursor, parameter)
    return position if store.knows(position.store) else None


def parse_session_cursor(store: Store, scope: bytes, cursor: str, parameter: str) -> SessionPosition | None:
    """Do the same as `parse_cursor` for a position in a session."""
    identity, serial, number = _parse(scope, cursor, parameter)
    return SessionPosition(serial, number) if identity == store.identity else None


def _parse(scope: bytes, cursor: str, parameter: str) -> Position:
    text, _, tag = cursor.rpartition(".")
    numbers = _NUMBERS.fullmatch(text)
    if numbers is None or tag != _tag(scope, text):
        raise InvalidParameter(parameter)
    return Position(numbers[1], int(numbers[2], 16), int(numbers[3], 16))


def _tag(scope: bytes, text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'replace'), zlib.crc32(scope)):08x}"
