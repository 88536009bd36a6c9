"""Path and query as the fields of a request: text into the JSON values that it stands for. No I/O."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from ..service.parameters import Parameter

_NUMBER: Final = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?([Ee][+-]?[0-9]{1,3})?")  # as in JSON
_WHOLE: Final = re.compile("[0-9]{1,30}")
_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def decode_segment(segment: str) -> str | None:
    """Decode a path segment, such as a topic, from percent-encoded UTF-8. Return None if it is invalid."""
    try:
        data = segment.encode("latin-1")
        return None if _PERCENT.search(data) else unquote_to_bytes(data).decode()
    except UnicodeError:
        return None


def query_fields(query: Mapping[str, list[bytes]], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the values of a query. A repeated field is a list, which no parameter accepts."""
    return {
        parameter.name: _value(parameter.schema, query[parameter.name])
        for parameter in parameters
        if parameter.name in query
    }


def query_token(query: Mapping[str, list[bytes]]) -> str:
    """Return the token in a query, for clients that can set no header, or an empty text."""
    return query["token"][0].decode("latin-1") if "token" in query else ""


def _value(schema: Mapping[str, Any], texts: list[bytes]) -> Any:
    if len(texts) > 1:
        return texts
    text = texts[0].decode(errors="surrogateescape")  # checks of strings refuse what is not UTF-8
    if schema.get("type") == "integer" and _WHOLE.fullmatch(text):
        return int(text)
    if schema.get("type") == "number" and _NUMBER.fullmatch(text):
        return float(text)
    return text
