"""Positions as text: which store has counted, and hexadecimal numbers with a dot between them."""

import re

_STORE = re.compile("[0-9a-f]{12}")
_NUMBER = re.compile("0|[1-9a-f][0-9a-f]{0,14}")  # as they are made here, and none that the next could not follow


def format_numbers(store: str, first: int, second: int) -> str:
    """A position as text: the identity of the store that has counted, 12 hexadecimal digits, and numbers under 2^60."""
    return f"{store}.{first:x}.{second:x}"


def parse_numbers(store: str, text: str) -> tuple[int, int] | None:
    """Inverse of `format_numbers`.

    Returns:
        The numbers; None if they are another store's. They mean nothing in this one, and the reader starts over.

    Raises:
        ValueError: it is no position.
    """
    counted_by, *numbers = text.split(".")
    if not _STORE.fullmatch(counted_by) or len(numbers) != 2 or not all(map(_NUMBER.fullmatch, numbers)):
        raise ValueError(text)
    return (int(numbers[0], 16), int(numbers[1], 16)) if counted_by == store else None
