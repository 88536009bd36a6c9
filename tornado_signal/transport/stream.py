"""One request and its response, between a connection and Tornado's handlers."""

import asyncio
import http
from collections.abc import Callable
from typing import Final

from tornado import httputil
from tornado.iostream import StreamClosedError
from tornado.log import app_log

from .headers import Headers
from .state import MakeProtocol, StreamConnection
from .syntax import format_head

NO_HEADERS = Headers([])
SWITCHING_PROTOCOLS: Final = 101
MAX_BODY_BYTES: Final = 100 << 20  # as of Tornado's HTTPServer


class BodyTooLarge(httputil.HTTPInputError):
    """The body of a request exceeds the limit of its stream."""


class HTTPStream(httputil.HTTPConnection):
    """One request and its response."""

    body_timeout_s = 0.0  # 0 for the usual one
    _max_body_bytes = MAX_BODY_BYTES
    _body_bytes = 0  # received so far
    _continued = False  # whether the client need not be asked to send the body
    _gone = False
    _chunked = False
    _switching = False  # whether a 101 has been written, and not been sent
    _unwritten_bytes: int | None = None  # of the length that was announced
    _delegate: httputil.HTTPMessageDelegate | None = None
    _close_callback: Callable[[], None] | None = None

    def __init__(
        self,
        connection: StreamConnection,
        start_line: httputil.RequestStartLine,
        headers: Headers,
        keep_alive: bool,
        body: bytes | None = None,
    ) -> None:
        self.context = connection  # the connection. Tornado's handlers read its `remote_ip` and `protocol`
        self.start_line = start_line
        self.headers = headers
        self.keep_alive = keep_alive
        self.started = self.finished = self._begun = False  # here, because reading them in the class costs more
        self.complete = body is not None
        self._early = body or b""  # the part of the body that was received before its turn, or while its delegate works

    # The request, from the connection to Tornado

    def begin(self) -> None:
        """Start the stream at its turn, and pass on the input received so far."""
        if self._begun or self.finished:
            return
        self._begun = True
        connection = self.context
        delegate = self._delegate = connection.state.application.start_request(connection, self)
        work = delegate.headers_received(self.start_line, self.headers)  # type: ignore[arg-type]
        if work is not None:
            connection.wait_for_delegate(work)
        self.resume()

    def resume(self) -> None:
        """Pass on the input received so far, if the delegate does no work on earlier input. Can raise BodyTooLarge."""
        if self.context.delegate_work is not None:
            return
        if not self.complete:
            length = self.headers.get("Content-Length")
            if length is not None and int(length) > self._max_body_bytes and self._delegate is not None:
                raise BodyTooLarge
            if not self._continued and b"expect" in self.headers.sent:
                self._continued = True
                if self.start_line.version != "HTTP/1.0":
                    # After what the headers alone may have set off: a final answer makes it unnecessary.
                    self.context.state.loop.call_soon(self._expect)
        if self._early:
            early, self._early = self._early, b""
            self.data_received(early)
        if self.complete:
            self.message_complete()

    def data_received(self, chunk: bytes) -> None:
        if self._delegate is not None and self.context.delegate_work is None:
            self._body_bytes += len(chunk)
            if self._body_bytes > self._max_body_bytes:
                raise BodyTooLarge
            if (work := self._delegate.data_received(chunk)) is not None:
                self.context.wait_for_delegate(work)
        elif not self.finished:
            self._early += chunk

    def message_complete(self) -> None:
        self.complete = True
        if self._delegate is not None and self.context.delegate_work is None:
            delegate, self._delegate = self._delegate, None  # it refers back, and has done its part
            self.headers = NO_HEADERS
            delegate.finish()

    def client_gone(self) -> None:
        """Notify the delegate of an incomplete request, or else the handler, that the client has disconnected."""
        callback, self._close_callback = self._close_callback, None
        delegate, self._delegate = self._delegate, None  # it refers back, and keeps what came of the body
        self._gone = True
        try:
            if delegate is not None:  # the request is not complete, or held
                delegate.on_connection_close()
            elif callback is not None:
                callback()
        except Exception:
            app_log.exception("Uncaught exception")

    def _expect(self) -> None:
        if not self.started and not self.complete:
            self.context.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def set_max_body_size(self, max_body_size: int) -> None:
        """Limit the body of this request to a number of bytes. A larger one is refused with 413."""
        self._max_body_bytes = max_body_size

    def set_body_timeout(self, timeout: float) -> None:
        """Set the seconds for the body of this request, from its headers. Call it before the body is received."""
        self.body_timeout_s = timeout

    # The response, from Tornado to the connection

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Set the function to call if the client disconnects before the response is finished."""
        self._close_callback = callback
        if self._gone and callback is not None:  # later, because Tornado sets it before it initializes a handler
            self.context.state.loop.call_soon(self.client_gone)

    def write_headers(
        self,
        start_line: httputil.RequestStartLine | httputil.ResponseStartLine,
        headers: httputil.HTTPHeaders,
        chunk: bytes | None = None,
    ) -> "asyncio.Future[None]":
        """Send the head, and the first piece of the body. Return a future that is done when more can be sent.

        Without a Content-Length the body is chunked. HTTP/1.0 clients read it until the connection closes. Close the
        connection and raise ValueError if a header contains a line break or the Content-Length is not a number, and
        HTTPOutputError if the piece is longer than it.
        """
        assert isinstance(start_line, httputil.ResponseStartLine)
        code, asked = start_line.code, self.start_line
        values = list(headers.get_all())
        names = dict(values)  # normalized by Tornado
        if code == SWITCHING_PROTOCOLS:
            self.started = self._switching = True  # sent by `upgrade`, or refused by `finish`
            return self.context.state.done
        if "Connection" in names or "Transfer-Encoding" in names:
            # A handler decides neither, except that `Connection: close` makes its response the last one.
            values = [pair for pair in values if pair[0] not in ("Connection", "Transfer-Encoding")]
            if names.get("Connection", "").lower() == "close":
                self.keep_alive = False
        length = names.get("Content-Length")
        if length is not None and not length.isdecimal():
            self.close()
            raise ValueError(f"invalid Content-Length: {length!r}")
        if code in (204, 304) or asked.method == "HEAD":
            self._unwritten_bytes = 0
        elif length is not None:
            self._unwritten_bytes = int(length)
        elif asked.version == "HTTP/1.1":
            self._chunked = True
            values.append(("Transfer-Encoding", "chunked"))
        else:
            self.keep_alive = False
        if option := self._connection_option():
            values.append(("Connection", option))
        self.started = True
        try:
            head = format_head(code, start_line.reason, values)
        except ValueError:
            self.close()  # what a caller writes next must not be taken for a head
            raise
        return self.context.send(head + self._framed(chunk))

    def respond(self, before: bytes, after: bytes, body: bytes) -> "asyncio.Future[None]":
        """Send a whole response, and finish it. The request is complete, not a HEAD, and nothing has been sent.

        `before` precedes the value of Content-Length. `after` follows it, without Connection and the last line break.
        """
        self._close_callback = None
        self.started = self.finished = True
        option = self._connection_option()
        if option:
            after += b"\r\nConnection: " + option.encode()
        sent = self.context.send(b"%b%d%b\r\n\r\n%b" % (before, len(body), after, body))
        self.context.stream_finished(self)
        return sent

    def _connection_option(self) -> str:
        """Return the value of the header Connection, or an empty text for the default of the version."""
        self.keep_alive = self.keep_alive and self.complete and not self.context.state.leaving
        if not self.keep_alive:
            return "close"
        return "keep-alive" if self.start_line.version == "HTTP/1.0" else ""

    def write(self, chunk: bytes) -> "asyncio.Future[None]":
        """Send a piece of the body. Return a future that is done when more can be sent.

        It fails with StreamClosedError if the client has disconnected. Close the connection and raise HTTPOutputError
        if the body is longer than its Content-Length.
        """
        return self.context.send(self._framed(chunk))

    def finish(self) -> None:
        """Finish the response. Close the connection and raise HTTPOutputError if the body is too short."""
        self._close_callback = None
        self._delegate = None
        if self.finished:  # by `close`
            return
        self.finished = True
        if self._switching:
            self._refuse_upgrade()
        if self._unwritten_bytes:
            self.close()
            raise httputil.HTTPOutputError(f"Tried to write {self._unwritten_bytes} bytes less than Content-Length")
        if self._chunked:
            self.context.send(b"0\r\n\r\n")
        self.context.stream_finished(self)

    def detach(self) -> "HTTPStream":
        """Return what can give the connection to another protocol."""
        return self

    def upgrade(self, head: bytes, make: MakeProtocol) -> None:
        """Send the head of a 101, and pass the connection to another protocol. Can raise StreamClosedError."""
        self.finished = True
        self._close_callback = self._delegate = None
        if not self.context.hand_over(head, make):
            raise StreamClosedError

    def _refuse_upgrade(self) -> None:
        """Respond with 501 and raise NotImplementedError: after a 101 the connection would have no owner."""
        phrase, fields = http.HTTPStatus.NOT_IMPLEMENTED.phrase, [("Content-Length", "0"), ("Connection", "close")]
        self.context.send(format_head(http.HTTPStatus.NOT_IMPLEMENTED, phrase, fields))
        self.keep_alive = False
        self.context.stream_finished(self)
        raise NotImplementedError(
            "tornado_signal.transport does not serve tornado.websocket; serve this handler with tornado.httpserver"
        )

    def close(self) -> None:
        """Close the connection before the end of the response, which marks it as incomplete."""
        self.finished = True
        self.context.abort()

    def _framed(self, chunk: bytes | None) -> bytes:
        if not chunk or self.start_line.method == "HEAD":
            return b""
        if self._unwritten_bytes is not None:
            self._unwritten_bytes -= len(chunk)
            if self._unwritten_bytes < 0:
                self.close()
                raise httputil.HTTPOutputError("Tried to write more data than Content-Length")
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunked else chunk
