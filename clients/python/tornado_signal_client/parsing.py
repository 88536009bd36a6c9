"""JSON of servers and other peers, parsed into values that can be printed, stored and sent."""

import contextlib
import json
import math
import re
from typing import Any

MAX_VALUES = 250_000  # array elements and object fields: an object of one field needs seven bytes, and 184 as a dict
MAX_DEPTH = 256  # nested arrays and objects: a program with a deep stack can still encode them

# An escape sequence. The group is half of a surrogate pair without the other half.
_ESCAPE = re.compile(
    r"\\(?:ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}|(ud[89a-f][0-9a-f]{2})|.)", re.IGNORECASE | re.DOTALL
)


def parse_json(text: str | bytes) -> Any:
    r"""Parse JSON. Half of a surrogate pair becomes the replacement character, U+FFFD.

    Raises:
        ValueError: it is not JSON in UTF-8, has too many values or levels, or a number that is not finite.
    """
    if isinstance(text, bytes):
        text = text.decode()
    if r"\ud" in text or r"\uD" in text:
        text = _ESCAPE.sub(lambda escape: r"\ufffd" if escape[1] else escape[0], text)
    nested = text.count("[") + text.count("{")
    if nested + text.count(",") > MAX_VALUES:
        raise ValueError("too many values")
    try:
        value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if nested > MAX_DEPTH:
        _check_depth(value)
    return value


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the fields of a JSON object, or no fields for any other text."""
    with contextlib.suppress(ValueError):
        if isinstance(fields := parse_json(text), dict):
            return fields
    return {}


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
    if level:
        raise ValueError("nested too deeply")


def _children(value: list[Any] | dict[str, Any]) -> list[Any]:
    values = value.values() if isinstance(value, dict) else value
    return [child for child in values if isinstance(child, list | dict)]


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number
