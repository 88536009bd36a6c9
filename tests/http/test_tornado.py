"""The transport serves handlers of Tornado as `tornado.httpserver` does.

Tornado's own tests cover more of them. Tests of our handlers with the parameter `transport` use both servers.
"""

import asyncio
import contextlib

import pytest
from support.service import HANDSHAKE, ORIGIN, TRANSPORTS, connected, head, request, with_origin
from tornado import httputil, web, websocket
from tornado.netutil import bind_sockets

from tornado_signal.http.application import Route
from tornado_signal.http.handlers import Handler
from tornado_signal.transport.stream import MAX_BODY_BYTES, HTTPStream

BOUND_S = 30


def upload(length, *headers):
    """Return the head of a request whose body has a length, or is chunked if that is None."""
    framing = ("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))
    return head("PUT", "/", with_origin(ORIGIN, [framing, *headers]))


async def exchange(port, raw, method="GET"):
    """Send a request. Return the response, or None if the connection ends before it."""
    async with asyncio.timeout(BOUND_S), connected(port) as connection:
        await connection.send(raw)
        return await connection.receive(method)


@pytest.fixture
def serve(io_loop):
    """A coroutine function that serves an application with a transport, and returns the port."""
    stack = contextlib.AsyncExitStack()

    async def start(application, kind="own"):
        listening = bind_sockets(0, "127.0.0.1")
        transport = TRANSPORTS[kind](application, listening, lambda *_: (httputil.HTTPHeaders(), b""))
        await stack.enter_async_context(transport)
        return listening[0].getsockname()[1]

    yield start
    io_loop.run_sync(stack.aclose)


class SlowUpload:
    """A handler with a slow `prepare` and a slow `data_received`."""

    async def prepare(self):
        if (work := super().prepare()) is not None:
            await work
        self.steps, self.size = ["prepare"], 0
        for _ in range(20):
            await asyncio.sleep(0)
        self.steps.append("prepared")

    async def data_received(self, chunk):
        self.steps.append("receive")
        self.size += len(chunk)
        for _ in range(20):
            await asyncio.sleep(0)
        self.steps.append("received")

    def put(self):
        steps, pairs = self.steps, len(self.steps) // 2
        ordered = steps == ["prepare", "prepared"] + ["receive", "received"] * (pairs - 1)
        self.write(f"{self.size} {ordered}")


@pytest.mark.parametrize("base", [web.RequestHandler, Handler])
async def test_the_body_waits_for_prepare_and_for_each_piece(base, start_service, serve):
    handler = web.stream_request_body(type("Upload", (SlowUpload, base), {"methods": ("PUT",)}))
    application = web.Application([("/", handler)])
    if base is Handler:
        application = (await start_service()).application
        application.routes["/"] = Route("/", handler)
    sized, empty = upload(200_000) + b"x" * 200_000, upload(0)
    chunked = upload(None) + b"3e8\r\n%b\r\n" % (b"x" * 1000) * 20 + b"0\r\n\r\n"
    for port in [await serve(application, kind=kind) for kind in TRANSPORTS]:
        assert (await exchange(port, sized, "PUT")).body == b"200000 True"
        assert (await exchange(port, empty, "PUT")).body == b"0 True"
        async with asyncio.timeout(BOUND_S), connected(port) as connection:
            await connection.send(chunked + sized + empty)
            received = [await connection.receive("PUT") for _ in range(3)]
        assert [response.body for response in received] == [b"20000 True", b"200000 True", b"0 True"]


async def test_nothing_is_read_while_a_piece_of_the_body_is_processed(serve):
    unread = []

    @web.stream_request_body
    class Upload(web.RequestHandler):
        async def data_received(self, chunk):
            if not unread:
                for _ in range(1000):  # enough to read everything
                    await asyncio.sleep(0)
                unread.append(connection.writer.transport.get_write_buffer_size())

        def put(self):
            self.write("done")

    size = 32 << 20
    for port in [await serve(web.Application([("/", Upload)]), kind=kind) for kind in TRANSPORTS]:
        unread.clear()
        async with asyncio.timeout(BOUND_S), connected(port) as connection:
            connection.writer.write(upload(size) + bytes(size))
            assert (await connection.receive("PUT")).body == b"done"
        assert unread[0] > size // 2


async def test_an_error_in_a_piece_of_the_body_closes_the_connection(serve, caplog):
    @web.stream_request_body
    class Upload(web.RequestHandler):
        async def data_received(self, chunk):
            await asyncio.sleep(0)
            raise ZeroDivisionError

        def put(self):
            self.write("done")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(context["exception"]))
    for port in [await serve(web.Application([("/", Upload)]), kind=kind) for kind in TRANSPORTS]:
        failed = []
        assert await exchange(port, upload(5) + b"hello", "PUT") is None
        assert caplog.records or isinstance(failed[0], ZeroDivisionError)
    caplog.clear()


async def test_the_body_is_limited_as_by_a_stock_server(serve, monkeypatch):
    class Buffered(web.RequestHandler):
        def put(self):
            self.write(str(len(self.request.body)))

    @web.stream_request_body
    class Streamed(Buffered):
        size = 0

        def prepare(self):
            if limit := self.request.headers.get("X-Limit"):
                self.request.connection.set_max_body_size(int(limit))
            if seconds := self.request.headers.get("X-Seconds"):
                self.request.connection.set_body_timeout(float(seconds))

        def data_received(self, chunk):
            self.size += len(chunk)

        def put(self):
            self.write(str(self.size))

    small, chunks = ("X-Limit", "9"), b"5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n"
    for handler, raw, statuses in [
        (Buffered, upload(MAX_BODY_BYTES + 1, ("Expect", "100-continue")), [413]),
        (Buffered, upload(5) + b"hello" + upload(MAX_BODY_BYTES + 1), [200, 413]),
        (Streamed, upload(MAX_BODY_BYTES + 1), [413]),
        (Streamed, upload(10, small) + b"hello" * 2, [413]),
        (Streamed, upload(9, small) + b"x" * 9 + upload(10) + b"hello" * 2, [200, 200]),  # it is of one request
        (Streamed, upload(None, small) + chunks, [413]),
        (Streamed, upload(None) + chunks, [200]),
        (Streamed, upload(10, ("X-Seconds", "0.1")) + b"hello", [408]),
    ]:
        port = await serve(web.Application([("/", handler)]))
        async with asyncio.timeout(BOUND_S), connected(port) as connection:
            await connection.send(raw)
            assert [(await connection.receive("PUT")).status for _ in statuses] == statuses, raw
    monkeypatch.setattr(HTTPStream, "_max_body_bytes", 9)
    port = await serve(web.Application([("/", Buffered)]))
    assert (await exchange(port, upload(None) + chunks, "PUT")).status == 413


async def test_an_invalid_length_of_a_handler_is_not_sent(serve, caplog):
    for length in ("+3", "3_0", "x", "-1", "", "\xb2"):

        class Invalid(web.RequestHandler):
            def get(self):
                self.set_header("Content-Length", length)  # noqa: B023
                self.write("abc")

            head = get

        port = await serve(web.Application([("/", Invalid)]))
        for method in ("GET", "HEAD"):
            assert await exchange(port, request(method, "/")) is None
        assert f"invalid Content-Length: {length!r}" in caplog.text
        caplog.clear()


async def test_websockets_are_refused_where_the_server_cannot_serve_them(serve, start_service, caplog):
    handshake = head("GET", "/ws", with_origin(ORIGIN, HANDSHAKE))

    class Tornados(websocket.WebSocketHandler):
        def check_origin(self, origin):
            return True

    port = await serve(web.Application([("/ws", Tornados)]))
    assert (await exchange(port, handshake)).status == 501
    assert "tornado_signal.transport does not serve tornado.websocket" in caplog.text
    caplog.clear()
    port = await serve((await start_service()).application, "tornado")
    response = await exchange(port, handshake)
    assert (response.status, response.json) == (501, {"error": "Not implemented"})
    assert "WebSockets need the server of tornado_signal.transport" in caplog.text
    caplog.clear()


async def test_a_client_that_leaves_during_prepare_ends_the_body(serve):
    # A stock server notices it only after `prepare`.
    ended, entered = asyncio.Event(), asyncio.Event()

    @web.stream_request_body
    class Upload(web.RequestHandler):
        async def prepare(self):
            entered.set()
            await ended.wait()

        def data_received(self, chunk):
            raise AssertionError

        def on_connection_close(self):
            super().on_connection_close()
            ended.set()

        put = data_received

    port = await serve(web.Application([("/", Upload)]))
    async with asyncio.timeout(BOUND_S), connected(port) as connection:
        await connection.send(upload(5))
        await entered.wait()
        connection.writer.transport.abort()
        await ended.wait()
