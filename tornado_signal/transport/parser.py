"""Bytes into requests: what llhttp reports, checked and limited. Does no I/O."""

import http
import re
from typing import Final, NamedTuple, Protocol

import httptools
from tornado import httputil

from .headers import Headers
from .syntax import BadRequest, check_headers, check_target

MAX_KNOWN_BYTES: Final = 4096  # a longer header block is not kept: each idle connection keeps two
MAX_HEAD_BYTES: Final = 32 * 1024  # request line and headers, or whatever else comes between two pieces of a body
MAX_HEADERS: Final = 128  # each takes much more memory than bytes on the wire; browsers send fifteen, proxies add some
PIECE_BYTES: Final = 8 * 1024  # parsed at a time: what is counted and what waits is known to this precision


# A request line that is unambiguous, so that it is parsed without llhttp if a known header block follows.
_LINE: Final = re.compile(rb"(GET|POST|HEAD|OPTIONS) (/[A-Za-z0-9/._~%?=&+:-]*) HTTP/1\.1(?=\r\n)")
_LENGTH: Final = re.compile(rb"[0-9]{1,9}(?=\r\n)")
_LENGTH_HEADER: Final = re.compile(rb"\r\ncontent-length: *([0-9]{1,9})(?=\r\n)", re.IGNORECASE)
_SPECIAL: Final = ("Upgrade", "Transfer-Encoding", "Expect", "Trailer")
_METHODS: Final = {name.encode(): name for name in ("GET", "POST", "HEAD", "OPTIONS")}


# Names that browsers send, once for all connections.
_LOWER_CASE: Final = {
    name: lower
    for lower in (
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"cache-control",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"origin",
        b"pragma",
        b"priority",
        b"referer",
        b"sec-ch-ua",
        b"sec-ch-ua-mobile",
        b"sec-ch-ua-platform",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"user-agent",
    )
    for name in (lower, lower.title())
}


class _Block(NamedTuple):
    """A parsed and checked header block. Clients repeat the same one with each request of a connection.

    Attributes:
        before: the bytes after the request line, up to the value of Content-Length.
        behind: the bytes after that value, or empty without it.
        headers: the parsed headers.
    """

    before: bytes
    behind: bytes
    headers: Headers


class RequestSink(Protocol):
    """Receiver of the requests. Its methods can raise `BadRequest`."""

    def request_received(self, start_line: httputil.RequestStartLine, headers: Headers, keep_alive: bool) -> None:
        """Handle request line and headers. `keep` says whether the client keeps its connection."""

    def body_received(self, chunk: bytes) -> None:
        """Handle a piece of the body."""

    def request_complete(self) -> None:
        """Handle the end of the request."""


class RequestParser:
    """Parser of the requests on one connection.

    Attributes:
        in_head: whether the request line has begun and the headers have not ended.
        progressed: whether request line, headers or body have begun or ended since this was last set to False.
    """

    __slots__ = (
        "_begin_at",
        "_block",
        "_body_left",
        "_chunked",
        "_complete",
        "_fields",
        "_framing",
        "_parser",
        "_post_block",
        "_read",
        "_silent_bytes",
        "_sink",
        "_target",
        "in_head",
        "progressed",
    )

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []  # the headers with names in lower case
        self._read = b""  # the pieces of a request until its headers are complete
        self._begin_at = 0  # the offset of the next request line in it
        self._chunked = False  # whether the end of a chunked body precedes it
        self._complete = False  # whether the latest request is complete
        # Bytes consumed since the parser last reported anything, including the whole piece of that report.
        self._silent_bytes = 0
        self._framing = b""  # the framing headers of a declined upgrade
        # The latest header blocks of a POST and of another method, if they can be reused.
        self._block: _Block | None = None
        self._post_block: _Block | None = None
        self._body_left = 0  # bytes of the body of a request whose header block was known
        self.in_head = False
        self.progressed = False

    @property
    def partial_headers(self) -> Headers | None:
        """The headers received so far, or None if no request is incomplete."""
        return Headers(self._fields) if self.in_head else None

    def feed(self, piece: bytes) -> int:
        """Parse.

        Args:
            piece: at most PIECE_BYTES.

        Returns:
            The number of consumed bytes. The caller feeds the rest again.

        Raises:
            BadRequest: the input is not valid HTTP.
        """
        if not self.in_head and (taken := self._feed_known(piece)):
            return taken
        taken = len(piece)
        if self.in_head:
            self._read += piece
        else:
            self._read, self._begin_at = piece, 0
            self._chunked = self._chunked and not self._complete
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            taken = upgrade.args[0]
            self._decline_upgrade()
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            raise BadRequest(http.HTTPStatus.BAD_REQUEST) from None
        if not self.in_head:
            self._read = b""
        self._silent_bytes += taken
        if self._silent_bytes > MAX_HEAD_BYTES:
            raise BadRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return taken

    def _feed_known(self, piece: bytes) -> int:
        """Parse a request with the known header block, or a part of its body. Return the number of consumed bytes."""
        at = 0
        if not self._body_left:
            line = _LINE.match(piece)
            if line is None or not self._complete:
                return 0
            block = self._post_block if line[1] == b"POST" else self._block
            if block is None or not piece.startswith(block.before, line.end()):
                return 0
            at = line.end() + len(block.before)
            headers = block.headers
            if block.behind:
                length = _LENGTH.match(piece, at)
                if length is None or not piece.startswith(block.behind, length.end()):
                    return 0
                at = length.end() + len(block.behind)
                headers = headers.with_length(length[0])
                self._body_left = int(length[0])
            self.in_head = self.progressed = True
            start_line = httputil.RequestStartLine(_METHODS[line[1]], line[2].decode(), "HTTP/1.1")
            self._sink.request_received(start_line, headers, True)
            self._complete = self.in_head = False
        body = piece[at : at + self._body_left]
        self._body_left -= len(body)
        if body:
            self._sink.body_received(body)
        if not self._body_left:
            self.progressed = self._complete = True
            self._sink.request_complete()
        return at + len(body)

    def _learn(self, line: bytes, begin_at: int, headers: Headers) -> None:
        """Keep the header block of a request that has been checked, if it can come again."""
        block = self._reusable(line, begin_at, headers)
        if line.startswith(b"POST "):
            self._post_block = block
        else:
            self._block = block

    def _reusable(self, line: bytes, begin_at: int, headers: Headers) -> _Block | None:
        at = begin_at + len(line)
        if not self._read.startswith(b"1.1\r\n", at) or any(name in headers for name in _SPECIAL):
            return None
        if not self._parser.should_keep_alive():
            return None
        block = self._read[at + 3 : self._begin_at]
        if len(block) > MAX_KNOWN_BYTES:
            return None
        if "Content-Length" not in headers:
            return _Block(block, b"", headers)
        if len(lengths := list(_LENGTH_HEADER.finditer(block))) == 1:
            return _Block(block[: lengths[0].start(1)], block[lengths[0].end(1) :], headers)
        return None

    def close(self) -> None:
        """There is nothing more to parse: nothing here need wait for the garbage collector."""
        del self._parser, self._sink

    def _decline_upgrade(self) -> None:
        # For llhttp all that follows is another protocol's. Here it is the body, if there is one, and the next
        # request: a parser that has seen a head with the same framing, but no upgrade, takes them for that.
        self._parser = httptools.HttpRequestParser(self)
        if self._framing:
            self._parser.feed_data(self._framing)

    # From llhttp

    def on_message_begin(self) -> None:
        self._silent_bytes = -PIECE_BYTES
        self._target = b""
        self._fields = []
        self._complete = False
        self.in_head = self.progressed = True

    def on_url(self, part: bytes) -> None:
        """Store the request target or a piece of it."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            raise BadRequest(http.HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Drop a trailer (RFC 9110, 6.5.1)."""
        if not self.in_head:
            return
        fields = self._fields
        if len(fields) == MAX_HEADERS:
            raise BadRequest(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        fields.append((_LOWER_CASE.get(name) or name.lower(), value))

    def on_headers_complete(self) -> None:
        """Check everything that determines the framing of the message, after its headers."""
        self._silent_bytes = -PIECE_BYTES
        self.progressed = True
        if self._framing:
            self._framing = b""
            self.in_head = False
            return
        parser, headers = self._parser, Headers(self._fields)
        method = parser.get_method()
        # llhttp also accepts several spaces, and RTSP.
        line = b"%b %b HTTP/" % (method, self._target)
        at = self._find_line(line)
        if at is None:
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
        self._begin_at = self._read.find(b"\r\n\r\n", at) + 4
        self._chunked = "Transfer-Encoding" in headers
        target = check_target(method, self._target, headers)
        version = "HTTP/" + parser.get_http_version()
        check_headers(headers, version)
        if parser.should_upgrade():
            for name in ("Content-Length", "Transfer-Encoding"):
                if name in headers:
                    self._framing = f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1")
        self._learn(line, at, headers)
        start_line = httputil.RequestStartLine(method.decode("latin-1"), target, version)
        self._sink.request_received(start_line, headers, parser.should_keep_alive())
        self.in_head = False  # not before: if the request is refused there, it is with its headers
        self._fields = []

    def _find_line(self, line: bytes) -> int | None:
        """Return the offset of the current request, or None if its line does not begin with `part`."""
        read, at = self._read, self._begin_at
        if self._chunked:  # the last chunk, which is empty, and trailers come first
            return read.find(b"\n" + line, at) + 1 or None
        while read[at : at + 1] in (b"\r", b"\n"):
            at += 1
        return at if read.startswith(line, at) else None

    def on_body(self, chunk: bytes) -> None:
        self._silent_bytes = -PIECE_BYTES
        self._begin_at = self._read.find(chunk, self._begin_at) + len(chunk)
        self._sink.body_received(chunk)

    def on_message_complete(self) -> None:
        """Finish a request. The body of a declined upgrade follows."""
        self._silent_bytes = -PIECE_BYTES
        if not self._framing:
            self.progressed = self._complete = True
            self._sink.request_complete()
