"""Bytes into requests: what llhttp reports, checked and limited. Does no I/O."""

import http
import re
from collections.abc import Callable
from typing import Any, Final, Protocol

import httptools
from tornado import httputil

from .headers import Headers
from .syntax import BadRequest, KnownHead, cache_line, check_target, find_request, parse_head, split_fields

MAX_HEAD_BYTES: Final = 32 * 1024  # request line and headers, or whatever else comes between two pieces of a body
_METHOD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}(?= |\Z)")
_FIELD: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")  # RFC 9110, 5.1 and 5.5
PIECE_BYTES: Final = 8 * 1024  # parsed at a time: what is counted and what waits is known to this precision


class RequestSink(Protocol):
    """Receiver of the requests. Its methods can raise `BadRequest`."""

    def request_received(
        self, start_line: httputil.RequestStartLine, headers: Headers, keep_alive: bool, body: bytes | None = None
    ) -> None:
        """Handle request line and headers, and the body of a request that is whole.

        `keep_alive` says whether the client keeps its connection.
        """

    def body_received(self, chunk: bytes) -> None:
        """Handle a piece of the body."""

    def request_complete(self) -> None:
        """Handle the end of the request."""


class RequestParser:
    """Parser of the requests on one connection.

    llhttp checks every byte. The headers are taken from the block that it has checked, because a call for each of them
    costs more than the check, and because blocks repeat.
    """

    __slots__ = (
        "_after_chunked",
        "_begin_at",
        "_chunked",
        "_framing",
        "_idle",
        "_known",
        "_method",
        "_method_cut",
        "_parser",
        "_read",
        "_silent_bytes",
        "_sink",
        "_target",
        "in_head",
        "progressed",
    )

    def __init__(self, sink: RequestSink) -> None:
        self._sink = sink
        self._parser: Any = None  # llhttp's, made when it is needed
        self._framing = b""  # the framing of a declined upgrade, for the parser that replaces llhttp's
        self._silent_bytes = 0  # input since llhttp last reported something
        self._target = b""
        self._read = b""  # input from the beginning of the current piece or head
        self._begin_at = 0  # the offset in it where a request begins, at the earliest
        self._chunked = False
        self._after_chunked = False  # whether the latest request with complete headers has chunks
        self._idle = True  # whether another request can begin
        self._known: Callable[[], KnownHead | None] = lambda: None  # the head of the latest request, if it is known
        self._method_cut = False  # whether the input ends within an unknown method
        self._method = b""  # an unknown one, for which llhttp reads GET
        self.in_head = False  # whether the request line has begun and the headers have not ended
        # Whether request line, headers or body have begun or ended since this was last set to False.
        self.progressed = False

    @property
    def partial_headers(self) -> Headers | None:
        """The headers received so far, or None if no request is incomplete."""
        if not self.in_head:
            return None
        head, end, _ = self._read[self._begin_at :].lstrip(b"\r\n").partition(b"\r\n\r\n")
        _, *lines = head.split(b"\r\n")
        return Headers(split_fields([line for line in (lines if end else lines[:-1]) if _FIELD.fullmatch(line)]))

    def feed(self, piece: bytes) -> int:
        """Parse at most PIECE_BYTES. Return the number of consumed bytes: the caller feeds the rest again.

        Raise BadRequest if the input is not valid HTTP or exceeds a limit, or if the sink refuses the request.
        """
        taken = len(piece)
        if self._idle and (found := find_request(piece, self._known())) is not None:
            self._silent_bytes, self._after_chunked = 0, False
            start_line, headers, body, known = found
            self._known = known.reference
            try:
                self._sink.request_received(start_line, headers, True, body)
            except BadRequest:
                self._read, self._begin_at, self.in_head = piece, 0, True  # a refusal needs the headers
                raise
            return taken
        if self.in_head:
            self._read += piece
        else:
            self._read, self._begin_at = piece, 0
            self._chunked = self._chunked and not self._idle
        given = piece
        try:
            if self._method_cut:
                given = self._replace_method()
            while True:
                parser = self._parser = self._parser or self._make_parser()
                try:
                    parser.feed_data(given)
                    break
                except httptools.HttpParserInvalidMethodError:
                    given = self._replace_method()
        except httptools.HttpParserUpgrade as upgrade:
            taken -= len(given) - upgrade.args[0]
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

    def close(self) -> None:
        """Drop references after the last input, so that the garbage collector is not needed."""
        del self._parser, self._sink

    def _make_parser(self) -> httptools.HttpRequestParser:
        """Return a parser that leaves the check of the version to `check_headers`."""
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_version=True)
        return parser

    def _replace_method(self) -> bytes:
        """Return the current request with GET in place of its unknown method, or nothing while that is incomplete.

        So it passes the same checks as others, and gets the response to a wrong method.
        """
        read = self._read[self._begin_at :].lstrip(b"\r\n")
        method = _METHOD.match(read)
        if method is None or self._after_chunked:  # in the same input, it is not known where the request begins
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
        self._parser = None
        self._method_cut = method.end() == len(read)
        if self._method_cut:
            return b""
        self._method = method[0]
        self._read, self._begin_at = b"GET" + read[method.end() :], 0
        return self._read

    def _decline_upgrade(self) -> None:
        # For llhttp all that follows is another protocol's. Here it is the body, if there is one, and the next
        # request: a parser that has seen a head with the same framing, but no upgrade, takes them for that.
        self._parser = None
        if self._framing:
            self._parser = self._make_parser()
            self._parser.feed_data(self._framing)

    # From llhttp

    def on_message_begin(self) -> None:
        self._silent_bytes = -PIECE_BYTES
        self._target = b""
        self._idle = False
        self.in_head = self.progressed = True

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            raise BadRequest(http.HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_headers_complete(self) -> None:
        """Check everything that determines the framing of the message, after its headers."""
        self._silent_bytes = -PIECE_BYTES
        self.progressed = True
        if self._framing:
            self._framing = b""
            self.in_head = False
            return
        parser, read = self._parser, self._read
        method = parser.get_method()
        line = b"%b %b " % (method, self._target)  # llhttp also accepts several spaces
        at = self._find(line)
        end = read.find(b"\r\n\r\n", at)
        if at < 0 or end < 0:
            raise BadRequest(http.HTTPStatus.BAD_REQUEST)
        target, host = check_target(method, self._target)
        version, headers = parse_head(read[at + len(line) : end])
        self._chunked = self._after_chunked = b"transfer-encoding" in headers.sent
        if host and "Host" in headers:
            headers = headers.with_values({**headers.replaced, b"host": host.decode("latin-1")})
        if parser.should_upgrade():
            for name in ("Content-Length", "Transfer-Encoding"):
                if name in headers:
                    self._framing = f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1")
        start_line = httputil.RequestStartLine((self._method or method).decode(), target, version)
        if version == "HTTP/1.1" and not (self._method or host):
            cache_line(line, start_line)
        self._method = b""
        self._sink.request_received(start_line, headers, parser.should_keep_alive())
        # Not before: a refusal needs the headers.
        self.in_head = False
        self._begin_at = end + 4

    def _find(self, line: bytes) -> int:
        """Return the offset of the current request in the input, or -1 if it does not begin with this line."""
        read, at = self._read, self._begin_at
        if read.startswith(line, at):
            return at
        if self._chunked:  # the last chunk, which is empty, and trailers come first
            return read.find(b"\n" + line, at) + 1 or -1
        while read[at : at + 1] in (b"\r", b"\n"):
            at += 1
        return at if read.startswith(line, at) else -1

    def on_body(self, chunk: bytes) -> None:
        self._silent_bytes = -PIECE_BYTES
        self._begin_at = self._read.find(chunk, self._begin_at) + len(chunk)
        self._sink.body_received(chunk)

    def on_message_complete(self) -> None:
        """Finish a request. The body of a declined upgrade follows."""
        self._silent_bytes = -PIECE_BYTES
        if not self._framing:
            self.progressed, self._idle = True, self._parser.should_keep_alive()
            self._sink.request_complete()
