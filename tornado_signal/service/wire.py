"""JSON of the operations: bodies into fields, results into bodies. The one home of camelCase. No I/O."""

import functools
import json
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import orjson

from ..errors import InvalidParameter, SessionNotFound
from ..session import OFFERER, ListedSession, Reason, SessionUpdate, Side

JSON: Final = "application/json"
BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

encode = orjson.dumps


def parse_body(body: bytes | bytearray) -> dict[str, Any]:
    """Parse a request body, which must be one JSON object in UTF-8 (docs/decisions.md#request-body)."""
    try:
        fields = parse(body)
    except ValueError:
        raise InvalidParameter("body") from None
    if type(fields) is not dict:
        raise InvalidParameter("body")
    return fields


def parse(text: bytes | bytearray) -> Any:
    """Parse JSON in UTF-8. Raise ValueError for other text."""
    text = text.removeprefix(BYTE_ORDER_MARK)  # RFC 8259, 8.1: may be ignored
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _parse_leniently(text)


def _parse_leniently(text: bytes | bytearray) -> Any:
    """Parse JSON with lone surrogates, which orjson refuses, so that the error can name the invalid parameter."""
    try:
        return json.loads(text.decode(), parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def parse_code(text: str) -> bytes:
    """Return a session's code as 16 bytes. Raise SessionNotFound for other text (docs/decisions.md#malformed-codes)."""
    code = _parse_uuid(text) if len(text) == 36 else None  # nothing long is kept
    if code is None:
        raise SessionNotFound
    return code


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
    """Return a session's code as a UUID in lower case."""
    text = code.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def topics_page(page: int, limit: int, topics: list[tuple[str, int]], total: int) -> dict[str, Any]:
    return {
        "topics": [{"topic": topic, "count": count} for topic, count in topics],
        "pagination": {"page": page, "limit": limit, "total": total, "hasMore": page * limit < total},
    }


def listed_session(listed: ListedSession) -> dict[str, Any]:
    session = listed.session
    return {
        "code": format_code(session.code),
        "info": session.info,
        "offer": listed.offer,
        "offerCandidates": listed.candidates,
        "createdAt": session.created_ms,
        "expiresAt": session.expires_ms,
    }


def poll_result(side: Side, update: SessionUpdate) -> dict[str, Any]:
    candidates = [text for _, text in update.candidates]
    if side is OFFERER:
        return {"answer": update.description, "answerCandidates": candidates}
    return {"offer": update.description, "offerCandidates": candidates}


def ice_servers(servers: Sequence[Any], expires_ms: int, reports: bool) -> dict[str, Any]:
    return {"iceServers": servers, "expiresAt": expires_ms} | ({"reports": True} if reports else {})


def gone(code: bytes, reason: Reason) -> dict[str, Any]:
    return {"code": format_code(code), "reason": reason.name.lower()}
