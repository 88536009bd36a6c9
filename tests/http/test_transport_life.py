"""The life of connections: keep-alive, pipelining, slow and vanishing clients, deadlines, stopping, and scale."""

import asyncio
import contextlib
import gc
import resource
import socket
import ssl
import sys
import time
from operator import attrgetter
from pathlib import Path
from unittest import mock

import pytest
from bench.processes import many_files
from support.http_corpus import HOST
from support.raw_http import (
    PATIENCE_S,
    answers,
    echo_application,
    on_both_loops,
    read_all,
    receive_until,
    reset,
    serving,
)
from support.waiting import kill, start_holder, until
from tornado import web
from tornado.iostream import StreamClosedError

from tornado_signal.system.tls import Tls, read_certificate
from tornado_signal.transport import connection, listener
from tornado_signal.transport.connection import Connection
from tornado_signal.transport.listener import UNSENT_BYTES
from tornado_signal.transport.pacing import HIGH_WATER_BYTES, WRITE_BYTES
from tornado_signal.transport.state import MemoryBudget
from tornado_signal.transport.stream import HTTPStream

CLOSE = b"Connection: close\r\n"
WAIT = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
STREAM = b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n"
LARGE = b"GET /large?bytes=33554432 HTTP/1.1\r\n" + HOST
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
BLOCK = b"x" * 65536
BLOCKS = 1024
SOON_S = 0.2  # deadline of tests that wait for it


class WaitingHandler(web.RequestHandler):
    """Responds once it is released or the client has disconnected."""

    def initialize(self):
        self.released = asyncio.Event()

    async def get(self):
        if self.request.query == "begin":
            self.flush()
        self.application.waiting.append(self)
        await self.released.wait()
        self.finish("released")

    def on_connection_close(self):
        self.application.gone += 1
        self.released.set()


class StreamingHandler(web.RequestHandler):
    """Sends BLOCKS blocks, as fast as the client reads them."""

    async def get(self):
        try:
            for _ in range(BLOCKS):
                self.write(BLOCK)
                await self.flush()
                self.application.sent += 1
        except StreamClosedError:
            self.application.gone += 1


class LargeHandler(web.RequestHandler):
    def get(self):
        self.application.sent += 1
        self.finish(b"x" * int(self.get_argument("bytes")))


def make_application():
    """Its attributes count waiting handlers, sent blocks or responses, and clients that have disconnected."""
    application = echo_application(("/wait", WaitingHandler), ("/stream", StreamingHandler), ("/large", LargeHandler))
    application.waiting, application.sent, application.gone = [], 0, 0
    return application


@pytest.fixture
def running(loop):
    with serving(make_application, loop=loop) as server:
        yield server


def release(running, number=0):
    running.call(running.application.waiting[number].released.set)


@pytest.fixture
def shorten_deadlines(monkeypatch):
    def shorten_to(*names, seconds=SOON_S):
        for name in names:
            monkeypatch.setattr(connection, name, seconds)

    monkeypatch.setattr(listener, "TICK_S", 0.02)  # must precede `running`, which starts the ticks
    return shorten_to


def stable_value(value, pause_s=0.05):
    """Return a value once it has been stable for a moment."""
    before = None
    while before != (before := value()):
        time.sleep(pause_s)
    return before


def numbered_request(number, more=b""):
    return b"GET /%d HTTP/1.1\r\n" % number + HOST + more + b"\r\n"


def paths(responses):
    return [int(response.json["request"][1][1:]) for response in responses]


def live_objects():
    gc.collect()
    return sum(isinstance(obj, Connection | HTTPStream) for obj in gc.get_objects())


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_1000_pipelined_requests_are_answered_in_order(running, at_once):
    requests = [*map(numbered_request, range(999)), numbered_request(999, CLOSE)]
    with running.connect() as client:
        for first in range(0, 1000, at_once):
            client.sendall(b"".join(requests[first : first + at_once]))
        assert paths(answers(read_all(client))) == list(range(1000))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_body_after_a_waiting_request_is_not_read(loop, tls, pair, trusting):
    context, sent = Tls(read_certificate(*pair)).context if tls else None, 0

    def send_more():
        nonlocal sent
        with contextlib.suppress(BlockingIOError, ssl.SSLWantWriteError):
            while sent < 50_000_000:
                sent += client.send(BLOCK)
        return sent

    with contextlib.ExitStack() as stack:
        running = stack.enter_context(serving(make_application, loop=loop, tls=context))
        client = running.connect()
        client = stack.enter_context(trusting.wrap_socket(client, server_hostname="127.0.0.1") if tls else client)
        client.sendall(WAIT + b"POST /1 HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 50000000\r\n\r\n")
        until(lambda: running.application.waiting)
        client.setblocking(False)
        assert stable_value(send_more, 0.2) < 30_000_000  # the size of the kernel's buffers
        client.settimeout(PATIENCE_S)
        release(running)
        client.sendall(b"x" * (50_000_000 - sent))
        released_response, echo = answers(read_all(client))
    assert released_response.body == b"released"
    assert len(echo.json["body"]) == 50_000_000


def test_bytes_read_after_waiting_requests_share_a_limit(running, monkeypatch):
    monkeypatch.setattr(running.server.state.unfinished, "max_bytes", 1_000_000)
    large_input = WAIT + numbered_request(1) * 10_000
    small_input = WAIT + b"".join(map(numbered_request, range(10))) + numbered_request(10, CLOSE)
    with contextlib.ExitStack() as stack:
        clients = []
        for number in range(1, 31):
            client = stack.enter_context(running.connect())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.send(large_input)
            client.settimeout(PATIENCE_S)
            clients.append(client)
            until(lambda number=number: len(running.application.waiting) == number)

        def refused_ports():
            connections = running.server.state.connections
            peers = [each._transport.get_extra_info("peername") for each in connections if each._reject_status == 503]
            return {port for _, port in peers}

        until(lambda: clients[-1].getsockname()[1] in running.call(refused_ports))
        stable_value(lambda: running.call(lambda: running.server.state.unfinished.bytes))
        assert 100_000 < running.call(lambda: running.server.state.unfinished.bytes) <= 1_000_000
        assert len(running.call(refused_ports)) > 10
        small_client = stack.enter_context(running.connect())
        small_client.sendall(small_input)
        until(lambda: len(running.application.waiting) == 31)
        with running.connect() as other:
            other.sendall(numbered_request(7, CLOSE))
            assert paths(answers(read_all(other))) == [7]
        for number in range(31):
            release(running, number)
        assert paths(answers(read_all(small_client))[1:]) == list(range(11))
        *responses, last = answers(read_all(clients[-1]))  # only a part was parsed and answered
        assert {response.status for response in responses} == {200}
        assert len(responses) < 1000
        assert last.status == 503
        assert last.json == {"error": "Service unavailable"}
    until(lambda: not running.server.state.connections)
    assert running.call(lambda: running.server.state.unfinished.bytes) == 0


@on_both_loops
def test_slow_reader_pauses_the_handler(running):
    with running.connect() as client:
        client.sendall(STREAM.replace(HOST, HOST + CLOSE))
        assert 0 < stable_value(lambda: running.application.sent) < BLOCKS / 4
        (response,) = answers(read_all(client))
    assert (response.whole, len(response.body)) == (True, BLOCKS * len(BLOCK))
    assert running.application.sent == BLOCKS


def test_client_that_reads_before_each_deadline_stays_connected(running):
    with running.connect() as client:
        client.sendall(LARGE + CLOSE + b"\r\n")
        until(lambda: running.application.sent)
        (server_connection,) = running.server.state.connections
        received = b""
        for _ in range(12):
            buffered_bytes = running.call(server_connection._transport.get_write_buffer_size)
            while running.call(server_connection._transport.get_write_buffer_size) == buffered_bytes:
                received += client.recv(1 << 18)
            running.call(server_connection.deadline_passed)
        (response,) = answers(received + read_all(client))
    assert len(response.body) == 33_554_432


@pytest.mark.parametrize(
    "requests",
    [
        STREAM,
        STREAM * 3,
        LARGE + b"\r\n",
        LARGE + CLOSE + b"\r\n",
        LARGE + b"\r\nGET / HTTP/1.1\r\nX",
        LARGE + b"\r\nnonsense\r\n\r\n",
        b"GET /large?bytes=1048576 HTTP/1.1\r\n%b\r\n" % HOST * 1000,
    ],
    ids=["stream", "streams", "kept alive", "close", "head after", "refusal after", "many"],
)
def test_client_that_never_reads_is_disconnected_and_few_requests_are_processed(shorten_deadlines, running, requests):
    shorten_deadlines("STALLED_S", "LINGER_S")
    with running.connect() as client:
        client.sendall(requests)
        until(lambda: running.application.sent and not running.server.state.connections)
    until(lambda: running.application.gone == (requests[:11] == STREAM[:11]))
    assert running.application.sent < 50 or requests[:11] == STREAM[:11]


VANISHING = [  # what is sent, the handlers that wait then, and those that are notified
    (b"", 0, 0),
    (b"GET / HT", 0, 0),
    (b"GET / HTTP/1.1\r\nHost: a\r\n", 0, 0),
    (POST + b"half", 0, 0),
    (CHUNKED + b"9\r\nhalf", 0, 0),
    (WAIT, 1, 1),
    (WAIT + b"GET / HTT", 1, 1),
    (WAIT.replace(b"1.1", b"1.0"), 1, 1),
    (STREAM, 0, 1),
    (WAIT + b"nonsense\r\n\r\n", 1, 1),
]


@on_both_loops
@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["closed", "reset"])
def test_vanished_client_is_freed_and_its_handler_is_notified(running, leave, subtests):
    application, before = running.application, running.call(live_objects)
    for sent, handlers, gone in VANISHING:
        with subtests.test(sent):
            application.gone = application.sent = 0
            client = running.connect()
            client.sendall(sent)
            until(lambda: len(running.server.state.connections) == 1)
            until(lambda handlers=handlers: len(application.waiting) == handlers)
            until(lambda sent=sent: sent != STREAM or application.sent)
            leave(client)
            until(lambda: not running.server.state.connections)
            until(lambda gone=gone: application.gone == gone)
            application.waiting.clear()
            assert running.call(live_objects) == before


def test_client_that_vanishes_during_the_response_is_not_an_error(running, caplog):
    client = running.connect()
    client.sendall(WAIT.replace(HOST, HOST + CLOSE))
    until(lambda: running.application.waiting)
    (handler,) = running.application.waiting
    finish = handler.request.connection.finish
    handler.request.connection.finish = lambda: (reset(client), finish())
    release(running)
    until(lambda: not running.server.state.connections)
    assert caplog.records == []


@on_both_loops
@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (numbered_request(1), [200]),
        (WAIT, [200]),
        (numbered_request(1) + WAIT, [200] * 2),
        (numbered_request(1) * 301, [200] * 301),
        (b"", []),
        (b"GET /", []),
        (POST + b"half", [400]),
    ],
)
def test_client_that_half_closes_gets_every_response(running, sent, statuses):
    with running.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        responses = answers(read_all(client))
    assert [response.status for response in responses] == statuses
    assert all(response.whole for response in responses)
    until(lambda: not running.server.state.connections)


@pytest.mark.parametrize(
    ("deadline", "sent", "statuses"),
    [
        ("IDLE_S", b"", []),
        ("IDLE_S", b"\r\n", []),
        ("keep_alive_s", numbered_request(1), [200]),
        ("keep_alive_s", numbered_request(1) * 3, [200, 200, 200]),
        ("keep_alive_s", LARGE + b"\r\n", [200]),  # also after a response that has filled the buffers
        ("HEAD_S", b"G", [408]),
        ("HEAD_S", b"GET / HTTP/1.1\r\nHost: a\r\nX", [408]),
        ("HEAD_S", numbered_request(1) + b"GET / HTTP", [200, 408]),
        ("HEAD_S", LARGE + b"\r\nGET / HTTP/1.1\r\nHo", [200, 408]),
        ("BODY_S", POST, [408]),
        ("BODY_S", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", [100, 408]),
        ("BODY_S", CHUNKED + b"3\r\nabc\r\n", [408]),
        ("BODY_S", numbered_request(1) * 2 + POST + b"half", [200, 200, 408]),
        ("LINGER_S", b"nonsense\r\n\r\n", [400]),
    ],
)
def test_every_waiting_state_has_a_deadline(shorten_deadlines, running, deadline, sent, statuses):
    if deadline == "keep_alive_s":
        running.server.state.keep_alive_s = SOON_S
    else:
        shorten_deadlines(deadline)
    began_s = int(time.monotonic() * 1000) / 1000  # uvloop counts whole milliseconds
    with running.connect() as client:
        client.sendall(sent)
        responses = answers(read_all(client))
        assert [response.status for response in responses] == statuses
        assert sum(len(response.body) for response in responses) >= 32 << 20 or LARGE not in sent
        until(lambda: not running.server.state.connections or statuses[-1:] == [408])
        assert deadline == "LINGER_S" or time.monotonic() - began_s >= SOON_S


@pytest.mark.parametrize(
    "part", [b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n"]
)
def test_slow_sending_does_not_extend_the_deadline(shorten_deadlines, running, part):
    shorten_deadlines("HEAD_S", "BODY_S")
    began_s = time.monotonic()
    with running.connect() as client:
        client.sendall(part)
        client.settimeout(0.01)
        received = b""
        while not received:
            assert time.monotonic() - began_s < PATIENCE_S
            client.send(b"x")
            with contextlib.suppress(TimeoutError):
                received = client.recv(1000)
    assert answers(received)[0].status == 408


@pytest.mark.parametrize(
    ("sent", "rest", "statuses"),
    [
        (WAIT, b"", [200]),
        (WAIT + numbered_request(1) + b"GET / HTTP/1.1\r\nHo", b"st: a\r\n\r\n", [200, 200, 200]),
        (WAIT + POST + b"half", b"whole", [200, 200]),
        (WAIT + WAIT + b"GET / HTTP/1.1\r\nHost\r\n\r\n", b"", [200, 200, 400]),
    ],
    ids=["alone", "head after", "body after", "refusal after"],
)
def test_handlers_have_no_deadline(shorten_deadlines, running, sent, rest, statuses):
    shorten_deadlines("IDLE_S", "HEAD_S", "BODY_S", "STALLED_S", "LINGER_S", seconds=0.05)
    running.server.state.keep_alive_s = 0.05
    with running.connect() as client:
        client.sendall(sent)
        for number in range(sent.count(WAIT)):
            until(lambda number=number: len(running.application.waiting) > number)
            time.sleep(0.4)
            assert len(running.server.state.connections) == 1
            if rest:
                shorten_deadlines("HEAD_S", "BODY_S", seconds=PATIENCE_S)
                client.sendall(rest)
            release(running, number)
        responses = answers(read_all(client))
    assert responses[0].body == b"released"
    assert [response.status for response in responses] == statuses


@pytest.mark.parametrize("chosen", [None, lambda address: address == "127.0.0.1"], ids=["all", "address"])
def test_silent_connection_is_replaceable_when_its_request_is_overdue(shorten_deadlines, running, chosen):
    def close_idle():
        return running.call(running.server.close_idle, chosen)

    with running.connect() as new, running.connect() as begun:
        begun.sendall(b"G")
        until(lambda: sorted(each.idle for each in running.server.state.connections) == [False, True])
        shorten_deadlines("HEAD_S")
        with running.connect() as silent:
            until(close_idle)
            assert read_all(silent) == b""
        assert not close_idle()
        for number, (client, rest) in enumerate([(begun, 1), (new, 0)]):
            client.sendall(numbered_request(number, CLOSE)[rest:])
            assert paths(answers(read_all(client))) == [number]


@on_both_loops
def test_stopping_server_completes_requests_until_the_time_limit(running):
    with contextlib.ExitStack() as stack:
        idle, started, waiting, stuck, streaming = (stack.enter_context(running.connect()) for _ in range(5))
        started.sendall(b"GET /1 HTTP/1.1\r\nHo")
        waiting.sendall(WAIT)
        until(lambda: len(running.application.waiting) == 1)
        stuck.sendall(WAIT)
        until(lambda: len(running.application.waiting) == 2)
        streaming.sendall(STREAM)
        until(lambda: running.application.sent)
        assert len(running.server.state.connections) == 5
        closing = asyncio.run_coroutine_threadsafe(running.server.close(PATIENCE_S), running.loop)
        assert read_all(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            running.connect()
        started.sendall(b"st: a\r\n\r\n")
        release(running)
        for client in (started, waiting):
            (response,) = answers(read_all(client))
            assert (response.status, response.headers["connection"], response.whole) == (200, "close", True)
            client.close()
        (response,) = answers(read_all(streaming))
        assert (response.whole, len(response.body)) == (True, BLOCKS * len(BLOCK))
        streaming.close()
        assert not closing.done()
        closing.cancel()
        running.run(running.server.close(0.1))
        assert read_all(stuck) == b""
        assert running.application.gone == 1


def test_accepted_connections_are_served_once_more_while_draining(running):
    """Also after a response that began before, without `Connection: close`, and if the server is slow to read."""
    with contextlib.ExitStack() as stack:
        kept_alive, fresh, begun, silent, late, waiting = (stack.enter_context(running.connect()) for _ in range(6))
        begun.sendall(WAIT.replace(b"/wait", b"/wait?begin"))
        until(lambda: running.application.waiting)
        kept_alive.sendall(numbered_request(1))
        assert answers(kept_alive.recv(4096))[0].status == 200
        waiting.sendall(WAIT)
        until(lambda: len(running.application.waiting) == 2 and len(running.server.state.connections) == 6)
        running.run(running.server.accept_no_more())
        with pytest.raises(ConnectionRefusedError):
            running.connect()
        release(running)
        assert receive_until(begun, b"0\r\n\r\n").startswith(b"HTTP/1.1 200 OK\r\n")
        for client in (kept_alive, fresh, begun):
            client.sendall(numbered_request(2))
            (response,) = answers(read_all(client))
            assert (response.status, response.headers["connection"], response.whole) == (200, "close", True)

        def send_and_stop():
            late.sendall(numbered_request(3))
            stop()

        async def serve_the_rest():
            with mock.patch.object(running.server, "stop", send_and_stop):
                await running.server.serve_the_rest(0.3)
            assert not any(each.idle for each in running.server.state.connections)

        stop = running.server.stop
        running.run(serve_the_rest())
        assert read_all(silent) == b""
        (response,) = answers(late.recv(4096, socket.MSG_DONTWAIT))
        assert (response.status, response.headers["connection"], response.whole) == (200, "close", True)
        release(running, 1)
        (response,) = answers(read_all(waiting))
        assert (response.headers["connection"], response.body) == ("close", b"released")


def test_burst_of_connections_is_accepted_in_a_few_event_loop_iterations(running):
    with contextlib.ExitStack() as stack:
        state, accepted = running.server.state, []

        def count():
            accepted.append(len(state.connections))
            if accepted[-1] < 400:
                running.loop.call_soon(count)

        def connect():  # the server accepts none meanwhile
            for _ in range(400):
                stack.enter_context(running.connect())
            running.loop.call_soon(count)

        running.call(connect)
        until(lambda: accepted and accepted[-1] == 400)
        assert len(accepted) < 40


# Says nothing on many connections, and in the end prints how many the server has closed.
CLIENTS = """
import socket, sys
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
sys.stdin.readline()
print(sum(client.recv(1) == b"" for client in clients))
"""


def test_10_000_silent_connections_use_less_than_4_kb_each():
    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    with many_files(), serving() as running, contextlib.ExitStack() as stack:
        before = resident_bytes()
        process = start_holder(sys.executable, "-c", CLIENTS, str(running.port), "10000")
        stack.callback(kill, process)
        until(lambda: len(running.server.state.connections) == 10_000)
        assert resident_bytes() - before < 10_000 * 4096
        assert paths(running.exchange(numbered_request(1, CLOSE))) == [1]
        running.run(running.server.close(5.0))
        assert int(process.communicate("\n", PATIENCE_S)[0]) == 10_000


# The limit for unsent data of all clients: connections with the most unsent bytes are closed, and no others.


MAX_UNSENT_BYTES = 8 * 1024 * 1024
# More than the kernel buffers for a client. A sweep leaves three times as much, so that others are closed first.
LARGE_BYTES = MAX_UNSENT_BYTES // 4


class FakeConnection:
    """A connection with the attributes that MemoryBudget uses."""

    def __init__(self, unsent, address, size):
        self.unsent, self.client_address, self.unsent_bytes, self.closed = unsent, address, size, False
        self.grow(0)

    def grow(self, size):
        self.unsent_bytes += size
        self.unsent.update(self, self.unsent_bytes)

    def abort(self):
        assert not self.closed
        self.closed = True


@pytest.mark.parametrize(
    ("sizes", "growths", "closed"),
    [
        ({"a": [60], "b": [20]}, [("b", 0, 5)] * 4, {}),
        ({"a": [60], "b": [20]}, [("b", 0, 21)], {"a": [60]}),
        ({"many": [10, 14, 12, 11, 13], "one": [38]}, [("one", 0, 3)], {"many": [14, 13]}),
        ({"a": [30, 21], "b": [30, 19]}, [("b", 1, 1)], {"a": [30]}),
        ({"a": [30, 21], "b": [30, 19]}, [("b", 1, 1), ("a", 1, 30)], {"a": [30, 51]}),
        ({"a": [101]}, [], {"a": [101]}),
    ],
)
def test_address_with_most_unsent_bytes_loses_its_largest_connections_first(sizes, growths, closed):
    unsent = MemoryBudget(100, attrgetter("unsent_bytes"))
    connections = {name: [FakeConnection(unsent, name, size) for size in values] for name, values in sizes.items()}
    for address, index, size in growths:
        connections[address][index].grow(size)
    for address, group in connections.items():
        assert [each.unsent_bytes for each in group if each.closed] == closed.get(address, [])
    counted = sum(each.unsent_bytes for group in connections.values() for each in group if not each.closed)
    assert unsent.bytes == counted


def test_client_that_has_read_since_or_is_removed_is_not_counted():
    unsent = MemoryBudget(100, attrgetter("unsent_bytes"))
    *readers, grower = [FakeConnection(unsent, *each) for each in (("a", 50), ("a", 30), ("b", 15))]
    for each in readers:
        each.unsent_bytes = 1
    for size, closed in (20, False), (63, False), (1, True):
        grower.grow(size)
        assert [each.closed for each in (*readers, grower)] == [False, False, closed]
    assert grower.unsent_bytes == 99
    for each in readers * 2:
        unsent.forget(each)
    other = FakeConnection(unsent, "c", 95)
    assert not other.closed
    unsent.forget(other)
    assert (unsent.bytes, unsent._sizes) == (0, {})


@pytest.fixture
def budgeted(running, monkeypatch):
    """A server whose clients may leave a few megabytes unread in total, and wait for each other."""
    monkeypatch.setattr(connection, "STALLED_S", 300.0)
    running.server.state.unsent = MemoryBudget(MAX_UNSENT_BYTES, attrgetter("unsent_bytes"))
    return running


def unsent_bytes(running):
    return running.call(lambda: sum(each.unsent_bytes for each in running.server.state.connections))


def large_request(size, close=True):
    return b"GET /large?bytes=%d HTTP/1.1\r\nHost: x\r\n%b\r\n" % (size, CLOSE if close else b"")


def connect(budgeted, address):
    """Connect from one of the loopback addresses with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.bind((address, 0))
    client.connect(("127.0.0.1", budgeted.port))
    return client


def queued_bytes(port, other):
    """Return the bytes that the kernel still has to send from port `port` to `other` or has no acknowledgement for."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if [int(address.partition(":")[2], 16) for address in (local, remote)] == [port, other]:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("no such connection")


@on_both_loops
def test_unread_responses_stay_within_the_budget(budgeted):
    state = budgeted.server.state
    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(connect(budgeted, "127.0.0.2"))
        honest.sendall(large_request(LARGE_BYTES))  # less than each of the others, whatever the kernel buffers
        until(lambda: unsent_bytes(budgeted))
        for number in range(30):
            client = stack.enter_context(connect(budgeted, "127.0.0.3"))
            client.sendall(large_request(LARGE_BYTES * 3 // 2, close=number % 2 == 0))
            until(lambda: budgeted.call(state.unsent._sizes.__len__))
            assert unsent_bytes(budgeted) <= MAX_UNSENT_BYTES
        until(lambda: len(state.connections) < 10)
        assert unsent_bytes(budgeted) <= MAX_UNSENT_BYTES
        with connect(budgeted, "127.0.0.3") as client_2:  # the address is still served
            client_2.sendall(large_request(5))
            assert answers(read_all(client_2))[0].body == b"xxxxx"
        (response,) = answers(read_all(honest))
        assert (response.whole, len(response.body)) == (True, LARGE_BYTES)
    until(lambda: not state.connections)
    assert budgeted.call(lambda: (state.unsent.bytes, state.unsent._sizes)) == (0, {})


@on_both_loops
def test_tls_holds_little_of_what_a_client_reads_slowly(loop, pair, trusting):
    def sizes():
        transport = connection._transport
        below = transport._transport.get_write_buffer_size()
        return below, transport.get_write_buffer_size() - below, sum(map(len, transport._waiting))

    tls = Tls(read_certificate(*pair)).context
    with (
        serving(make_application, loop=loop, tls=tls) as budgeted,
        trusting.wrap_socket(connect(budgeted, "127.0.0.3"), server_hostname="127.0.0.1") as client,
    ):
        client.sendall(large_request(LARGE_BYTES, close=False))
        received = client.recv(65536)
        (connection,) = budgeted.server.state.connections
        while len(received) < LARGE_BYTES:
            chunk = client.recv(65536)
            assert chunk
            received += chunk
            below, counted, waiting = budgeted.call(sizes)
            assert below <= HIGH_WATER_BYTES + 2 * WRITE_BYTES
            assert counted == waiting
        until(lambda: not budgeted.call(lambda: budgeted.server.state.unsent.bytes))
        client.sendall(large_request(LARGE_BYTES, close=False))
        until(lambda: budgeted.call(lambda: budgeted.server.state.unsent.bytes) > LARGE_BYTES * 3 // 4)
        assert budgeted.call(sizes)[1]
        budgeted.call(connection.abort)
        assert budgeted.call(sizes)[1:] == (0, 0)


def test_kernel_buffers_little_unread_data_and_a_response_counts_until_it_is_sent(shorten_deadlines, budgeted):
    state, received = budgeted.server.state, b""

    def buffered_bytes():
        return sum(connection._transport.get_write_buffer_size() for connection in state.connections)

    shorten_deadlines("LINGER_S", seconds=0.02)
    with connect(budgeted, "127.0.0.3") as client:
        client.sendall(large_request(LARGE_BYTES))
        until(lambda: state.unsent.bytes)
        assert 0 < queued_bytes(budgeted.port, client.getsockname()[1]) < 2 * UNSENT_BYTES
        time.sleep(0.2)  # for the client to be closed, if that were a matter of lingering
        before = budgeted.call(buffered_bytes)
        while budgeted.call(buffered_bytes) > before // 2:
            received += client.recv(65536)
        assert unsent_bytes(budgeted) >= LARGE_BYTES
        assert state.unsent.bytes >= LARGE_BYTES
        (response,) = answers(received + read_all(client))
        assert (response.whole, len(response.body)) == (True, LARGE_BYTES)
