"""What commands print: tables for people, JSON lines for programs."""

import json
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

CLEAR = "\x1b[H\x1b[J"


def for_people(as_json: bool) -> bool:
    """Whether to print a table: standard output is a terminal, and nobody asked for JSON."""
    return sys.stdout.isatty() and not as_json


def line(fields: Mapping[str, Any]) -> None:
    """Print an object as one line of JSON, at once."""
    print(json.dumps(fields), flush=True)


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under their heads, in columns; numbers to the right."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    right = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(heads))]
    wide = [max(width(row[column]) for row in [heads, *cells]) for column in range(len(heads))]
    lines = []
    for row in [heads, *cells]:
        padded = [
            " " * (space - width(cell)) + cell if to_right else cell + " " * (space - width(cell))
            for cell, space, to_right in zip(row, wide, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def printable(text: str, most: int = 60) -> str:
    """Text from strangers, as a terminal may see it: without what would steer the terminal, and not too long."""
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[: most + 1])
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(each) else 2 if unicodedata.east_asian_width(each) in "WF" else 1 for each in text
    )


def seconds(ms: float) -> str:
    """A time span in words."""
    left_s = max(0, round(ms / 1000))
    return f"{left_s} s" if left_s < 120 else f"{left_s // 60} min" if left_s < 7200 else f"{left_s // 3600} h"
