"""The shapes of results and events. They are checked before a program gets them."""

from typing import Any, Final

MAX_NUMBER: Final = 2**53  # what a JavaScript number counts to

Shape = Any
"""`str`, `int` for numbers, `bool`, `None` if null or missing, a list or dict of shapes, or a tuple of alternatives."""

_TEXT_OR_NONE: Final = (str, None)
_SESSION: Final = {
    "code": str,
    "info": str,
    "offer": str,
    "offerCandidates": [str],
    "createdAt": int,
    "expiresAt": int,
}
_ICE_SERVER: Final = {"urls": (str, [str]), "username": _TEXT_OR_NONE, "credential": _TEXT_OR_NONE}
_PAGINATION: Final = {"page": int, "limit": int, "total": int, "hasMore": bool}
_UPDATES: Final = {
    "offerer": {"answer": _TEXT_OR_NONE, "answerCandidates": [str], "cursor": _TEXT_OR_NONE},
    "answerer": {"offer": str, "offerCandidates": [str], "cursor": _TEXT_OR_NONE},
}
_RESULTS: Final[dict[str, Shape]] = {
    "version": {"version": str},
    "health": {"status": str, "timestamp": int},
    "iceServers": {"iceServers": [_ICE_SERVER], "expiresAt": int, "reports": (bool, None)},
    "report": ({}, None),
    "nearby": {"topic": str},
    "topics": {"topics": [{"topic": str, "count": int}], "pagination": _PAGINATION},
    "sessions": {"sessions": [_SESSION], "cursor": _TEXT_OR_NONE},
    "offer": {"code": str},
    "refresh": {"expiresAt": int},
    "subscribe": {"subscription": int},
}
ERROR: Final = {"code": int, "message": str, "data": ({"retryAfter": (int, None)}, None)}
NOTIFICATION: Final = {"subscription": int, "type": _TEXT_OR_NONE, "data": ({}, None), "cursor": str}
TOPIC_EVENTS: Final[dict[str, Shape]] = {
    "session": _SESSION,
    "gone": {"code": str, "reason": _TEXT_OR_NONE},
    "reset": {},
}
SESSION_EVENTS: Final[dict[str, Shape]] = {
    "offer": {"offer": str},
    "answer": {"answer": str},
    "candidate": {"candidate": str},
    "gone": {"code": _TEXT_OR_NONE, "reason": _TEXT_OR_NONE},
}


def is_result(operation: str, fields: dict[str, Any], value: object) -> bool:
    """Return whether a value can be the result of an operation."""
    return conforms(value, _UPDATES[fields["side"]] if operation == "poll" else _RESULTS.get(operation, {}))


def conforms(value: object, shape: Shape) -> bool:
    """Return whether a value of JSON has a shape. Objects can have further fields."""
    match shape:
        case tuple():
            return any(conforms(value, each) for each in shape)
        case dict():
            return isinstance(value, dict) and all(conforms(value.get(name), each) for name, each in shape.items())
        case list():
            return isinstance(value, list) and all(conforms(each, shape[0]) for each in value)
        case None:
            return value is None
    if shape is int:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    return isinstance(value, shape)
