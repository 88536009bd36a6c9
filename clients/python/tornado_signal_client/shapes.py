"""The shapes of JSON values, which are checked before a program gets them. A shape is a type, or a dict of shapes."""

import functools
import typing
from typing import Any, Final, Literal, NotRequired, TypedDict, TypeVar, cast

from .types import Health, IceServers, Session, Topics

T = TypeVar("T")
Shape = Any

MAX_NUMBER: Final = 2**53  # what a JavaScript number counts to


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
    """Return whether a value can be the result of an operation."""
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
