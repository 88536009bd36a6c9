"""The life of connections: kept alive, pipelined, slow, vanishing, overdue, stopped, and in their thousands."""

import asyncio
import contextlib
import gc
import resource
import socket
import struct
import subprocess
import sys
import time

import pytest
from support.raw_http import PATIENCE_S, answers, echo_application, read_all, serving
from tornado import web
from tornado.iostream import StreamClosedError

from tornado_signal.transport import connection, listener
from tornado_signal.transport.connection import Connection
from tornado_signal.transport.exchange import Exchange

HOST = b"Host: a.example\r\n"
WAIT = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
STREAM = b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n"
BLOCK = b"x" * 65536
BLOCKS = 1024
SOON_S = 0.2  # a deadline that a test waits for

CLIENTS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
sys.stdin.readline()
print(sum(client.recv(1) == b"" for client in clients))
"""


class Waiting(web.RequestHandler):
    """Answers when it is told to, or when the client is gone."""

    def initialize(self):
        self.told = asyncio.Event()

    async def get(self):
        self.application.waiting.append(self)
        await self.told.wait()
        self.finish("told")

    def on_connection_close(self):
        self.application.gone += 1
        self.told.set()


class Streaming(web.RequestHandler):
    """Sends BLOCKS blocks, as fast as the client reads them."""

    async def get(self):
        try:
            for _ in range(BLOCKS):
                self.write(BLOCK)
                await self.flush()
                self.application.sent += 1
        except StreamClosedError:
            self.application.gone += 1


class Large(web.RequestHandler):
    """Sends all at once."""

    def get(self):
        self.application.sent += 1
        self.finish(BLOCK * int(self.get_argument("blocks")))


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request):
    """The event loop under the server."""
    return request.param


@pytest.fixture
def running(loop):
    """A server whose application knows how many handlers wait, blocks were sent, and handlers found nobody."""

    def make():
        application = echo_application(("/wait", Waiting), ("/stream", Streaming), ("/large", Large))
        application.waiting, application.sent, application.gone = [], 0, 0
        return application

    with serving(make, loop=loop) as server:
        yield server


@pytest.fixture
def impatient(monkeypatch):
    """A function that shortens some deadlines."""

    def shorten(*names, seconds=SOON_S):
        for name in names:
            monkeypatch.setattr(connection, name, seconds)

    monkeypatch.setattr(listener, "TICK_S", 0.02)  # before `running`, which starts to tick
    return shorten


def until(condition):
    """Wait for something that takes a moment."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


def settled(value):
    """What a value is when it has not changed for a while."""
    before = None
    while before != (before := value()):
        time.sleep(0.05)
    return before


def receive(client, size):
    received = bytearray()
    while len(received) < size:
        chunk = client.recv(size - len(received))
        assert chunk
        received += chunk
    return bytes(received)


def reset(client):
    """Close without a farewell."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def numbered(number, more=b""):
    return b"GET /%d HTTP/1.1\r\n" % number + HOST + more + b"\r\n"


def paths(found):
    return [int(answer.json["request"][1][1:]) for answer in found]


def living():
    """How many connections and exchanges there are."""
    gc.collect()
    return sum(isinstance(each, Connection | Exchange) for each in gc.get_objects())


# Kept alive and pipelined


def test_one_connection_many_requests(running):
    """A connection is kept for one request after the other."""
    with running.connect() as client:
        for number in range(200):
            client.sendall(numbered(number, b"Connection: close\r\n" if number == 199 else b""))
            if number < 199:
                size = len(b'{"request": ["GET", "/", "HTTP/1.1", [["Host", "a.example"]]], "body": ""}')
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    head += receive(client, 1)
                receive(client, size + len(str(number)))
        assert paths(answers(read_all(client))) == [199]


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_a_thousand_pipelined(running, at_once):
    """A thousand requests sent without waiting are answered in their order."""
    requests = [numbered(number, b"Connection: close\r\n" if number == 999 else b"") for number in range(1000)]
    with running.connect() as client:
        for first in range(0, 1000, at_once):
            client.sendall(b"".join(requests[first : first + at_once]))
        assert paths(answers(read_all(client))) == list(range(1000))


def test_pipelined_behind_one_that_waits(running):
    """Requests behind one that takes its time wait for it: little of them is read, hardly any of it parsed."""
    request = numbered(1)
    with running.connect() as client:
        client.sendall(WAIT)
        until(lambda: running.application.waiting)
        client.setblocking(False)
        sent = 0
        before = None
        while before != (before := sent):
            with contextlib.suppress(BlockingIOError):
                while sent < 100_000_000:
                    sent += client.send(request * 1000)
            time.sleep(0.2)
        assert sent < 30_000_000  # what the kernel holds
        (there,) = running.server.state.connections
        assert len(there._waiting) < 600_000
        running.call(gc.collect)
        assert running.call(living) < 400
        running.call(running.application.waiting[0].told.set)
        client.settimeout(PATIENCE_S)
        assert b"told" in receive(client, 1000)
        reset(client)
    until(lambda: not running.server.state.connections)


def test_a_waiting_request_body_is_not_read(running):
    """A body behind a request that takes its time stays with its sender."""
    with running.connect() as client:
        client.sendall(WAIT + b"POST /1 HTTP/1.1\r\n" + HOST + b"Content-Length: 50000000\r\n\r\n")
        until(lambda: running.application.waiting)
        client.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while sent < 50_000_000:
                sent += client.send(BLOCK)
        assert sent < 30_000_000
        running.call(running.application.waiting[0].told.set)
        client.setblocking(True)
        client.sendall(b"x" * (50_000_000 - sent))
        client.shutdown(socket.SHUT_WR)
        told, whole = answers(read_all(client))
    assert told.body == b"told"
    assert len(whole.json["body"]) == 50_000_000


def test_what_waits_is_bounded_for_all(running, monkeypatch):
    """Bytes behind requests that wait are bounded for all connections together; who sends few is not refused."""
    monkeypatch.setattr(running.server.state, "max_read_ahead_bytes", 1_000_000)
    much = WAIT + numbered(1) * 10_000
    little = WAIT + b"".join(map(numbered, range(10))) + numbered(10, b"Connection: close\r\n")
    with contextlib.ExitStack() as ends:
        clients = []
        for number in range(1, 31):
            client = ends.enter_context(running.connect())
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.send(much)
            client.settimeout(PATIENCE_S)
            clients.append(client)
            until(lambda number=number: len(running.application.waiting) == number)
        settled(lambda: running.call(lambda: running.server.state.read_ahead_bytes))
        assert 100_000 < running.call(lambda: running.server.state.read_ahead_bytes) <= 1_000_000
        assert sum(there._refused == 503 for there in running.server.state.connections) > 10
        modest = ends.enter_context(running.connect())
        modest.sendall(little)
        until(lambda: len(running.application.waiting) == 31)
        with running.connect() as other:
            other.sendall(numbered(7, b"Connection: close\r\n"))
            assert paths(answers(read_all(other))) == [7]
        for waiting in running.application.waiting:
            running.call(waiting.told.set)
        assert paths(answers(read_all(modest))[1:]) == list(range(11))
        *found, last = answers(read_all(clients[-1]))  # what was parsed is answered: a piece of what was sent
        assert {answer.status for answer in found} == {200}
        assert len(found) < 1000
        assert last.status == 503
        assert last.json == {"error": "Service unavailable"}
    until(lambda: not running.server.state.connections)
    assert running.call(lambda: running.server.state.read_ahead_bytes) == 0


# Slow readers


def test_a_slow_reader_pauses_the_handler(running):
    """A handler writes only as fast as the client reads, and all of it arrives."""
    with running.connect() as client:
        client.sendall(STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert 0 < settled(lambda: running.application.sent) < BLOCKS / 4
        (answer,) = answers(read_all(client))
    assert (answer.whole, len(answer.body)) == (True, BLOCKS * len(BLOCK))
    assert running.application.sent == BLOCKS


def test_who_reads_slowly_is_not_dropped(running):
    """A client that reads a little before each deadline keeps its connection, however long it takes."""
    with running.connect() as client:
        client.sendall(b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        until(lambda: running.application.sent)
        (there,) = running.server.state.connections
        received = b""
        for _ in range(12):
            left = running.call(there._transport.get_write_buffer_size)
            while running.call(there._transport.get_write_buffer_size) == left:
                received += receive(client, 1 << 18)
            running.call(there.deadline_passed)
        (answer,) = answers(received + read_all(client))
    assert len(answer.body) == 512 * len(BLOCK)


@pytest.mark.parametrize(
    "requests",
    [
        STREAM,
        STREAM * 3,
        b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n",
        b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"\r\nGET / HTTP/1.1\r\nX",
        b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"\r\nnonsense\r\n\r\n",
    ],
    ids=["stream", "streams", "kept alive", "close", "head behind", "refusal behind"],
)
def test_who_never_reads_is_dropped(impatient, running, requests):
    """A client that reads nothing of its answer is dropped at the deadline."""
    impatient("STALLED_S", "LINGER_S")
    with running.connect() as client:
        client.sendall(requests)
        until(lambda: running.application.sent and not running.server.state.connections)
    until(lambda: running.application.gone == (requests[:11] == STREAM[:11]))


def test_who_asks_and_never_reads(impatient, running):
    """Pipelined requests of a client that reads nothing are not worked on any further."""
    impatient("STALLED_S")
    with running.connect() as client:
        client.sendall((b"GET /large?blocks=16 HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)
        until(lambda: running.application.sent and not running.server.state.connections)
    assert running.application.sent < 50


def test_a_head_behind_a_slow_reader_has_its_deadline(impatient, running):
    """Half a request behind an answer that is read slowly is not waited for without end."""
    impatient("HEAD_S")
    with running.connect() as client:
        client.sendall(STREAM + b"GET / HTTP/1.1\r\nHo")
        settled(lambda: running.application.sent)
        found = answers(read_all(client))
    assert [answer.status for answer in found] == [200, 408]
    assert len(found[0].body) == BLOCKS * len(BLOCK)


# Clients that vanish


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize(
    ("sent", "handlers", "gone"),
    [
        (b"", 0, 0),
        (b"GET / HT", 0, 0),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", 0, 0),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", 0, 0),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", 0, 0),
        (WAIT, 1, 1),
        (WAIT + b"GET / HTT", 1, 1),
        (WAIT.replace(b"1.1", b"1.0"), 1, 1),
        (STREAM, 0, 1),
        (WAIT + b"nonsense\r\n\r\n", 1, 1),
    ],
)
def test_a_client_vanishes(running, sent, handlers, gone, leave):
    """Whatever a client was in the middle of when it left, its handler learns of it and nothing stays behind."""
    running.call(gc.collect)
    before = running.call(living)
    client = running.connect()
    client.sendall(sent)
    until(lambda: len(running.server.state.connections) == 1)
    until(lambda: len(running.application.waiting) == handlers)
    until(lambda: sent != STREAM or running.application.sent)
    leave(client)
    until(lambda: not running.server.state.connections)
    until(lambda: running.application.gone == gone)
    running.application.waiting.clear()
    running.call(gc.collect)
    assert running.call(living) == before


def test_a_client_vanishes_behind_its_answer(running, caplog):
    """A client that has its answer may leave at once, as health checks do; no handler hears of it."""
    client = running.connect()
    client.sendall(WAIT.replace(HOST, HOST + b"Connection: close\r\n"))
    until(lambda: running.application.waiting)
    (handler,) = running.application.waiting
    finish = handler.request.connection.finish
    handler.request.connection.finish = lambda: (reset(client), finish())
    running.call(handler.told.set)
    until(lambda: not running.server.state.connections)
    assert caplog.records == []


@pytest.mark.parametrize("sent", [numbered(1), WAIT, numbered(1) + WAIT, numbered(1) * 300 + numbered(2)])
def test_who_has_said_all_is_answered(running, sent):
    """A client that closes its half behind its last request gets every answer, and then the end."""
    with running.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        found = answers(read_all(client))
    assert len(found) == sent.count(b"GET")
    assert all(answer.status == 200 and answer.whole for answer in found)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [(b"", []), (b"GET /", []), (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", [400])],
)
def test_who_ends_in_the_middle(running, sent, statuses):
    """Half a request and its end are at most refused, and the connection ends at once."""
    with running.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        assert [answer.status for answer in answers(read_all(client))] == statuses
    until(lambda: not running.server.state.connections)


# Deadlines


@pytest.mark.parametrize(
    ("deadline", "sent", "statuses"),
    [
        ("IDLE_S", b"", []),
        ("IDLE_S", b"\r\n", []),
        ("IDLE_S", numbered(1), [200]),
        ("IDLE_S", numbered(1) * 3, [200, 200, 200]),
        ("HEAD_S", b"G", [408]),
        ("HEAD_S", b"GET / HTTP/1.1\r\nHost: a\r\nX", [408]),
        ("HEAD_S", numbered(1) + b"GET / HTTP", [200, 408]),
        ("BODY_S", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", [408]),
        ("BODY_S", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", [100, 408]),
        ("BODY_S", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", [408]),
        ("BODY_S", numbered(1) * 2 + b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf", [200, 200, 408]),
        ("LINGER_S", b"nonsense\r\n\r\n", [400]),
    ],
)
def test_deadlines(impatient, running, deadline, sent, statuses):
    """Every state in which the server waits for the client ends by itself; a request that is overdue is told so."""
    impatient(deadline)
    began_s = time.monotonic()
    with running.connect() as client:
        client.sendall(sent)
        assert [answer.status for answer in answers(read_all(client))] == statuses
        until(lambda: not running.server.state.connections or statuses[-1:] == [408])
        assert deadline == "LINGER_S" or time.monotonic() - began_s >= SOON_S


@pytest.mark.parametrize(
    "part", [b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n"]
)
def test_dripping_buys_no_time(impatient, running, part):
    """A request that comes byte by byte has no longer than any other."""
    impatient("HEAD_S", "BODY_S")
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


def test_idle_after_reading_slowly(impatient, running):
    """A connection whose answer was finished long before it was read is not kept for ever after."""
    impatient("IDLE_S")
    with running.connect() as client:
        client.sendall(b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST + b"\r\n")
        until(lambda: running.application.sent)
        time.sleep(0.1)
        (answer,) = answers(read_all(client))
    assert len(answer.body) == 512 * len(BLOCK)


def test_a_handler_has_all_the_time_it_wants(impatient, running):
    """No deadline runs while the server is the one that is waited for."""
    impatient("IDLE_S", "HEAD_S", "BODY_S", "STALLED_S", "LINGER_S", seconds=0.05)
    with running.connect() as client:
        client.sendall(WAIT)
        time.sleep(0.4)
        assert len(running.server.state.connections) == 1
        running.call(running.application.waiting[0].told.set)
        assert answers(read_all(client))[0].body == b"told"


# Stopping


def test_stopping(running):
    """The idle are closed at once, those under way answered and closed, those that never end aborted at the limit."""
    with contextlib.ExitStack() as stack:
        idle, begun, waiting, stuck, streaming = (stack.enter_context(running.connect()) for _ in range(5))
        begun.sendall(b"GET /1 HTTP/1.1\r\nHo")
        waiting.sendall(WAIT)
        until(lambda: len(running.application.waiting) == 1)
        stuck.sendall(WAIT)
        until(lambda: len(running.application.waiting) == 2)
        streaming.sendall(STREAM)
        until(lambda: running.application.sent)
        assert len(running.server.state.connections) == 5
        closing = asyncio.run_coroutine_threadsafe(running.server.close(4.0), running.loop)
        assert read_all(idle) == b""
        with pytest.raises(ConnectionRefusedError):
            running.connect()
        begun.sendall(b"st: a\r\n\r\n")
        running.call(running.application.waiting[0].told.set)
        for client in (begun, waiting):
            (answer,) = answers(read_all(client))
            assert (answer.status, answer.headers["connection"], answer.whole) == (200, "close", True)
            client.close()
        (answer,) = answers(read_all(streaming))
        assert (answer.whole, len(answer.body)) == (True, BLOCKS * len(BLOCK))
        streaming.close()
        assert not closing.done()
        closing.result(PATIENCE_S)
        assert read_all(stuck) == b""
        assert running.application.gone == 1


def test_accepting_no_more(running):
    """Who was let in is served, and told that it was the last time; nobody else is let in; the idle are closed."""
    with contextlib.ExitStack() as stack:
        kept, fresh, late, waiting = (stack.enter_context(running.connect()) for _ in range(4))
        kept.sendall(numbered(1))
        assert answers(kept.recv(4096))[0].status == 200
        waiting.sendall(WAIT)
        until(lambda: running.application.waiting and len(running.server.state.connections) == 4)
        running.run(running.server.accept_no_more())
        with pytest.raises(ConnectionRefusedError):
            running.connect()
        for client in (kept, fresh):
            client.sendall(numbered(2))
            (answer,) = answers(read_all(client))
            assert (answer.status, answer.headers["connection"], answer.whole) == (200, "close", True)
        serving_the_rest = asyncio.run_coroutine_threadsafe(running.server.serve_the_rest(0.3), running.loop)
        assert read_all(late) == b""
        serving_the_rest.result(PATIENCE_S)
        assert len(running.server.state.connections) <= 3
        running.call(running.application.waiting[0].told.set)
        (answer,) = answers(read_all(waiting))
        assert (answer.headers["connection"], answer.body) == ("close", b"told")


def test_nobody_to_serve(running):
    """With nobody there, or as soon as all have gone, no time is spent on waiting for them."""
    with running.connect() as client:
        until(lambda: running.server.state.connections)
        running.run(running.server.accept_no_more())
        leaving = asyncio.run_coroutine_threadsafe(running.server.serve_the_rest(60), running.loop)
        client.close()
        leaving.result(PATIENCE_S)
    running.run(running.server.serve_the_rest(60))


# In their thousands


def test_connections_leave_nothing_behind(loop):
    """Three thousand connections that end in every way, and nothing of them is left."""
    with serving(loop=loop) as running:

        def open_and_close(count):
            for number in range(count):
                with running.connect() as client:
                    client.sendall(numbered(number, b"Connection: close\r\n" if number % 3 else b""))
                    if number % 3:
                        read_all(client)
                    if number % 3 == 2:
                        reset(client)
            until(lambda: not running.server.state.connections)

        open_and_close(100)
        running.call(gc.collect)
        before = running.call(living)
        open_and_close(3000)
        running.call(gc.collect)
        assert running.call(living) == before


def test_silent_connections_are_no_garbage(loop):
    """A connection that asked for nothing is gone when it ends, without the garbage collector."""
    with serving(loop=loop) as running:
        gc.collect()
        before = running.call(living)
        gc.disable()
        try:
            for number in range(300):
                with running.connect() as client:
                    client.sendall(b"GET /"[: number % 5])
            until(lambda: not running.server.state.connections)
            until(lambda: running.call(living) == before)
        finally:
            gc.enable()


def test_ten_thousand_that_say_nothing():
    """Ten thousand silent connections cost less than 4 KB each, the server goes on answering, and ends them all."""
    count = 10_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 1000)), hard))
    with serving() as running:
        before = resident_bytes()
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENTS, str(running.port), str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            assert process.stdout.readline() == "ready\n"
            until(lambda: len(running.server.state.connections) == count)
            assert (resident_bytes() - before) / count < 4096
            assert paths(running.exchange(numbered(1, b"Connection: close\r\n"))) == [1]
            running.run(running.server.close(5.0))
            ended, _ = process.communicate("\n", PATIENCE_S)
        assert int(ended) == count
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_who_goes_without_a_word_is_found(running):
    """Every accepted connection has the kernel give up on a client that acknowledges nothing any more."""
    with running.connect():
        while not running.server.state.connections:
            pass
        (only,) = running.server.state.connections
        accepted = only._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == listener.SILENT_S * 1000
