"""Strict checks of targets, hosts and codings that llhttp accepts. A refusal closes the connection."""

import http
import re
from collections.abc import Iterable
from typing import Final, TypeVar

from tornado import httputil

from .headers import AUTHORIZATION, LENGTH, Headers

HTTP_1_1: Final = "HTTP/1.1"
MAX_HEADERS: Final = 128  # each takes much more memory than bytes on the wire; browsers send fifteen, proxies add some
MAX_CACHED_BYTES: Final = 4096  # of a head; a longer one is parsed for each request
CACHED_HEADS: Final = 256  # clients repeat them
CACHED_LINES: Final = 256  # the request lines before them
CACHED_FIELDS: Final = 1024  # of other heads; behind a proxy many of them differ only in the client's address
MAX_CACHED_FIELD_BYTES: Final = 256  # also of a request line
# Fields that are not kept for longer than their request: others could read them in the memory of this process.
CREDENTIALS: Final = (AUTHORIZATION, b"proxy-authorization", b"cookie")
NEVER_REPEATED: Final = (*CREDENTIALS, b"sec-websocket-key")
# Nor are heads with these: more than their Content-Length says what follows. (llhttp reads Proxy-Connection as well.)
NOT_KEPT: Final = (*CREDENTIALS[1:], b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection")
KEPT_ALIVE: Final = b"keep-alive"
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_LATER_VERSION: Final = re.compile(r"HTTP/1\.[2-9]")  # has the syntax of 1.1 (RFC 9110, 2.5)
_TARGET: Final = re.compile(rb"[!\"$-~\x80-\xff]+")  # a fragment stays with the client
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)
_HOST: Final = re.compile(rb"(?:([A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,20}")  # larger than any body; Python refuses to parse thousands of digits
_TOKEN: Final = re.compile(rb"Bearer [A-Za-z0-9._~+/=-]+")
_BEFORE_LENGTH: Final = b"\r\nContent-Length: "
_BEFORE_TOKEN: Final = b"\r\nAuthorization: "
_VERSION_LINE: Final = b" HTTP/1.1\r\n"

K = TypeVar("K")
V = TypeVar("V")


class BadRequest(Exception):
    """A request that is rejected before any handler, with an HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def check_target(method: bytes, target: bytes) -> tuple[str, bytes]:
    """Return path and query of a request, and the host in its target, which replaces that of the header.

    Raise BadRequest if the target has another form than those of RFC 9112, 3.2.
    """
    host = b""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is not None:
            host = absolute[1]
            target = target[absolute.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
        elif target != b"*" or method != b"OPTIONS":
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    if not _TARGET.fullmatch(target) or (host and not _HOST.fullmatch(host)):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    return target.decode("latin-1"), host


def split_fields(lines: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Return names in lower case and values of header lines. Raise BadRequest for a folded line."""
    return [_fields.get(line) or _split_field(line) for line in lines]


def _split_field(line: bytes) -> tuple[bytes, bytes]:
    if line.startswith((b" ", b"\t")) or b"\n" in line:
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    name, _, value = line.partition(b":")
    field = name.lower(), value.strip(b" \t")
    if len(line) <= MAX_CACHED_FIELD_BYTES and field[0] not in NEVER_REPEATED:
        keep(_fields, line, field, CACHED_FIELDS)
    return field


def parse_head(head: bytes) -> tuple[str, Headers]:
    """Parse what follows the target of a request up to the empty line, which llhttp has accepted.

    Return the version, such as `HTTP/1.1`, and the headers, which repeated heads share. Raise BadRequest with the
    fitting status if there are too many headers, or one is ambiguous.
    """
    if (known := find_head(head)) is not None:
        return HTTP_1_1, known
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    if not _VERSION.fullmatch(first):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)  # such as RTSP
    version, headers = _LATER_VERSION.sub(HTTP_1_1, first.decode()), Headers(split_fields(lines))
    check_headers(headers, version)
    if len(head) <= MAX_CACHED_BYTES and first.decode() == HTTP_1_1:
        keep_head(head, headers)
    return version, headers


def keep_head(head: bytes, headers: Headers) -> None:
    """Have `find_head` know a head, if its connection stays open and only its Content-Length says what follows."""
    sent = headers.sent
    if not sent.keys().isdisjoint(NOT_KEPT) or sent.get(b"connection", KEPT_ALIVE).lower() != KEPT_ALIVE:
        return
    key, _ = _cut(head, _BEFORE_LENGTH, _LENGTH)
    if AUTHORIZATION in sent:
        key, token = _cut(key, _BEFORE_TOKEN, _TOKEN)
        if not token or headers.has_several(AUTHORIZATION):
            return
        headers = headers.with_values({AUTHORIZATION: b""})
    if key:
        keep(_heads, key, headers, CACHED_HEADS)


def find_head(head: bytes) -> Headers | None:
    """Return the headers of a head that is known but for its Content-Length and its token, otherwise None."""
    key, length = _cut(head, _BEFORE_LENGTH, _LENGTH)
    headers = _heads.get(key)
    if headers is None:
        key, token = _cut(key, _BEFORE_TOKEN, _TOKEN)
        headers = _heads.get(key) if token else None
        if headers is None:
            return None
        values = {AUTHORIZATION: token}
        return headers.with_values(values | {LENGTH: length} if length else values)
    if length and headers.sent[LENGTH] != length:
        headers = _heads[key] = headers.with_values({LENGTH: length})
    return headers


def _cut(head: bytes, before: bytes, valid: re.Pattern[bytes]) -> tuple[bytes, bytes]:
    """Return a head without the value that follows something, and the value. Both are empty if it is not valid."""
    begin = head.find(before)
    if begin < 0:
        return head, b""
    begin += len(before)
    end = head.find(b"\r\n", begin)
    value = head[begin:end] if end >= 0 else head[begin:]
    return (head[:begin] + head[begin + len(value) :], value) if valid.fullmatch(value) else (b"", b"")


def keep_line(line: bytes, start_line: httputil.RequestStartLine) -> None:
    """Have `find_request` know what precedes HTTP/1.1, if nothing but the path depends on it. It has no secrets."""
    if start_line.method in ("GET", "POST") and b"?" not in line and len(line) <= MAX_CACHED_FIELD_BYTES:
        keep(_lines, line, start_line, CACHED_LINES)


def find_request(data: bytes) -> tuple[httputil.RequestStartLine, Headers, bytes] | None:
    """Return line, headers and body of data that is one whole request, otherwise None.

    llhttp has accepted the line and the rest of its head before, and neither depends on the other.
    """
    begin = data.find(_VERSION_LINE) + 1
    line = _lines.get(data[:begin])
    if line is None:
        return None
    end = data.find(b"\r\n\r\n", begin)
    headers = find_head(data[begin:end])
    if headers is None or end < 0 or int(headers.sent.get(LENGTH, 0)) != len(data) - end - 4:
        return None
    return line, headers, data[end + 4 :]


_lines: Final[dict[bytes, httputil.RequestStartLine]] = {}
_heads: Final[dict[bytes, Headers]] = {}  # by heads after their lines, without Content-Length and token
_fields: Final[dict[bytes, tuple[bytes, bytes]]] = {}


def keep(cache: dict[K, V], key: K, value: V, most: int) -> None:
    """Add an entry to a cache of at most `most` entries. A full one is emptied first, which costs the least."""
    if len(cache) >= most:
        cache.clear()
    cache[key] = value


def check_headers(headers: Headers, version: str) -> None:
    """Raise BadRequest for headers that readers can interpret differently (RFC 9112, 3.2, 6.1, 6.3)."""
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(http.HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    sent = headers.sent
    host = sent.get(b"host")
    if version == "HTTP/1.1" if host is None else not _HOST.fullmatch(host):  # several would have a comma
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    length = sent.get(LENGTH)
    if length is not None and not _LENGTH.fullmatch(length):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    if b"transfer-encoding" in sent:
        if length is not None or version == "HTTP/1.0":
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
        if headers["Transfer-Encoding"].lower() != "chunked":
            raise BadRequest(http.HTTPStatus.NOT_IMPLEMENTED)
    if b"expect" in sent and headers["Expect"].lower() != "100-continue":
        raise BadRequest(http.HTTPStatus.EXPECTATION_FAILED)


def format_head(code: int, reason: str, values: Iterable[tuple[str, str]]) -> bytes:
    """Return the status line and the headers of a response. Raise ValueError if one of them contains a line break."""
    lines = [f"HTTP/1.1 {code} {reason}", *map(": ".join, values)]
    text = "".join(lines)
    if "\n" in text or "\r" in text:  # counting them in the result costs three times as much
        raise ValueError("a header has a line break in it")
    return "\r\n".join([*lines, "\r\n"]).encode("latin-1")
