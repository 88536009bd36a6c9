"""Positions as text: the identity of the store and two hexadecimal numbers, separated by dots."""

import re

_STORE = re.compile("[0-9a-f]{12}")
_NUMBER = re.compile("0|[1-9a-f][0-9a-f]{0,14}")  # canonical, and small enough to have a successor


def format_numbers(store: str, first: int, second: int) -> str:
    """Return a position as text. `store` has 12 hexadecimal digits, the numbers are below 2^60."""
    return f"{store}.{first:x}.{second:x}"


def parse_numbers(store: str, text: str) -> tuple[int, int] | None:
    """Inverse of `format_numbers`. Return None for numbers of another store. Raise ValueError for other text."""
    counted_by, *numbers = text.split(".")
    if not _STORE.fullmatch(counted_by) or len(numbers) != 2 or not all(map(_NUMBER.fullmatch, numbers)):
        raise ValueError(text)
    return (int(numbers[0], 16), int(numbers[1], 16)) if counted_by == store else None
