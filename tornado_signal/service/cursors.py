"""Cursors: where a reader has come to, as text that it shows again. Sequence numbers, never clocks (contract C1).

A cursor is a position of the store and a tag that ties it to what it counts in, so that a damaged cursor, or one of
another session or topic, is recognised. The tag guards against mistakes; it is no secret and protects nothing.
"""

import zlib
from collections.abc import Callable
from typing import TypeVar

from ..errors import InvalidParameter
from ..session import Position, SessionPosition
from ..stores import Store

P = TypeVar("P")


def cursor_scope(origin: str, *names: str) -> bytes:
    """What a cursor counts in: the origin and the names of what is read."""
    return "\0".join((origin, *names)).encode("utf-8", "replace")


def format_cursor(store: Store, scope: bytes, position: Position | SessionPosition) -> str:
    """A cursor."""
    text = store.format_position(position)
    return f"{text}.{_tag(scope, text)}"


def parse_cursor(parse: Callable[[str], P | None], scope: bytes, cursor: str, parameter: str) -> P | None:
    """Inverse of `format_cursor`, with the store's `parse_position` or `parse_session_position`.

    Returns:
        The position; None if it is another store's, such as one with an earlier data directory: it means nothing
        in this one, and the reader begins anew.

    Raises:
        InvalidParameter: it is damaged, or counts in something else.
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
