"""Transports in separate threads, and clients that send arbitrary bytes over real sockets."""

import asyncio
import contextlib
import json
import logging
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import pytest
import uvloop
from tornado import web
from tornado.netutil import bind_sockets

from tornado_signal.http.error_responses import make_error_responder
from tornado_signal.service.request_log import RequestLog
from tornado_signal.settings.settings import LiveSettings, Settings
from tornado_signal.transport import connection, listener

from .service import TRANSPORTS

LOG = RequestLog(LiveSettings(Settings()))
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
on_both_loops = pytest.mark.parametrize("loop", LOOPS)
PATIENCE_S = 30.0  # the clients' timeout, which only an error exceeds


class Echo(web.RequestHandler):
    """A handler that responds with the request as the transport has parsed it."""

    def answer(self) -> None:
        request = self.request
        self.set_header("X-Method", request.method)
        seen = [request.method, request.uri, request.version, sorted(request.headers.get_all())]
        self.finish({"request": seen, "body": request.body.decode("latin-1")})

    get = head = post = delete = patch = put = options = answer


def echo_application(*routes: object) -> web.Application:
    return web.Application(list(routes), default_handler_class=Echo, log_function=lambda handler: None)


class Chopped(connection.Connection):
    """A connection that receives its data in pieces. The last size applies to all further pieces of a read."""

    sizes = ()

    def data_received(self, data: bytes = b"") -> None:
        sizes = list(self.sizes)
        if not data:
            super().data_received()
        while data:
            size = (sizes.pop(0) if len(sizes) > 1 else sizes[0]) if sizes else len(data)
            super().data_received(data[:size])
            data = data[size:]


class Running:
    """A server on an event loop in a separate thread."""

    def __init__(self, loop: str):
        self.complaints: list[dict] = []  # contexts passed to the loop's exception handler
        self.loop = LOOPS[loop]()
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def start(self, make, kind, tls, limiter) -> None:
        self.application = make()
        sockets = bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        self._serving = TRANSPORTS[kind](self.application, sockets, make_error_responder(LOG), tls=tls, limiter=limiter)
        self.server = await self._serving.__aenter__()

    async def close(self) -> None:
        await self._serving.__aexit__(None, None, None)
        await asyncio.sleep(0.01)  # for transports to be closed

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(PATIENCE_S)

    def call(self, function: Callable, *arguments: object):
        async def called():
            return function(*arguments)

        return self.run(called())

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def exchange(self, raw: bytes) -> list["Answer"]:
        with self.connect() as client:
            with contextlib.suppress(ConnectionError):  # the server may close the connection early
                client.sendall(raw)
            return answers(read_all(client))


@contextlib.contextmanager
def serving(make=echo_application, *, loop="uvloop", kind="own", tls=None, limiter=None, quiet=True):
    """Run a server. At the end, check that no connection is left and that its loop has no errors.

    If `quiet`, the log must not have errors either.
    """
    errors: list[str] = []
    log = logging.Handler(logging.ERROR)
    log.emit = lambda record: errors.append(log.format(record))
    logging.getLogger().addHandler(log)
    running = Running(loop)
    log.addFilter(lambda record: record.thread == running.thread.ident)  # those of another server have another thread
    try:
        running.run(running.start(make, kind, tls, limiter))
        try:
            yield running
        finally:
            running.run(running.close())
    finally:
        running.loop.call_soon_threadsafe(running.loop.stop)
        running.thread.join()
        logging.getLogger().removeHandler(log)
    assert running.complaints == [], running.complaints[0]
    if kind == "own":
        assert not running.server.state.connections
    if quiet:
        assert errors == []


@contextlib.contextmanager
def chopping(*sizes: int) -> Iterator[None]:
    """Deliver data in pieces of these sizes to connections that are opened in the block."""
    with mock.patch.object(listener, "Connection", Chopped):
        Chopped.sizes = sizes
        yield


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def receive_until(client: socket.socket, end: bytes) -> bytes:
    received = b""
    while not received.endswith(end):
        chunk = client.recv(1 << 16)
        assert chunk, received
        received += chunk
    return received


def read_all(client: socket.socket) -> bytes:
    received = bytearray()
    with contextlib.suppress(ConnectionError):
        while chunk := client.recv(1 << 16):
            received += chunk
    return bytes(received)


@dataclass(frozen=True)
class Answer:
    """A response with lower-case header names, each at most once."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def json(self) -> dict:
        return json.loads(self.body)


def answers(raw: bytes, *, may_be_heads: bool = False) -> list[Answer]:
    """Parse a server's output, which must consist of well-formed responses, some of them to HEAD if they may be."""
    responses = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        assert end, raw
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), head
        headers.pop("x-request-id", None)  # different for each request
        if may_be_heads and rest[:9] in (b"", b"HTTP/1.1 "):
            body, raw, whole = b"", rest, True
        else:
            body, raw, whole = take_body(int(status), headers, rest)
        responses.append(Answer(int(status), headers, body, whole))
    return responses


def take_body(status: int, headers: dict[str, str], rest: bytes) -> tuple[bytes, bytes, bool]:
    """Return a response's body, the data after it, and whether the body is complete."""
    if status < 200 or status in (204, 304) or headers.get("x-method") == "HEAD":
        return b"", rest, True
    if "content-length" in headers:
        length = int(headers["content-length"])
        return rest[:length], rest[length:], len(rest) >= length
    if headers.get("transfer-encoding") != "chunked":
        return rest, b"", True
    body, place = [], 0
    while place < len(rest):
        line_end = rest.index(b"\r\n", place)
        start, size = line_end + 2, int(rest[place:line_end], 16)
        body.append(rest[start : start + size])
        place = start + size + 2
        assert rest[place - 2 : place] in (b"\r\n", b"") or place > len(rest)
        if not size:
            return b"".join(body), rest[place:], True
    return b"".join(body), b"", False
