"""Strict checks of targets, hosts and codings that llhttp accepts. A refusal closes the connection."""

import http
import re
import weakref
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Final, TypeVar

from tornado import httputil

from .headers import AUTHORIZATION, LENGTH, Headers

HTTP_1_1: Final = "HTTP/1.1"
MAX_HEADERS: Final = 128  # each takes much more memory than bytes on the wire; browsers send fifteen, proxies add some
MAX_CACHED_BYTES: Final = 4096  # of a head; a longer one is parsed for each request
CACHED_HEADS: Final = 256  # clients repeat them
CACHED_LINES: Final = 256  # the request lines before them
MAX_CACHED_LINE_BYTES: Final = 256
# Heads with these are not kept for longer than their request. Others could read credentials in the memory of this
# process. With the rest, more than their Content-Length says what follows. (llhttp reads Proxy-Connection as well.)
_CREDENTIALS: Final = (b"proxy-authorization", b"cookie")
NOT_KEPT: Final = (*_CREDENTIALS, b"transfer-encoding", b"expect", b"upgrade", b"proxy-connection")
KEPT_ALIVE: Final = b"keep-alive"
_VERSION: Final = re.compile(rb"HTTP/[0-9]\.[0-9]")
_LATER_VERSION: Final = re.compile(r"HTTP/1\.[2-9]")  # has the syntax of 1.1 (RFC 9110, 2.5)
_TARGET: Final = re.compile(rb"[!\"$-~\x80-\xff]+")  # a fragment stays with the client
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)
_HOST: Final = re.compile(rb"(?:([A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,20}")  # larger than any body; Python refuses to parse thousands of digits
_BEARER: Final = re.compile(rb"Bearer [A-Za-z0-9._~+/=-]+")
# The values that differ between requests which share everything else: what precedes them, and their names.
_VARYING: Final = ((b"\r\nContent-Length: ", LENGTH), (b"\r\nAuthorization: ", AUTHORIZATION))
_CHECKS: Final[dict[bytes, tuple[int, Callable[[bytes], object]]]] = {
    LENGTH: (20, bytes.isdigit),
    AUTHORIZATION: (MAX_CACHED_BYTES, _BEARER.fullmatch),
}
_VERSION_LINE: Final = b" HTTP/1.1\r\n"
_HEAD_END: Final = b"\r\n\r\n"

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


def split_fields(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return names in lower case and values of header lines."""
    return [(name.lower(), value.strip(b" \t")) for name, _, value in map(bytes.partition, lines, repeat(b":"))]


def parse_head(head: bytes) -> tuple[str, Headers]:
    """Parse what follows the target of a request up to the empty line, which llhttp has accepted.

    Return the version, such as `HTTP/1.1`, and the headers, which repeated heads share. Raise BadRequest with the
    fitting status if there are too many headers, or one is ambiguous.
    """
    varying = _find_varying(head)
    key = _cache_key(head, varying)
    if (known := _heads.get(key)) is not None and (found := known.match(head + _HEAD_END, 0)) is not None:
        return HTTP_1_1, found[0]
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS:
        raise BadRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
    # Space and tab precede all characters of names.
    folded = min(lines, default=b"!") < b"!" or head.count(b"\n") > len(lines)
    if folded or not _VERSION.fullmatch(first):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)  # such as RTSP
    version, headers = _LATER_VERSION.sub(HTTP_1_1, first.decode()), Headers(split_fields(lines))
    check_headers(headers, version)
    if len(head) <= MAX_CACHED_BYTES and first.decode() == HTTP_1_1:
        cache_head(key, head, headers, varying)
    return version, headers


class KnownHead:
    """A head that llhttp has accepted, and all that differ from it only in Content-Length and token."""

    __slots__ = ("__weakref__", "_end", "_values", "headers", "reference")

    def __init__(self, head: bytes, headers: Headers, varying: "Varying") -> None:
        self.headers = headers  # without the token
        self.reference = weakref.ref(self)  # for connections, which keep no head that the cache has dropped
        # For each value: what precedes it, its name, its maximum length and the check of its syntax.
        self._values: list[tuple[bytes, bytes, int, Callable[[bytes], object]]] = []
        at = 0
        for begin, end, name in varying:
            self._values.append((head[at:begin], name, *_CHECKS[name]))
            at = end
        self._end = head[at:] + _HEAD_END

    def match(self, data: bytes, at: int) -> tuple[Headers, int] | None:
        """Return the headers of such a head that begins there, and where its body begins, or None for another head."""
        values = self.headers.replaced.copy()
        for before, name, most, valid in self._values:
            begin = at + len(before)
            precedes = data[at:begin] == before
            at = data.find(b"\r", begin, begin + most + 1)  # a longer value is not valid with what follows it
            value = data[begin:at]
            if not (precedes and valid(value)):
                return None
            values[name] = value.decode()
        end = at + len(self._end)
        if data[at:end] != self._end:
            return None
        return self.headers.with_values(values) if self._values else self.headers, end


def cache_head(key: bytes, head: bytes, headers: Headers, varying: "Varying") -> None:
    """Have `find_request` know a head, if its connection stays open and only its Content-Length says what follows."""
    sent = headers.sent
    if not sent.keys().isdisjoint(NOT_KEPT) or sent.get(b"connection", KEPT_ALIVE).lower() != KEPT_ALIVE:
        return
    if not all(_CHECKS[name][1](head[begin:end]) for begin, end, name in varying):
        return
    # `find_request` reads the length there. With a name in lower case, the length is a part of the head.
    values = {LENGTH: sent[LENGTH].decode()} if LENGTH in sent else {}
    kept = headers.with_values(values) if values or AUTHORIZATION in sent else headers
    if AUTHORIZATION in sent:
        if headers.has_several(AUTHORIZATION) or AUTHORIZATION not in (name for _, _, name in varying):
            return
        kept.sent = sent | {AUTHORIZATION: b""}
    add_to_cache(_heads, key, KnownHead(head, kept, varying), CACHED_HEADS)


Varying = list[tuple[int, int, bytes]]
"""Where the values of a head are that differ between requests: begin, end and name of each."""


def _find_varying(head: bytes) -> Varying:
    varying = []
    for before, name in _VARYING:
        begin = head.find(before)
        if begin >= 0:
            begin += len(before)
            end = head.find(b"\r", begin)
            varying.append((begin, len(head) if end < 0 else end, name))
    varying.sort()
    return varying


def _cache_key(head: bytes, varying: Varying) -> bytes:
    """Return the key of a head in `_heads`: the head without the values of Content-Length and Authorization."""
    for begin, end, _ in reversed(varying):
        head = head[:begin] + head[end:]
    return head


def cache_line(line: bytes, start_line: httputil.RequestStartLine) -> None:
    """Have `find_request` know what precedes HTTP/1.1, if nothing but the path depends on it. It has no secrets."""
    if start_line.method in ("GET", "POST") and b"?" not in line and len(line) <= MAX_CACHED_LINE_BYTES:
        add_to_cache(_lines, line, start_line, CACHED_LINES)


def find_request(
    data: bytes, latest: KnownHead | None
) -> tuple[httputil.RequestStartLine, Headers, bytes, KnownHead] | None:
    """Return line, headers and body of data that is one whole request, and its known head, otherwise None.

    `latest` is the known head of the request before it, which most often matches. llhttp has accepted the line and the
    rest of the head before, and neither depends on the other.
    """
    begin = data.find(_VERSION_LINE) + 1
    line = _lines.get(data[:begin])
    if line is None:
        return None
    found = None if latest is None else latest.match(data, begin)
    if found is None:
        head = data[begin : data.find(_HEAD_END, begin)]
        latest = _heads.get(_cache_key(head, _find_varying(head)))
        found = None if latest is None else latest.match(data, begin)
    if found is None or latest is None:
        return None
    headers, end = found
    if int(headers.replaced.get(LENGTH, 0)) != len(data) - end:
        return None
    return line, headers, data[end:], latest


_lines: Final[dict[bytes, httputil.RequestStartLine]] = {}
_heads: Final[dict[bytes, KnownHead]] = {}  # by heads after their lines, without Content-Length and token


def add_to_cache(cache: dict[K, V], key: K, value: V, most: int) -> None:
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
