"""Bytes into requests: what llhttp reports, checked and limited. Does no I/O."""

import http
from typing import Final, NamedTuple, cast

import httptools
from tornado import httputil

from .headers import Headers, header_name
from .syntax import Refused, check_headers, check_target, plain_line

MAX_HEAD_BYTES: Final = 32 * 1024  # request line and headers, or whatever else comes between two pieces of a body
MAX_HEADERS: Final = 128  # each takes much more in memory than on the wire; browsers send fifteen, proxies add some
PIECE_BYTES: Final = 8 * 1024  # parsed at a time: what is counted and what waits is known to this precision
KNOWN_HEADS: Final = 512  # at most 2 KB each
KNOWN_HEAD_BYTES: Final = 2048
LINE_END: Final = b"\r\n"
HEAD_END: Final = LINE_END * 2


class Head(NamedTuple):
    """What request line and headers say, as they were understood and checked; never changed.

    Attributes:
        start_line: the request line.
        headers: without coding of the body, expectation or upgrade.
        body_bytes: how long the body is.
    """

    start_line: httputil.RequestStartLine
    headers: httputil.HTTPHeaders
    body_bytes: int


_SPECIAL: Final = {"Transfer-Encoding", "Expect"}  # what comes behind such a head is not simply a body

Heads = dict[bytes, Head]
"""By headers that some have sent before, byte for byte: clients repeat themselves, and need not be parsed again."""


class Receiver:
    """What arrives on one connection. Who derives from it is told of each request.

    Attributes:
        arriving: the headers that have come so far, while request line and headers arrive; else None.
        moved: whether something has begun or ended since this was last set to False.
    """

    __slots__ = (
        "_between",
        "_first",
        "_framing",
        "_header_count",
        "_heads",
        "_parser",
        "_piece",
        "_read",
        "_silent_bytes",
        "_target",
        "arriving",
        "moved",
    )

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._piece = b""  # what is being parsed
        self._read = b""  # the pieces since a request began, until all its headers have come
        # Taken since the parser last had something to say; of the piece in which it did, nobody knows how much counts.
        self._silent_bytes = 0
        self._between = True  # whether the parser waits for the first byte of a request
        self._first = False  # whether what is being parsed began with the first byte of the current request
        self._framing = b""  # while an upgrade is declined: says where its body ends
        self._header_count = 0
        self.arriving: Headers | None = None
        self.moved = False

    def feed(self, piece: bytes) -> int:
        """Parse.

        Args:
            piece: at most PIECE_BYTES.

        Returns:
            How many bytes of it were taken; the rest has to be fed again.

        Raises:
            Refused: what has come cannot be understood.
        """
        if self._between and (taken := self._feed_known(piece)):
            return taken
        taken = len(piece)
        self._piece = piece
        self._first = self._between
        if self.arriving is not None:
            self._read += piece
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            taken = upgrade.args[0]
            self._decline_upgrade()
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            raise Refused(http.HTTPStatus.BAD_REQUEST) from None
        self._piece = b""
        if self.arriving is None:
            self._read = b""
        self._silent_bytes += taken
        if self._silent_bytes > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        return taken

    def _feed_known(self, piece: bytes) -> int:
        """Take a whole request whose headers have come before; how many bytes it had, 0 for another one."""
        line_end = piece.find(LINE_END)
        body_at = piece.find(HEAD_END, line_end) + 4
        known = self._heads.get(piece[line_end:body_at])
        if known is None or line_end > KNOWN_HEAD_BYTES or len(piece) < body_at + known.body_bytes:
            return 0
        line = plain_line(piece[:line_end])
        if line is None:
            return 0
        end = body_at + known.body_bytes
        self._silent_bytes = 0
        self.moved = True
        self.request_received(Head(line, known.headers, known.body_bytes), True, piece[body_at:end])
        return end

    def _remember(self, head: Head) -> None:
        # Only what ends where it seems to: as many lines as llhttp has seen. And only behind a plain line: others say
        # themselves what the headers mean, such as which host it is, or whether there has to be one.
        line_end = self._piece.find(LINE_END)
        sent = self._piece[line_end : self._piece.find(HEAD_END) + 4]
        lines = len(head.headers) + 2
        if line_end > KNOWN_HEAD_BYTES or plain_line(self._piece[:line_end]) is None:
            return
        if len(sent) > KNOWN_HEAD_BYTES or sent.count(LINE_END) != lines or sent.count(b"\n") != lines:
            return
        if head.headers.keys() & _SPECIAL:
            return
        if len(self._heads) == KNOWN_HEADS:
            self._heads.clear()
        self._heads[sent] = head

    def forget(self) -> None:
        """There will be nothing more to parse: parser and receiver need not wait for the garbage collector."""
        del self._parser

    def _decline_upgrade(self) -> None:
        # For llhttp all that follows is another protocol's. For us it is the body, if there is one, and the next
        # request: a parser that has seen a head with the same framing, but no upgrade, takes them for that.
        self._parser = httptools.HttpRequestParser(self)
        if self._framing:
            self._parser.feed_data(self._framing)

    # From llhttp

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._silent_bytes = -PIECE_BYTES
        self.moved = True
        self._between = False
        self._target = b""
        self._read = self._piece
        self._header_count = 0
        self.arriving = Headers()

    def on_url(self, part: bytes) -> None:
        """The request target, or a piece of it."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; or a trailer, which is taken and dropped (RFC 9110, 6.5.1: nothing here knows a use for one)."""
        headers = self.arriving
        if headers is None:
            return
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        headers.add(header_name(name), value.strip().decode("latin-1"))  # llhttp leaves blanks behind it

    def on_headers_complete(self) -> None:
        """Request line and headers have come: everything that says how the message goes on is checked."""
        self._silent_bytes = -PIECE_BYTES
        self.moved = True
        if self._framing:
            self._framing = b""
            self.arriving = None
            return
        headers = cast(httputil.HTTPHeaders, self.arriving)
        parser = self._parser
        method = parser.get_method()
        beginning = b"%b %b HTTP/" % (method, self._target)
        if beginning not in self._read:
            raise Refused(http.HTTPStatus.BAD_REQUEST)  # llhttp takes more spaces, and RTSP
        start_line = httputil.RequestStartLine(
            method.decode("latin-1"),
            check_target(method, self._target, headers),
            "HTTP/" + parser.get_http_version(),
        )
        check_headers(headers, start_line.version)
        upgrade = parser.should_upgrade()
        if upgrade:
            for name in ("Content-Length", "Transfer-Encoding"):
                if name in headers:
                    self._framing = f"POST / HTTP/1.1\r\n{name}: {headers[name]}\r\n\r\n".encode("latin-1")
        self.arriving = None
        keep_alive = parser.should_keep_alive()
        head = Head(start_line, headers, int(headers.get("Content-Length", "0")))
        if self._first and keep_alive and not upgrade and self._piece.startswith(beginning):
            self._remember(head)
        self._first = False
        self.request_received(head, keep_alive)

    def on_body(self, chunk: bytes) -> None:
        """A piece of a body."""
        self._silent_bytes = -PIECE_BYTES
        self.body_received(chunk)

    def on_message_complete(self) -> None:
        """The request has come whole; but a declined upgrade's body is still to come."""
        self._silent_bytes = -PIECE_BYTES
        if not self._framing:
            self._between = self.moved = True
            self.request_complete()

    # To who derives from it

    def request_received(self, head: Head, keep_alive: bool, body: bytes | None = None) -> None:
        """Request line and headers of a request have come; if a body is given (it may be empty), then all of it."""
        raise NotImplementedError

    def body_received(self, chunk: bytes) -> None:
        """A piece of its body has come."""
        raise NotImplementedError

    def request_complete(self) -> None:
        """It has come whole."""
        raise NotImplementedError
