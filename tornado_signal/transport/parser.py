"""Bytes into requests: what llhttp reports, checked and limited. Does no I/O."""

import http
from typing import Final, Protocol

import httptools
from tornado import httputil

from .headers import Headers
from .syntax import Refused, check_headers, check_target

MAX_HEAD_BYTES: Final = 32 * 1024  # request line and headers, or whatever else comes between two pieces of a body
MAX_HEADERS: Final = 128  # each takes much more in memory than on the wire; browsers send fifteen, proxies add some
PIECE_BYTES: Final = 8 * 1024  # parsed at a time: what is counted and what waits is known to this precision


class RequestSink(Protocol):
    """What is told of each request; it may raise `Refused`."""

    def request_received(self, start_line: httputil.RequestStartLine, headers: Headers, keep_alive: bool) -> None:
        """Request line and headers of a request have come; the client may want to keep its connection."""

    def body_received(self, chunk: bytes) -> None:
        """A piece of its body has come."""

    def request_complete(self) -> None:
        """It has come whole."""


class RequestParser:
    """The requests in what arrives on one connection; a sink is told of them.

    Attributes:
        in_head: whether the request line has begun and the headers have not ended.
        progressed: whether request line, headers or body have begun or ended since this was last set to False.
    """

    __slots__ = (
        "_begin_at",
        "_chunked",
        "_complete",
        "_fields",
        "_framing",
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
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []  # the headers; their names are in lower case
        self._read = b""  # the pieces since a request began, until all its headers have come
        self._begin_at = 0  # where in it the next request line can begin
        self._chunked = False  # whether the end of a chunked body comes before that
        self._complete = False  # whether the latest request is
        # Taken since the parser last reported anything. How much of that piece came behind it is not known.
        self._silent_bytes = 0
        self._framing = b""  # while an upgrade is declined: says where its body ends
        self.in_head = False
        self.progressed = False

    @property
    def partial_headers(self) -> Headers | None:
        """The headers that have come so far, while request line and headers arrive; else None."""
        return Headers(self._fields) if self.in_head else None

    def feed(self, piece: bytes) -> int:
        """Parse.

        Args:
            piece: at most PIECE_BYTES.

        Returns:
            How many bytes of it were taken; the rest has to be fed again.

        Raises:
            Refused: what has come cannot be understood.
        """
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
            raise Refused(http.HTTPStatus.BAD_REQUEST) from None
        if not self.in_head:
            self._read = b""
        self._silent_bytes += taken
        if self._silent_bytes > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return taken

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
        """The request target, or a piece of it."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, which is dropped (RFC 9110, 6.5.1)."""
        if not self.in_head:
            return
        fields = self._fields
        if len(fields) == MAX_HEADERS:
            raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        fields.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Request line and headers have come: everything that says how the message goes on is checked."""
        self._silent_bytes = -PIECE_BYTES
        self.progressed = True
        if self._framing:
            self._framing = b""
            self.in_head = False
            return
        parser, headers = self._parser, Headers(self._fields)
        method = parser.get_method()
        # llhttp also accepts several spaces, and RTSP.
        at = self._find_line(b"%b %b HTTP/" % (method, self._target))
        if at is None:
            raise Refused(http.HTTPStatus.BAD_REQUEST)
        self._begin_at = self._read.find(b"\r\n\r\n", at) + 4
        self._chunked = "Transfer-Encoding" in headers
        target = check_target(method, self._target, headers)
        version = "HTTP/" + parser.get_http_version()
        check_headers(headers, version)
        if parser.should_upgrade():
            for name in ("Content-Length", "Transfer-Encoding"):
                if name in headers:
                    self._framing = f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1")
        line = httputil.RequestStartLine(method.decode("latin-1"), target, version)
        self._sink.request_received(line, headers, parser.should_keep_alive())
        self.in_head = False  # not before: if the request is refused there, it is with its headers

    def _find_line(self, line: bytes) -> int | None:
        """Return where the current request begins; None if it does not begin with this part of its request line."""
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
        """The request has come whole; but a declined upgrade's body is still to come."""
        self._silent_bytes = -PIECE_BYTES
        if not self._framing:
            self.progressed = self._complete = True
            self._sink.request_complete()
