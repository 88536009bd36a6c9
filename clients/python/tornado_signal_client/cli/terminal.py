"""Output of commands: tables on a terminal, JSON for programs."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CLEAR = "\x1b[H\x1b[J"
LONGEST = 60  # characters of a cell


class CommandError(Exception):
    """An error that ends a command. The message says in one line what is wrong and what to do."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def wants_tables(as_json: bool) -> bool:
    return sys.stdout.isatty() and not as_json


def print_rows(as_json: bool, heads: Sequence[str], rows: Iterable[tuple[Mapping[str, Any], Sequence[object]]]) -> None:
    """Print rows as a table, or as objects. Each row is given in both forms."""
    if wants_tables(as_json):
        print(table(heads, [row for _, row in rows]))
    else:
        for fields, _ in rows:
            print_line(fields)


def print_line(fields: Mapping[str, Any]) -> None:
    print(json.dumps(fields), flush=True)


def print_text(text: str) -> None:
    """Print text from peers. On a terminal, control characters other than line breaks are escaped."""
    print(printable_lines(text) if sys.stdout.isatty() else text)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with aligned columns and right-aligned numbers."""
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
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """Escape text from peers, except for its line breaks."""
    return "\n".join(map(printable, text.splitlines()))


def shortened(text: str) -> str:
    """Return text from peers for a table cell: printable, and at most `LONGEST` characters."""
    shown = printable(text[: LONGEST + 1])
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def width(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
