"""Output of commands, on a terminal as tables."""

import contextlib
import os
import sys
import unicodedata
from collections.abc import Iterator, Sequence

LONGEST = 60  # characters of a cell


def wants_tables(as_json: bool) -> bool:
    """Return whether to print tables: on a terminal and without `--json`."""
    return sys.stdout.isatty() and not as_json


@contextlib.contextmanager
def output_may_be_closed() -> Iterator[None]:
    """End the block quietly if the reader of its output closes the pipe. Otherwise the exit would report it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    cells = [[shortened(str(cell)) for cell in row] for row in rows]
    right = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(heads))]
    widths = [max(width(row[column]) for row in [heads, *cells]) for column in range(len(heads))]
    lines = []
    for row in [heads, *cells]:
        padded = [
            " " * (space - width(cell)) + cell if to_right else cell + " " * (space - width(cell))
            for cell, space, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def printable(text: str) -> str:
    """Escape control characters in text from peers, and everything else that is not visible."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def shortened(text: str) -> str:
    """Return text from peers for a table cell: printable, and at most `LONGEST` characters."""
    shown = printable(text[: LONGEST + 1])
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
