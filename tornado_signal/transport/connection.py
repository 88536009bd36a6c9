"""One client's connection: bytes in and out, the order of pipelined requests, and deadlines."""

import asyncio
import contextlib
import http
import select
from collections.abc import Awaitable
from typing import Any, Final, cast

from tornado import httputil
from tornado.iostream import StreamClosedError
from tornado.log import app_log

from .headers import Headers
from .pacing import HIGH_WATER_BYTES, PacedTransport, is_full
from .parser import PIECE_BYTES, RequestParser
from .state import Admission, MakeProtocol, ServerState
from .stream import BodyTooLarge, HTTPStream
from .syntax import BadRequest, format_head

IDLE_S: Final = 75.0  # a new connection may send nothing for this time
HEAD_S: Final = 15.0  # time for request line and headers, from their first byte
BODY_S: Final = 60.0  # time for the body, from its headers, unless a handler sets another one
STALLED_S: Final = 30.0  # a client that reads nothing of what waits for it is closed after this time
LINGER_S: Final = 2.0  # input after the last response is discarded for this time: closing at once could lose it
REJECT_S: Final = 0.8  # a refused connection waits this long for its first request, to respond to it


class Connection(asyncio.Protocol):
    """One client's connection, counted by `admission`, or not counted yet if that is None.

    `remote_ip` is empty on a Unix socket, and `client_address` is what a proxy forwards, if there is one. `deadline_s`
    is the client's limit by the loop's clock, or 0 while it waits for a handler. `delegate_work` is that of the first
    request, which holds back the rest of it.
    """

    # One for each connection, and most of them are idle: no dictionaries.
    __slots__ = (
        "_admission",
        "_closing",
        "_drained",
        "_ended",
        "_parser",
        "_paused",
        "_reject_status",
        "_streams",
        "_transport",
        "_unsent_bytes",
        "_waiting",
        "_written_bytes",
        "client_address",
        "deadline_s",
        "delegate_work",
        "remote_ip",
        "shown",
        "state",
    )

    _transport: asyncio.Transport

    def __init__(self, state: ServerState, remote_ip: str = "", admission: Admission | None = None) -> None:
        self.state = state
        self.remote_ip = self.client_address = remote_ip
        self.deadline_s = 0.0
        self._parser = RequestParser(self)
        # Those that are not finished: the first has its turn, the last may still be arriving.
        self._streams: tuple[HTTPStream, ...] = ()
        self.delegate_work: asyncio.Future[Any] | None = None
        self._waiting = b""  # what has been read and not been parsed, while a request waits for its turn or is held
        self._paused = False  # whether reading is
        self._drained: asyncio.Future[None] | None = None  # while the client reads too slowly
        self._unsent_bytes = 0  # when the deadline for its reading was set
        self._written_bytes = 0  # since it last read fast enough
        self._admission = admission
        self._reject_status = 0  # the status for what cannot be understood, to be sent behind the answers that are due
        self._ended = False  # whether the client has said that it sends no more
        self._closing = False

    @property
    def protocol(self) -> str:
        return self.state.protocol

    @property
    def idle(self) -> bool:
        return not self._streams and not self._parser.in_head

    @property
    def readable(self) -> bool:
        if self._transport.is_closing():  # it has no socket
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    @property
    def replaceable(self) -> bool:
        """Whether it is served, waits for its client, and no response is under way."""
        under_way = self._streams and self._streams[0].complete and not self._closing
        served = self._admission is not None and not self._admission.reject_status
        return served and self.deadline_s > 0 and not under_way

    # From asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        if self.state.tls is not None:
            self._transport = PacedTransport(self._transport)
        self._transport.set_write_buffer_limits(HIGH_WATER_BYTES)
        self.state.connections.add(self)
        now_s = self.state.loop.time()
        if self._admission is None:  # the event loop has accepted it, not the listener
            peer = transport.get_extra_info("peername")
            self.remote_ip = self.client_address = peer[0] if isinstance(peer, tuple) else ""
            self._admission = self.state.admit(self.remote_ip, now_s)
        self.deadline_s = now_s + IDLE_S
        if self._admission is None:
            self.abort()
        elif self._admission.reject_status:
            self.state.loop.call_later(REJECT_S, self.abort)
        else:
            self.state.idle[self] = now_s + HEAD_S
        if self.state.stopping:
            self.close()

    def handshake_failed(self) -> None:
        """Release everything, unless the connection was made, and its end is or will be reported."""
        if not hasattr(self, "_transport"):
            self._release()

    def _release(self) -> None:
        if self._admission is not None:
            self._admission.release()
        self._parser.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._waiting = b""
        self.state.remove(self)
        self._release()
        # Do not keep the failed future: the traceback of its exception refers to the request and its response.
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            fail(drained)
        streams, self._streams = self._streams, ()
        for stream in streams:
            stream.client_gone()

    def eof_received(self) -> bool:
        """Keep the connection open for pending responses after the client's end of input."""
        self._ended = True
        if not self._streams or self._closing or self.protocol == "https":
            return False
        if not self._streams[-1].complete:
            self._reject(http.HTTPStatus.BAD_REQUEST)
        for stream in self._streams:
            stream.client_gone()
        return True

    def pause_writing(self) -> None:
        if self._drained is None:
            self._drained = self.state.loop.create_future()
            self._set_deadline()
            self.state.unsent.update(self, self.unsent_bytes)

    def resume_writing(self) -> None:
        if is_full(self._transport):
            return
        self.state.unsent.forget(self)
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)
        if not self._closing:
            self._set_deadline()
            self.state.loop.call_soon(self.data_received)

    def data_received(self, data: bytes = b"") -> None:
        """Start the first stream, unless the client does not read, and parse the buffered and the new input."""
        if self._closing or (data and self._reject_status):
            return  # read, so that the answer is not lost with the connection, and forgotten
        try:
            if self.delegate_work is not None and self.delegate_work.done():
                work, self.delegate_work = self.delegate_work, None
                work.result()
                if self._streams:
                    self._streams[0].resume()
                self._set_deadline()
            if self._streams and self._drained is None:
                self._streams[0].begin()
            self._parse(data)
        except BadRequest as error:
            self._reject(error.status)
        except httputil.HTTPInputError as error:
            if self._streams:  # raised by Tornado or by the first of them, which is not going to be answered
                self._streams = self._streams[:1]
                self._streams[0].complete = False
            too_large = isinstance(error, BodyTooLarge)
            self._reject(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE if too_large else http.HTTPStatus.BAD_REQUEST)
        except Exception:
            app_log.exception("Uncaught exception")
            self.abort()
        except BaseException:
            self.abort()
            raise
        if self._reject_status and not self._streams:
            self._reject(self._reject_status)

    def _parse(self, data: bytes) -> None:
        if self._waiting:
            data = self._waiting + data
            self._buffer(b"")
        size, taken = len(data), 0
        # Not beyond the piece in which a request comes that has to wait for its turn.
        while taken < size and len(self._streams) < 2 and self.delegate_work is None and not self._closing:
            taken += self._parser.feed(data[taken : taken + PIECE_BYTES])
        if taken < size:
            self._buffer(data[taken:])
        if self._parser.progressed and not self._closing:
            self._parser.progressed = False
            self._set_deadline()
        pauses = len(self._streams) > 1 or self._waiting != b""
        if pauses != self._paused and not self._closing and not self._transport.is_closing():
            self._paused = not self._paused
            (self._transport.pause_reading if self._paused else self._transport.resume_reading)()

    def _buffer(self, data: bytes) -> None:
        """Replace the buffered input after an unfinished request. It is empty if none is left.

        If all connections buffer too much, this one is refused with 503: unlike `update`, `record` ends no others. A
        few small requests are always kept, because they cost no more than the connection itself.
        """
        unfinished = self.state.unfinished
        self._waiting = data
        if not data:
            unfinished.forget(self)
            return
        unfinished.record(self, len(data))
        if unfinished.bytes > unfinished.max_bytes and len(data) > PIECE_BYTES:
            unfinished.ended += 1
            self._reject(http.HTTPStatus.SERVICE_UNAVAILABLE)

    @property
    def unfinished_bytes(self) -> int:
        """The buffered input after an unfinished request."""
        return len(self._waiting)

    # From the parser

    def request_received(
        self, start_line: httputil.RequestStartLine, headers: Headers, keep_alive: bool, body: bytes | None = None
    ) -> None:
        if self._admission is not None and self._admission.reject_status:
            raise BadRequest(self._admission.reject_status)
        self.state.idle.pop(self, None)
        stream = HTTPStream(self, start_line, headers, keep_alive, body)
        self._streams += (stream,)
        if self._drained is None:
            if body is not None:
                self.deadline_s = 0.0
            if self._streams[0] is stream:
                stream.begin()

    def body_received(self, chunk: bytes) -> None:
        if self._streams:
            self._streams[-1].data_received(chunk)

    def request_complete(self) -> None:
        if self._streams:
            self._streams[-1].message_complete()

    # From the streams and the server

    def send(self, data: bytes) -> "asyncio.Future[None]":
        if self._closing or self._transport.is_closing():
            return fail(self.state.loop.create_future())
        if data:
            self._written_bytes = len(data) + (self._written_bytes if self._drained is not None else 0)
            self._transport.write(data)
            if self._drained is not None:
                self.state.unsent.update(self, self.unsent_bytes)
        return self._drained or self.state.done

    def wait_for_delegate(self, work: Awaitable[Any]) -> None:
        """Hold back the rest of the current request until its delegate's work is done."""
        self.delegate_work = asyncio.ensure_future(work)
        self.delegate_work.add_done_callback(self._delegate_done)
        self._set_deadline()

    def _delegate_done(self, work: "asyncio.Future[Any]") -> None:
        if self.delegate_work is work:
            self.data_received()

    @property
    def unsent_bytes(self) -> int:
        """The bytes in memory for the client. The transport keeps a write until all of it has been taken."""
        return max(self._written_bytes, self._transport.get_write_buffer_size())

    def stream_finished(self, stream: httputil.HTTPConnection) -> None:
        """Start the next stream, become idle or close, because the current response is complete."""
        streams = self._streams
        if not streams or streams[0] is not stream or self._closing:
            return
        first, rest = streams[0], streams[1:]
        more = rest or self._waiting
        if not first.keep_alive or ((self._ended or self.state.closing_idle) and not more):
            # Input after the last request may still arrive.
            self._end(linger=not first.complete or self._transport.can_write_eof())
            return
        self._streams = rest
        self.delegate_work = None
        if more or self._reject_status:
            self.state.loop.call_soon(self.data_received)
        else:
            self.state.idle[self] = 0.0  # replaceable at once
        self._set_deadline()

    def hand_over(self, head: bytes, make: MakeProtocol) -> bool:
        early = len(self._streams) > 1 or self._waiting or self._reject_status or self._parser.in_head
        if self._closing or self._ended or self._transport.is_closing() or early:
            if not self._closing and early:  # what was sent before the answer was taken for requests
                self.state.cut_off["data before the response to a handshake"] += 1
            self.abort()
            return False
        self._transport.write(head)
        self._closing = True
        self._streams = ()
        self._parser.close()
        self.state.connections.discard(self)
        self.state.unsent.forget(self)
        assert self._admission is not None
        protocol = make(self.state, self.remote_ip, self._admission)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return True

    def deadline_passed(self) -> None:
        waits = self._closing or self._drained is not None
        if waits and self._transport.get_write_buffer_size() < self._unsent_bytes:
            self._wait_for_reader(STALLED_S)
        elif waits or self.idle:
            if not self._closing and self._drained is not None:
                self.state.cut_off["responses are not read"] += 1
            self.abort()
        else:
            self._reject(http.HTTPStatus.REQUEST_TIMEOUT)

    def close(self) -> None:
        self._end(linger=False)

    def abort(self) -> None:
        self._closing = True
        self.deadline_s = 0.0
        self._written_bytes = 0
        self._transport.abort()

    def _set_deadline(self) -> None:
        """Set the deadline of the next input or read by the client, or none while it waits for a handler.

        Reading pauses during a second request until the first one is answered. So its head or body has no deadline.
        """
        streams, in_head = self._streams, self._parser.in_head
        if self._drained is not None:
            self._wait_for_reader(STALLED_S)
        elif self.delegate_work is not None or (
            streams and ((streams[-1].complete and not in_head) or len(streams) > 1 or self._reject_status)
        ):
            self.deadline_s = 0.0
        else:
            body_s = streams and (streams[-1].body_timeout_s or BODY_S)
            seconds = HEAD_S if in_head else body_s or self.state.keep_alive_s
            self.deadline_s = self.state.loop.time() + seconds

    def _wait_for_reader(self, seconds: float) -> None:
        self._unsent_bytes = self._transport.get_write_buffer_size()
        self.deadline_s = self.state.loop.time() + seconds

    def _reject(self, status: int) -> None:
        """Respond with an error after the responses to earlier requests, and close the connection."""
        streams, headers_so_far = self._streams, self._parser.partial_headers
        if streams and not streams[-1].complete:
            incomplete = streams[-1]
            streams = self._streams = streams[:-1]
            incomplete.client_gone()
            if incomplete.started:
                self._end(linger=True)
                return
            headers_so_far = incomplete.headers
        if streams:
            self._reject_status = status
            self._buffer(b"")
            self.deadline_s = 0.0
            return
        headers, body = self.state.error_responder(status, cast(httputil.HTTPHeaders, headers_so_far or Headers([])))
        headers["Content-Length"] = str(len(body))
        headers["Connection"] = "close"
        self.send(format_head(status, http.HTTPStatus(status).phrase, list(headers.get_all())) + body)
        self._end(linger=True)

    def _end(self, *, linger: bool) -> None:
        if self._closing:
            return
        self._closing = True
        if not linger or self._ended or self._transport.is_closing():
            self._wait_for_reader(STALLED_S)
            self._transport.close()
            return
        self._wait_for_reader(STALLED_S if self._transport.get_write_buffer_size() else LINGER_S)
        if self._transport.can_write_eof():
            with contextlib.suppress(OSError):  # the client has disconnected; the next read reports it
                self._transport.write_eof()
        self._transport.resume_reading()


def fail(sent: "asyncio.Future[None]") -> "asyncio.Future[None]":
    """Make a future fail because the client has disconnected, also if it is never awaited."""
    sent.set_exception(StreamClosedError())
    sent.exception()
    return sent
