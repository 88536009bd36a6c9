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
from tornado_signal.transport.exchange import HTTPStream

HOST = b"Host: a.example\r\n"
CLOSE = b"Connection: close\r\n"
WAIT = b"GET /wait HTTP/1.1\r\n" + HOST + b"\r\n"
STREAM = b"GET /stream HTTP/1.1\r\n" + HOST + b"\r\n"
LARGE = b"GET /large?blocks=512 HTTP/1.1\r\n" + HOST
POST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
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
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def numbered(number, more=b""):
    return b"GET /%d HTTP/1.1\r\n" % number + HOST + more + b"\r\n"


def paths(found):
    return [int(answer.json["request"][1][1:]) for answer in found]


def living():
    gc.collect()
    return sum(isinstance(each, Connection | HTTPStream) for each in gc.get_objects())


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_a_thousand_pipelined_requests_are_answered_in_their_order(running, at_once):
    requests = [*map(numbered, range(999)), numbered(999, CLOSE)]
    with running.connect() as client:
        for first in range(0, 1000, at_once):
            client.sendall(b"".join(requests[first : first + at_once]))
        assert paths(answers(read_all(client))) == list(range(1000))


def test_little_is_read_and_less_parsed_behind_a_request_that_waits(running):
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


def test_a_body_behind_a_request_that_waits_stays_with_its_sender(running):
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


def test_bytes_behind_requests_that_wait_are_bounded_for_all_together(running, monkeypatch):
    monkeypatch.setattr(running.server.state.unfinished, "max_bytes", 1_000_000)
    much = WAIT + numbered(1) * 10_000
    little = WAIT + b"".join(map(numbered, range(10))) + numbered(10, CLOSE)
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
        settled(lambda: running.call(lambda: running.server.state.unfinished.bytes))
        assert 100_000 < running.call(lambda: running.server.state.unfinished.bytes) <= 1_000_000
        assert sum(there._refused == 503 for there in running.server.state.connections) > 10
        modest = ends.enter_context(running.connect())
        modest.sendall(little)
        until(lambda: len(running.application.waiting) == 31)
        with running.connect() as other:
            other.sendall(numbered(7, CLOSE))
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
    assert running.call(lambda: running.server.state.unfinished.bytes) == 0


def test_a_slow_reader_pauses_the_handler(running):
    with running.connect() as client:
        client.sendall(STREAM.replace(HOST, HOST + CLOSE))
        assert 0 < settled(lambda: running.application.sent) < BLOCKS / 4
        (answer,) = answers(read_all(client))
    assert (answer.whole, len(answer.body)) == (True, BLOCKS * len(BLOCK))
    assert running.application.sent == BLOCKS


def test_who_reads_a_little_before_each_deadline_is_not_dropped(running):
    with running.connect() as client:
        client.sendall(LARGE + CLOSE + b"\r\n")
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
        LARGE + b"\r\n",
        LARGE + CLOSE + b"\r\n",
        LARGE + b"\r\nGET / HTTP/1.1\r\nX",
        LARGE + b"\r\nnonsense\r\n\r\n",
    ],
    ids=["stream", "streams", "kept alive", "close", "head behind", "refusal behind"],
)
def test_who_never_reads_is_dropped(impatient, running, requests):
    impatient("STALLED_S", "LINGER_S")
    with running.connect() as client:
        client.sendall(requests)
        until(lambda: running.application.sent and not running.server.state.connections)
    until(lambda: running.application.gone == (requests[:11] == STREAM[:11]))


def test_no_more_work_is_done_for_who_asks_and_never_reads(impatient, running):
    impatient("STALLED_S")
    with running.connect() as client:
        client.sendall((b"GET /large?blocks=16 HTTP/1.1\r\n" + HOST + b"\r\n") * 1000)
        until(lambda: running.application.sent and not running.server.state.connections)
    assert running.application.sent < 50


def test_a_head_behind_a_slow_reader_has_its_deadline(impatient, running):
    impatient("HEAD_S")
    with running.connect() as client:
        client.sendall(STREAM + b"GET / HTTP/1.1\r\nHo")
        settled(lambda: running.application.sent)
        found = answers(read_all(client))
    assert [answer.status for answer in found] == [200, 408]
    assert len(found[0].body) == BLOCKS * len(BLOCK)


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize(
    ("sent", "handlers", "gone"),
    [
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
    ],
)
def test_of_a_client_that_vanishes_nothing_stays_and_its_handler_learns_of_it(running, sent, handlers, gone, leave):
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
    client = running.connect()
    client.sendall(WAIT.replace(HOST, HOST + b"Connection: close\r\n"))
    until(lambda: running.application.waiting)
    (handler,) = running.application.waiting
    finish = handler.request.connection.finish
    handler.request.connection.finish = lambda: (reset(client), finish())
    running.call(handler.told.set)
    until(lambda: not running.server.state.connections)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (numbered(1), [200]),
        (WAIT, [200]),
        (numbered(1) + WAIT, [200] * 2),
        (numbered(1) * 301, [200] * 301),
        (b"", []),
        (b"GET /", []),
        (POST + b"half", [400]),
    ],
)
def test_who_closes_its_half_gets_every_answer_and_the_end(running, sent, statuses):
    with running.connect() as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        found = answers(read_all(client))
    assert [answer.status for answer in found] == statuses
    assert all(answer.whole for answer in found)
    until(lambda: not running.server.state.connections)


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
        ("BODY_S", POST, [408]),
        ("BODY_S", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n", [100, 408]),
        ("BODY_S", CHUNKED + b"3\r\nabc\r\n", [408]),
        ("BODY_S", numbered(1) * 2 + POST + b"half", [200, 200, 408]),
        ("LINGER_S", b"nonsense\r\n\r\n", [400]),
    ],
)
def test_every_state_in_which_the_server_waits_ends_by_itself(impatient, running, deadline, sent, statuses):
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


def test_a_connection_that_was_read_slowly_is_not_kept_for_ever(impatient, running):
    impatient("IDLE_S")
    with running.connect() as client:
        client.sendall(LARGE + b"\r\n")
        until(lambda: running.application.sent)
        time.sleep(0.1)
        (answer,) = answers(read_all(client))
    assert len(answer.body) == 512 * len(BLOCK)


def test_a_handler_has_all_the_time_it_wants(impatient, running):
    impatient("IDLE_S", "HEAD_S", "BODY_S", "STALLED_S", "LINGER_S", seconds=0.05)
    with running.connect() as client:
        client.sendall(WAIT)
        time.sleep(0.4)
        assert len(running.server.state.connections) == 1
        running.call(running.application.waiting[0].told.set)
        assert answers(read_all(client))[0].body == b"told"


def test_a_server_that_stops_answers_what_is_under_way_until_its_limit(running):
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


def test_who_was_let_in_before_the_end_is_served_for_the_last_time(running):
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


def test_no_time_is_spent_on_waiting_for_nobody(running):
    with running.connect() as client:
        until(lambda: running.server.state.connections)
        running.run(running.server.accept_no_more())
        leaving = asyncio.run_coroutine_threadsafe(running.server.serve_the_rest(60), running.loop)
        client.close()
        leaving.result(PATIENCE_S)
    running.run(running.server.serve_the_rest(60))


def test_a_thousand_connections_that_end_in_every_way_leave_nothing_behind(loop):
    with serving(loop=loop) as running:

        def open_and_close(count):
            for number in range(count):
                with running.connect() as client:
                    client.sendall(numbered(number, CLOSE if number % 3 else b""))
                    if number % 3:
                        read_all(client)
                    if number % 3 == 2:
                        reset(client)
            until(lambda: not running.server.state.connections)
            running.call(gc.collect)
            return running.call(living)

        assert open_and_close(100) == open_and_close(1000)


def test_a_silent_connection_is_gone_without_the_garbage_collector(loop):
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


def test_ten_thousand_silent_connections_cost_less_than_4_kb_each(descriptors):
    count = 10_000
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
            assert paths(running.exchange(numbered(1, CLOSE))) == [1]
            running.run(running.server.close(5.0))
            ended, _ = process.communicate("\n", PATIENCE_S)
        assert int(ended) == count


def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_the_kernel_gives_up_on_a_client_that_acknowledges_nothing(running):
    with running.connect():
        until(lambda: running.server.state.connections)
        (only,) = running.server.state.connections
        accepted = only._transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == listener.SILENT_S * 1000
