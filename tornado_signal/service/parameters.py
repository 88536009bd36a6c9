"""Parameters of operations: how a value is checked, where it travels, and how the documents describe it. No I/O.

Values are JSON values. HTTP converts path and query, where everything is text, in `http/fields.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from ..errors import InvalidParameter
from ..session import Side, hash_secret
from . import schemas
from .request_context import RequestContext
from .schemas import Schema

_SIDES: Final = {side.value: side for side in Side}

Fields = Mapping[str, Any]
"""The received parameters of a request by name. Unknown ones are ignored."""

Check = Callable[[Fields, RequestContext], Any]
"""Function that returns the checked value of a parameter. It raises InvalidParameter."""


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operation."""

    name: str  # as clients send it
    check: Check  # returns the checked value from the fields
    schema: Schema
    required: bool = False
    description: str = ""  # an explanation, if the name is not enough
    # Its place in HTTP: the path, or `fields`, the query of a GET or the body of a POST. A parameter with `websocket`
    # exists only over a WebSocket, where all parameters are in `params`.
    place: Literal["path", "fields", "websocket"] = "fields"
    alternatives: tuple["Parameter", ...] = ()  # exactly one of these is sent in place of it, or empty
    # The schemas of other parameters if this alternative is used.
    narrows: Mapping[str, Schema] = field(default_factory=dict)


# Checks of values


def check_string(value: object, name: str, least: int = 1, most: int | None = None) -> str:
    """Check a string of `least` to `most` code points (docs/decisions.md#string-parameters)."""
    if type(value) is not str or len(value) < least or (most is not None and len(value) > most):
        raise InvalidParameter(name)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(name) from None
    return value


def check_optional_string(value: object, name: str, least: int = 1, most: int | None = None) -> str | None:
    """Check a string as `check_string` does, or return None if it is absent or null."""
    return None if value is None else check_string(value, name, least, most)


def check_integer(value: object, name: str, least: int, most: int) -> int:
    """Check an integer from `least` to `most`. As in JSON Schema, 1.0 is an integer."""
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not least <= value <= most:
        raise InvalidParameter(name)
    return value


def check_wait(fields: Fields, context: RequestContext) -> float | None:
    """Check the time of a long poll in seconds. None stands for no wait."""
    value = fields.get("wait")
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= schemas.MAX_WAIT_S:
        raise InvalidParameter("wait")
    return float(value)


def check_side(fields: Fields, context: RequestContext) -> Side:
    value = fields.get("side")
    side = _SIDES.get(value) if type(value) is str else None
    if side is None:
        raise InvalidParameter("side")
    return side


def check_secret(fields: Fields, context: RequestContext) -> bytes:
    """Return the hash of a side's secret, or an empty value (docs/http-api.md#secrets)."""
    secret = fields.get("secret")
    if secret is None:
        return b""
    return hash_secret(check_string(secret, "secret", schemas.MIN_SECRET, schemas.MAX_SECRET))


# Parameters of the operations


def string(name: str, most: int | None = None, schema: Schema = schemas.FILLED) -> Parameter:
    """Return a required string parameter of 1 to `most` code points."""

    def check(fields: Fields, context: RequestContext) -> str:
        return check_string(fields.get(name), name, 1, most)

    return Parameter(name, check, schema, required=True)


def choice(name: str, words: tuple[str, ...], *, required: bool = False, description: str = "") -> Parameter:
    """Return the parameter for one of some words. It is None if it is absent and not required."""

    def check(fields: Fields, context: RequestContext) -> str | None:
        word = fields.get(name)
        if not (word in words if type(word) is str else word is None and not required):
            raise InvalidParameter(name)
        return word

    return Parameter(name, check, {"type": "string", "enum": list(words)}, required, description)


def candidates(most: int) -> Parameter:
    """Return the parameter for a batch of candidates of at most `most` code points each."""

    def check(fields: Fields, context: RequestContext) -> list[str]:
        texts = fields.get("candidates")
        if type(texts) is not list or not 1 <= len(texts) <= schemas.MAX_CANDIDATES:
            raise InvalidParameter("candidates")
        return [check_string(text, "candidates", 1, most) for text in texts]

    schema = schemas.list_of(schemas.FILLED, minItems=1, maxItems=schemas.MAX_CANDIDATES)
    return Parameter("candidates", check, schema, required=True)


def one_of(name: str, *alternatives: Parameter) -> Parameter:
    """Return the parameter for one of several. Its value is name and value (docs/decisions.md#answer-or-candidate)."""
    checks = {alternative.name: alternative.check for alternative in alternatives}

    def check(fields: Fields, context: RequestContext) -> tuple[str, Any]:
        present = [name for name in checks if fields.get(name) is not None]
        if len(present) != 1:
            raise InvalidParameter("answer or candidate")
        return present[0], checks[present[0]](fields, context)

    return Parameter(name, check, {}, required=True, alternatives=alternatives)


def integer(
    name: str, schema: Schema, default: int | None = None, description: str = "", *, required: bool = False
) -> Parameter:
    """Return the parameter for an integer in the range of its schema (docs/decisions.md#page-and-limit)."""
    least, most = schema["minimum"], schema["maximum"]

    def check(fields: Fields, context: RequestContext) -> int | None:
        value = fields.get(name)
        return default if value is None and not required else check_integer(value, name, least, most)

    return Parameter(name, check, schema, required, description)


def _check_prefix(fields: Fields, context: RequestContext) -> str:
    return check_optional_string(fields.get("prefix"), "prefix", 0, schemas.MAX_TOPIC) or ""


def _check_hold(fields: Fields, context: RequestContext) -> bool:
    value = fields.get("hold")
    if type(value) not in (bool, type(None)):
        raise InvalidParameter("hold")
    return bool(value)


# Any string is accepted. One that is not a UUID belongs to no session (docs/decisions.md#malformed-codes).
CODE: Final = string("code", schema=schemas.ref("Code"))
SECRET: Final = Parameter("secret", check_secret, schemas.SECRET)
TOPIC: Final = replace(string("topic", schemas.MAX_TOPIC, schemas.TOPIC), place="path")
PREFIX: Final = Parameter("prefix", _check_prefix, schemas.PREFIX)
HOLD: Final = Parameter("hold", _check_hold, schemas.HOLD, place="websocket")
WAIT: Final = Parameter("wait", check_wait, schemas.WAIT)


# The documents


def describe_bodies(name: str, parameters: Sequence[Parameter]) -> Schema:
    """Return the schemas of a body by name, one for each alternative."""
    alternatives = next((parameter.alternatives for parameter in parameters if parameter.alternatives), ())
    if not alternatives:
        return {name: describe_body(parameters)}
    common = [parameter for parameter in parameters if not parameter.alternatives]
    return {
        f"{alternative.name.title()}Request": describe_body([*common, alternative], alternative.narrows)
        for alternative in alternatives
    }


def describe_body(parameters: Sequence[Parameter], narrows: Mapping[str, Schema] = {}) -> Schema:
    """Return the schema of an object. Optional fields can also be null."""
    properties = {
        parameter.name: parameter.schema
        if parameter.required
        else {**parameter.schema, "type": [parameter.schema["type"], "null"]}
        for parameter in parameters
    }
    required = [parameter.name for parameter in parameters if parameter.required]
    return schemas.object_of({**properties, **narrows}, required, closed=False)
