"""One client's connection: bytes in and out, the parser, the order of pipelined requests, and patience."""

import asyncio
import http
from typing import TYPE_CHECKING, Final, cast

import httptools
from tornado import httputil
from tornado.iostream import StreamClosedError

from .exchange import Exchange
from .syntax import Refused, check_headers, check_target, format_head

if TYPE_CHECKING:
    from .listener import Server

MAX_HEAD_BYTES: Final = 32 * 1024  # request line and headers
IDLE_S: Final = 75.0  # between two requests
HEAD_S: Final = 15.0  # for request line and headers, from their first byte
BODY_S: Final = 60.0  # for the body, from its headers
STALLED_S: Final = 30.0  # for a client to read anything at all of what waits for it
LINGER_S: Final = 2.0  # for a refused client to stop sending; closing at once could destroy what it was told
HIGH_WATER_BYTES: Final = 64 * 1024


class Connection(asyncio.Protocol):
    """One client's connection.

    Attributes:
        server: whose connection it is.
        remote_ip: the other end's address; empty on a Unix socket.
        deadline_s: when, by the loop's clock, its patience with the client ends; 0 while it waits for a handler.
    """

    # One for each connection, and most of them are idle: no dictionaries, no lists that are mostly empty.
    __slots__ = (
        "_closing",
        "_drained",
        "_exchanges",
        "_fields",
        "_head_bytes",
        "_parser",
        "_refused",
        "_target",
        "_transport",
        "deadline_s",
        "remote_ip",
        "server",
    )

    _transport: asyncio.Transport

    def __init__(self, server: "Server") -> None:
        self.server = server
        self.remote_ip = ""
        self.deadline_s = 0.0
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._fields: list[tuple[str, str]] | None = None  # while request line and headers arrive
        self._head_bytes = 0
        # Those that are not finished: the first has its turn, the last may still be arriving.
        self._exchanges: list[Exchange] | None = None
        self._drained: asyncio.Future[None] | None = None  # while the client reads too slowly
        self._refused = 0  # the status for what cannot be understood, to be sent behind the answers that are due
        self._closing = False

    @property
    def protocol(self) -> str:
        """`http` or `https`."""
        return self.server.protocol

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""
        return self._exchanges is None and self._fields is None

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.remote_ip = peer[0]
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self._wait_at_most(IDLE_S)
        self.server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, by whoever's doing."""
        self._closing = True
        self.server.connection_lost(self)
        if self._drained is not None:
            self._drained.set_exception(StreamClosedError())
            self._drained.exception()  # nobody need wait for it
        exchanges, self._exchanges = self._exchanges, None
        for exchange in exchanges or ():
            exchange.client_gone()

    def eof_received(self) -> bool:
        """The client has sent all it will; what it asked for is still answered."""
        if self._exchanges is None or self._closing or self.server.protocol == "https":
            return False
        for exchange in self._exchanges:
            exchange.keep_alive = False
            exchange.client_gone()
        self._wait_at_most(STALLED_S)
        return True

    def pause_writing(self) -> None:
        """The client reads too slowly."""
        self._drained = self.server.loop.create_future()
        self._wait_at_most(STALLED_S)

    def resume_writing(self) -> None:
        """The client has caught up."""
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        self.deadline_s = 0.0
        if self._exchanges is None:
            self._wait_at_most(IDLE_S)

    def data_received(self, data: bytes) -> None:
        """Bytes of requests, split anywhere."""
        if self._closing or self._refused:
            return  # read, so that the answer is not lost with the connection, and forgotten
        try:
            self._feed(data)
        except Refused as refused:
            self._refuse(refused.status)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, Refused):
                self.abort()
                raise
            self._refuse(error.__context__.status)
        except httptools.HttpParserError:
            self._refuse(http.HTTPStatus.BAD_REQUEST)

    def _feed(self, data: bytes) -> None:
        while True:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                # Another protocol is offered, and politely ignored: what follows is the next request.
                data = data[upgrade.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
            else:
                break
        if self._fields is not None:
            if not self._head_bytes:
                self._wait_at_most(HEAD_S)
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    # From llhttp

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._target = b""
        self._fields = []
        self._head_bytes = 0

    def on_url(self, part: bytes) -> None:
        """The request target, or a piece of it."""
        self._target += part
        if len(self._target) > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_URI_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or, behind a chunked body, a trailer: those are dropped."""
        fields = self._fields
        if fields is None:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise Refused(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        fields.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Request line and headers have come: everything that says how the message goes on is checked."""
        headers = self._headers()
        version = "HTTP/" + self._parser.get_http_version()
        target = check_target(self._target)
        check_headers(headers, version)
        start_line = httputil.RequestStartLine(self._parser.get_method().decode("latin-1"), target, version)
        exchange = Exchange(self, start_line, headers)
        exchange.keep_alive = self._parser.should_keep_alive()
        self._fields = None
        self._wait_at_most(BODY_S)
        if self._exchanges is None:
            self._exchanges = [exchange]
            exchange.begin()
        else:
            self._exchanges.append(exchange)
            self._transport.pause_reading()

    def on_body(self, chunk: bytes) -> None:
        """A piece of a body."""
        if self._exchanges:
            self._exchanges[-1].data_received(chunk)

    def on_message_complete(self) -> None:
        """The request has come whole."""
        self.deadline_s = 0.0
        if self._exchanges:
            self._exchanges[-1].message_complete()

    # From the exchanges

    def send(self, data: bytes) -> "asyncio.Future[None]":
        """Send bytes.

        Returns:
            A future that is done when more may be sent; it fails with StreamClosedError if the client is gone.
        """
        if self._closing or self._transport.is_closing():
            closed: asyncio.Future[None] = self.server.loop.create_future()
            closed.set_exception(StreamClosedError())
            closed.exception()  # nobody need wait for it
            return closed
        if data:
            self._transport.write(data)
        return self._drained or self.server.done

    def exchange_finished(self, exchange: Exchange) -> None:
        """The response of the current exchange is complete: the next one's turn, or idleness, or the end."""
        if self._exchanges is None:
            return
        if not exchange.keep_alive:
            self._end(linger=not exchange.complete)
            return
        del self._exchanges[0]
        if self._exchanges:
            self._exchanges[0].begin()
        elif self._refused:
            self._refuse(self._refused)
        else:
            self._exchanges = None
            self._transport.resume_reading()
            self._wait_at_most(IDLE_S)

    # From the server

    def patience_ended(self) -> None:
        """The deadline has passed."""
        if self.idle or self._closing or self._drained is not None:
            self.abort()
        else:
            self._refuse(http.HTTPStatus.REQUEST_TIMEOUT)

    def close(self) -> None:
        """Close after what has been sent."""
        self._end(linger=False)

    def abort(self) -> None:
        """End it at once."""
        self._closing = True
        self._transport.abort()

    def _headers(self) -> httputil.HTTPHeaders:
        """The headers that have arrived of the current request."""
        fields = self._fields or ()
        headers = httputil.HTTPHeaders()
        for name, value in fields:
            headers[name] = value
        if len(headers) < len(fields):  # some came more than once, which is rare
            headers = httputil.HTTPHeaders()
            for name, value in fields:
                headers.add(name, value)
        return headers

    def _wait_at_most(self, seconds: float) -> None:
        self.deadline_s = self.server.loop.time() + seconds

    def _refuse(self, status: int) -> None:
        """Answer what cannot be understood, behind the answers to what came before it, and end the connection."""
        exchanges = self._exchanges
        if exchanges and not exchanges[-1].complete:
            arriving = exchanges.pop()
            arriving.client_gone()
            if arriving.started:
                self._end(linger=True)
                return
        if exchanges:
            self._refused = status
            return
        headers, body = self.server.refusal(status, self._headers())
        headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        self.send(format_head(status, "", list(headers.get_all())) + body)
        self._end(linger=True)

    def _end(self, *, linger: bool) -> None:
        if self._closing:
            return
        self._closing = True
        if linger and self._transport.can_write_eof():
            self._transport.write_eof()
            self._transport.resume_reading()
            self._wait_at_most(LINGER_S)
        else:
            self._transport.close()
