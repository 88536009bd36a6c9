"""Strict checks of targets, hosts and codings that llhttp accepts. A refusal closes the connection."""

import http
import re
from collections.abc import Iterable
from typing import Final

from .headers import Headers

_TARGET: Final = re.compile(rb"[!-~\x80-\xff]+")
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)", re.IGNORECASE)
_HOST: Final = re.compile(rb"(?:([A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})*|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,20}")  # larger than any body; Python refuses to parse thousands of digits
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}" for status in http.HTTPStatus}


class BadRequest(Exception):
    """A request that is not understood, or not wanted, before any handler sees it: the HTTP status to answer with."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def check_target(method: bytes, target: bytes, headers: Headers) -> str:
    """Return path and query of a request (RFC 9112, 3.2). A host in the target replaces that of the header.

    Raises:
        BadRequest: the target has another form.
    """
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is not None:
            target = target[absolute.end() :]
            if not target.startswith(b"/"):
                target = b"/" + target
            if len(headers.get_list("Host")) == 1:
                headers.sent[b"host"] = absolute[1]
        elif target != b"*" or method != b"OPTIONS":
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    if not _TARGET.fullmatch(target):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    return target.decode("latin-1")


def check_headers(headers: Headers, version: str) -> None:
    """Refuse headers that the grammar allows but readers can interpret differently (RFC 9112, 3.2, 6.1, 6.3).

    Raises:
        BadRequest: a header is ambiguous. It has the fitting status.
    """
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise BadRequest(http.HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    sent = headers.sent
    host = sent.get(b"host")
    if version == "HTTP/1.1" if host is None else not _HOST.fullmatch(host.strip()):  # several would have a comma
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    length = sent.get(b"content-length")
    if length is not None and not _LENGTH.fullmatch(length.strip()):
        raise BadRequest(http.HTTPStatus.BAD_REQUEST)
    if b"transfer-encoding" in sent:
        if length is not None or version == "HTTP/1.0":
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
        if headers["Transfer-Encoding"].lower() != "chunked":
            raise BadRequest(http.HTTPStatus.NOT_IMPLEMENTED)
    if b"expect" in sent and headers["Expect"].lower() != "100-continue":
        raise BadRequest(http.HTTPStatus.EXPECTATION_FAILED)


def format_head(code: int, reason: str, values: Iterable[tuple[str, str]]) -> bytes:
    """Return the status line and the headers of a response.

    Raises:
        ValueError: one of them contains a line break.
    """
    lines = [_STATUS_LINES.get(code) or f"HTTP/1.1 {code} {reason}", *map(": ".join, values)]
    head = "\r\n".join(lines)
    if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1:
        raise ValueError("a header has a line break in it")
    return head.encode("latin-1") + b"\r\n\r\n"
