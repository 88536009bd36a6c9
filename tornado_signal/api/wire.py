"""JSON and HTTP words: requests into arguments, results into bodies. The one home of camelCase. No I/O."""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn
from urllib.parse import unquote_to_bytes

import orjson

from ..errors import InvalidParameter
from ..session import ListedSession, News, Reason, Side, hash_secret

JSON: Final = "application/json"

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MAX_TOPIC: Final = 256  # code points
MAX_INFO: Final = 1024  # code points
MAX_ORIGIN: Final = 512  # bytes, which are the code points of a header value
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_NUMBER: Final = 2**53  # what a JavaScript number counts to

encode = orjson.dumps

MAX_WAIT_S: Final = 60
MIN_SECRET: Final = 16  # code points
MAX_SECRET: Final = 256  # code points
MAX_CANDIDATES: Final = 100  # in a batch
MIN_TTL_MS: Final = 1000

_SIDES: Final = {side.value: side for side in Side}
_DECIMAL: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_WHOLE: Final = re.compile("[0-9]{1,30}")
_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def parse_body(body: bytes) -> dict[str, Any]:
    """A request's body, which must be one JSON object in UTF-8 (contract B2).

    Raises:
        InvalidParameter: `body`.
    """
    body = body.removeprefix(BYTE_ORDER_MARK)  # RFC 8259, 8.1: may be ignored
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        fields = _parse_leniently(body)
    if type(fields) is not dict:
        raise InvalidParameter("body")
    return fields


def _parse_leniently(body: bytes) -> Any:
    """JSON that orjson refuses but whose parameters can be named: a lone surrogate is the parameter's fault (B3)."""
    try:
        return json.loads(body.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise InvalidParameter("body") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_string(fields: dict[str, Any], name: str, most: int | None = None) -> str:
    """A required string (contract B3).

    Args:
        fields: the body.
        name: the parameter.
        most: how many code points it may have.

    Raises:
        InvalidParameter: it is absent, empty, not a string, too long, or not encodable as UTF-8.
    """
    value = fields.get(name)
    if type(value) is not str or not value or (most is not None and len(value) > most):
        raise InvalidParameter(name)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(name) from None
    return value


def parse_optional(fields: dict[str, Any], name: str, least: int = 1, most: int | None = None) -> str | None:
    """A string that may be absent (or null), else as `parse_string` has it, and with at least so many code points.

    Raises:
        InvalidParameter: it is there, but not allowed.
    """
    if fields.get(name) is None:
        return None
    text = parse_string(fields, name, most)
    if len(text) < least:
        raise InvalidParameter(name)
    return text


def parse_given(fields: dict[str, Any]) -> str:
    """Which of `answer`, `candidate` and `candidates` a request brings (contract B4, C4).

    Raises:
        InvalidParameter: none of them, or more than one.
    """
    given = [name for name in ("answer", "candidate", "candidates") if fields.get(name) is not None]
    if len(given) != 1:
        raise InvalidParameter("answer or candidate")
    return given[0]


def parse_secret(fields: dict[str, Any]) -> bytes:
    """The hash of the `secret` that a side shows (contract C5); empty for none.

    Raises:
        InvalidParameter: `secret`.
    """
    if "secret" not in fields:
        return b""
    return hash_secret(parse_optional(fields, "secret", MIN_SECRET, MAX_SECRET))


def parse_candidates(fields: dict[str, Any], name: str, most: int) -> list[str]:
    """One `candidate`, or a batch of `candidates` (contract C4).

    Args:
        fields: the body.
        name: which of the two it brings.
        most: how many code points each may have.

    Raises:
        InvalidParameter: what it brings is not allowed.
    """
    if name == "candidate":
        return [parse_string(fields, name, most)]
    texts = fields.get("candidates")
    if type(texts) is not list or not 1 <= len(texts) <= MAX_CANDIDATES:
        raise InvalidParameter("candidates")
    return [parse_string({"candidates": text}, "candidates", most) for text in texts]


def parse_ttl(fields: dict[str, Any], most_ms: int) -> int | None:
    """The lifetime that an offer asks for, in milliseconds (contract C6); None if it does not.

    Raises:
        InvalidParameter: `ttl`.
    """
    ttl_ms = fields.get("ttl")
    if ttl_ms is None:
        return None
    if type(ttl_ms) is not int or not MIN_TTL_MS <= ttl_ms <= most_ms:
        raise InvalidParameter("ttl")
    return ttl_ms


def parse_wait_text(text: str | None) -> float | None:
    """`parse_wait` for a query, where a number is text.

    Raises:
        InvalidParameter: `wait`.
    """
    return parse_wait(float(text) if text is not None and _DECIMAL.fullmatch(text) else text)


def parse_wait(value: Any) -> float | None:
    """How long to wait for news, in seconds (contract C1, C2); None for not at all.

    Raises:
        InvalidParameter: `wait`.
    """
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= MAX_WAIT_S:
        raise InvalidParameter("wait")
    return float(value)


def parse_side(fields: dict[str, Any]) -> Side:
    """The required `side` (specification 2).

    Raises:
        InvalidParameter: `side`.
    """
    value = fields.get("side")
    side = _SIDES.get(value) if type(value) is str else None
    if side is None:
        raise InvalidParameter("side")
    return side


def parse_topic(segment: str) -> str:
    """A topic from its path segment, as it came: percent-encoded UTF-8 (contract B3, B13).

    Raises:
        InvalidParameter: `topic`.
    """
    try:
        data = segment.encode("latin-1")
        if _PERCENT.search(data):
            raise InvalidParameter("topic")
        topic = unquote_to_bytes(data).decode()
    except UnicodeError:
        raise InvalidParameter("topic") from None
    if not 0 < len(topic) <= MAX_TOPIC:
        raise InvalidParameter("topic")
    return topic


def parse_code(text: str) -> bytes | None:
    """A session's code as 16 bytes, or None for what is no UUID and therefore no session's (contract B7)."""
    return _parse_uuid(text) if len(text) == 36 else None  # nothing long is kept


@functools.lru_cache(maxsize=4096)  # each comes a dozen times
def _parse_uuid(text: str) -> bytes | None:
    if not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    try:
        code = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    return code if len(code) == 16 else None


def format_code(code: bytes) -> str:
    """A session's code as the client sees it: a UUID in lower case."""
    text = code.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def parse_whole(values: Sequence[str] | None, name: str, default: int) -> int:
    """A query parameter that must be a whole number from 1 to 2^53 (contract B8).

    Args:
        values: what the query has under the name.
        name: the parameter.
        default: what its absence means.

    Raises:
        InvalidParameter: it is something else, or comes more than once.
    """
    if not values:
        return default
    if len(values) != 1 or not _WHOLE.fullmatch(values[0]) or not 1 <= int(values[0]) <= MAX_NUMBER:
        raise InvalidParameter(name)
    return int(values[0])


def topics_page(page: int, limit: int, topics: list[tuple[str, int]], total: int) -> dict[str, Any]:
    """The answer of GET /topics."""
    return {
        "topics": [{"topic": topic, "count": count} for topic, count in topics],
        "pagination": {"page": page, "limit": limit, "total": total, "hasMore": page * limit < total},
    }


def listed_session(listed: ListedSession) -> dict[str, Any]:
    """One entry of GET /:topic/sessions."""
    session = listed.session
    return {
        "code": format_code(session.code),
        "info": session.info,
        "offer": listed.offer,
        "offerCandidates": listed.candidates,
        "createdAt": session.created_ms,
        "expiresAt": session.expires_ms,
    }


def news(side: Side, found: News) -> dict[str, Any]:
    """The answer of POST /poll for the side that polls."""
    candidates = [text for _, text in found.candidates]
    if side is Side.OFFERER:
        return {"answer": found.description, "answerCandidates": candidates}
    return {"offer": found.description, "offerCandidates": candidates}


def ice_servers(stun: Sequence[str], turn: tuple[Sequence[str], str, str] | None, expires_ms: int) -> dict[str, Any]:
    """The answer of GET /ice-servers (contract C7); `turn` is URLs, user name and password."""
    servers: list[dict[str, Any]] = [{"urls": stun}] if stun else []
    if turn is not None:
        servers.append(dict(zip(("urls", "username", "credential"), turn, strict=True)))
    return {"iceServers": servers, "expiresAt": expires_ms}


def event(name: str, fields: dict[str, Any], cursor: str) -> bytes:
    """One Server-Sent Event (contract C3); JSON has no line breaks of its own."""
    return b"event: %b\nid: %b\ndata: %b\n\n" % (name.encode(), cursor.encode(), encode(fields))


def gone(code: bytes, reason: Reason) -> dict[str, Any]:
    """What the event `gone` says."""
    return {"code": format_code(code), "reason": reason.name.lower()}
