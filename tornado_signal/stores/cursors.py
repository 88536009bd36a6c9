"""Cursors: where a reader has come to, as text that it shows again. Sequence numbers, never clocks (contract C1).

A cursor is `store.numbers.tag`: which store has counted, hexadecimal numbers with a dot between them, and a tag that
ties them to what they are about, so that a damaged cursor, or one of another session or topic, is recognised. The tag
guards against mistakes; it is no secret and protects nothing.
"""

import re
import zlib

from ..errors import InvalidParameter

_STORE = re.compile("[0-9a-f]{12}")
_NUMBER = re.compile("0|[1-9a-f][0-9a-f]{0,14}")  # as they are made here, and none that the next could not follow


def format_cursor(store: str, about: bytes, *numbers: int) -> str:
    """A cursor.

    Args:
        store: the identity of the store that has counted: 12 hexadecimal digits.
        about: what the numbers count in, such as the key of a session.
        numbers: where the reader has come to; each under 2^60.
    """
    text = ".".join((store, *map("{:x}".format, numbers)))
    return f"{text}.{_tag(about, text)}"


def parse_cursor(store: str, about: bytes, cursor: str, parameter: str, count: int) -> tuple[int, ...] | None:
    """Inverse of `format_cursor`.

    Args:
        store: as it was given to `format_cursor`.
        about: as it was given to `format_cursor`.
        cursor: as the client shows it.
        parameter: what it is called, for the error.
        count: how many numbers it has.

    Returns:
        The numbers; None if they are another store's, such as the one before a backup was restored: they mean nothing
        in this one, and the reader begins anew.

    Raises:
        InvalidParameter: it is damaged, or about something else.
    """
    text, _, tag = cursor.rpartition(".")
    counted_by, *numbers = text.split(".")
    if len(numbers) != count or tag != _tag(about, text) or not all(map(_NUMBER.fullmatch, numbers)):
        raise InvalidParameter(parameter)
    if not _STORE.fullmatch(counted_by):
        raise InvalidParameter(parameter)
    if counted_by != store:
        return None
    return tuple(int(number, 16) for number in numbers)


def _tag(about: bytes, text: str) -> str:
    return f"{zlib.crc32(text.encode('utf-8', 'replace'), zlib.crc32(about)):08x}"
