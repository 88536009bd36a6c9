"""JSON of servers and other peers: values that can be printed, stored and sent, and that have the expected shape.

A shape is a type, or a dict of shapes.
"""

import contextlib
import functools
import json
import math
import re
import typing
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from .types import Health, IceServers, Session, T, Topics

MAX_VALUES = 250_000  # array elements and object fields: an object of one field needs seven bytes, and 184 as a dict
MAX_DEPTH = 256  # nested arrays and objects: a program with a deep stack can still encode them
MAX_NUMBER: Final = 2**53  # what a JavaScript number counts to
Shape = Any

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


def _check_depth(value: Any, levels: int = MAX_DEPTH) -> None:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if not levels and isinstance(value, list | dict):
        raise ValueError("nested too deeply")
    for each in children:
        _check_depth(each, levels - 1)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


class _Retry(TypedDict):
    retryAfter: NotRequired[int]


_UPDATES: Final = {
    "offerer": {"answer": NotRequired[str], "answerCandidates": list[str], "cursor": NotRequired[str]},
    "answerer": {"offer": str, "offerCandidates": list[str], "cursor": NotRequired[str]},
}
_RESULTS: Final[dict[str, Shape]] = {
    "version": {"version": str},
    "health": Health,
    "iceServers": IceServers,
    "report": NotRequired[dict],
    "nearby": {"topic": str},
    "topics": Topics,
    "sessions": {"sessions": list[Session], "cursor": NotRequired[str]},
    "offer": {"code": str},
    "refresh": {"expiresAt": int},
    "subscribe": {"subscription": int},
}
ERROR: Final = {"code": int, "message": str, "data": NotRequired[_Retry]}
NOTIFICATION: Final = {"subscription": int, "type": NotRequired[str], "data": NotRequired[dict], "cursor": str}
TOPIC_EVENTS: Final[dict[str, Shape]] = {
    "session": Session,
    "gone": {"code": str, "reason": NotRequired[str]},
    "reset": {},
}
SESSION_EVENTS: Final[dict[str, Shape]] = {
    **{name: {name: str} for name in ("offer", "answer", "candidate")},
    "gone": {"code": NotRequired[str], "reason": NotRequired[str]},
}

_fields_of = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))


def is_result(operation: str, fields: dict[str, Any], value: object) -> bool:
    return conforms(value, _UPDATES[fields["side"]] if operation == "poll" else _RESULTS.get(operation, {}))


def checked(value: object, shape: type[T]) -> T | None:
    """Return a value that has the shape of a TypedDict, or None for another one."""
    return cast(T, value) if conforms(value, shape) else None


def conforms(value: object, shape: Shape) -> bool:
    """Return whether a value of JSON has a shape.

    Objects can have further fields. Fields that are not required can be null. `int` is any number.
    """
    if shape is str:  # most values are texts
        return isinstance(value, str)
    if isinstance(shape, dict) or typing.is_typeddict(shape):
        fields = shape if isinstance(shape, dict) else _fields_of(shape)
        return isinstance(value, dict) and all(conforms(value.get(name), each) for name, each in fields.items())
    if shape is int:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    kinds = typing.get_args(shape)
    origin: Any = typing.get_origin(shape)
    if origin is list:
        return isinstance(value, list) and all(conforms(each, kinds[0]) for each in value)
    if origin is Literal:
        return value in kinds
    if origin is NotRequired:
        return value is None or conforms(value, kinds[0])
    return any(conforms(value, each) for each in kinds) if kinds else isinstance(value, shape)
