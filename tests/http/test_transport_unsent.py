"""What clients do not read is bounded for all together: those who hold most of it are ended, and nobody else."""

import contextlib
import socket
import time
from operator import attrgetter
from pathlib import Path

import pytest
from support.raw_http import PATIENCE_S, answers, echo_application, read_all, serving
from tornado import web
from tornado.iostream import StreamClosedError

from tornado_signal.transport.listener import UNSENT_BYTES
from tornado_signal.transport.state import MemoryBudget

MOST_BYTES = 8 * 1024 * 1024
LARGE_BYTES = 4 * 1024 * 1024  # more than the kernel takes for a client


class Slow:
    """A connection of the transport's, as far as it is known there."""

    def __init__(self, unsent, address, size):
        self.unsent = unsent
        self.remote_ip = self.client_address = address
        self.unsent_bytes = size
        self.ended = False

    def grow(self, size):
        self.unsent_bytes += size
        self.unsent.grown(self, self.unsent_bytes)

    def abort(self):
        assert not self.ended
        self.ended = True


@pytest.fixture
def unsent():
    """The bound of connections that may have 100 bytes unsent."""
    return MemoryBudget(100, attrgetter("unsent_bytes"))


def slow(unsent, **sizes):
    """Connections by address, with so many bytes unsent each; they come in this order."""
    found = {address: [Slow(unsent, address, size) for size in each] for address, each in sizes.items()}
    for each in found.values():
        for connection in each:
            connection.grow(0)
    return found


def ended(found):
    """The sizes of those that were ended, by address."""
    return {address: [one.unsent_bytes for one in each if one.ended] for address, each in found.items()}


def test_as_much_as_is_allowed_ends_nobody(unsent):
    found = slow(unsent, a=[60], b=[20])
    for _ in range(4):
        found["b"][0].grow(5)
    assert ended(found) == {"a": [], "b": []}
    found["b"][0].grow(1)
    assert ended(found) == {"a": [60], "b": []}


def test_the_address_with_the_most_loses_its_largest_first(unsent):
    found = slow(unsent, many=[10, 14, 12, 11, 13], one=[38])
    assert ended(found) == {"many": [], "one": []}
    found["one"][0].grow(3)
    assert ended(found) == {"many": [14, 13], "one": []}


def test_an_address_that_has_lost_enough_loses_no_more(unsent):
    found = slow(unsent, a=[30, 21], b=[30, 19])
    found["b"][1].grow(1)
    assert ended(found) == {"a": [30], "b": []}
    found["a"][1].grow(30)
    assert ended(found) == {"a": [30, 51], "b": []}


def test_who_has_read_meanwhile_is_not_ended_for_what_it_had(unsent):
    found = slow(unsent, a=[50, 30], b=[15])
    for one in found["a"]:
        one.unsent_bytes = 1
    found["b"][0].grow(20)
    assert ended(found) == {"a": [], "b": []}
    found["b"][0].grow(63)
    assert ended(found) == {"a": [], "b": []}
    found["b"][0].grow(1)
    assert ended(found) == {"a": [], "b": [99]}


def test_who_has_caught_up_or_was_never_counted_is_forgotten(unsent):
    found = slow(unsent, a=[90])
    unsent.forget(found["a"][0])
    unsent.forget(found["a"][0])
    others = slow(unsent, b=[95])
    assert (ended(found), ended(others)) == ({"a": []}, {"b": []})
    unsent.forget(others["b"][0])
    assert (unsent.bytes, unsent._sizes) == (0, {})


def test_nothing_is_left_of_one_with_more_than_all_may_have(unsent):
    found = slow(unsent, a=[101])
    assert ended(found) == {"a": [101]}
    assert (unsent.bytes, unsent._sizes) == (0, {})


# The real one.


class Large(web.RequestHandler):
    """Sends as many bytes as it is asked for at once."""

    async def get(self):
        with contextlib.suppress(StreamClosedError):
            await self.finish(b"x" * int(self.get_argument("bytes")))


@pytest.fixture
def running(loop):
    """A server whose clients may leave a few megabytes unread."""
    with serving(lambda: echo_application(("/large", Large)), loop=loop) as running:
        running.call(setattr, running.server.state, "unsent", MemoryBudget(MOST_BYTES, attrgetter("unsent_bytes")))
        yield running


def large(size, close=True):
    last = b"Connection: close\r\n" if close else b""
    return b"GET /large?bytes=%d HTTP/1.1\r\nHost: x\r\n%b\r\n" % (size, last)


def connect(running, address):
    """A client's connection from one of this machine's addresses, that takes little by itself."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.bind((address, 0))
    client.connect(("127.0.0.1", running.port))
    return client


def queued_bytes(port, other):
    """What the kernel has to send from a port to another one, and what of that is not acknowledged yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, there, _, queues, *_ = line.split()
        if [int(each.partition(":")[2], 16) for each in (here, there)] == [port, other]:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("there is no such connection")


def until(condition):
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "waited in vain"
        time.sleep(0.005)


def test_answers_that_nobody_reads_hold_no_more_than_is_allowed(running):
    def held():
        return sum(each.unsent_bytes for each in running.server.state.connections)

    with contextlib.ExitStack() as ends:
        honest = ends.enter_context(connect(running, "127.0.0.2"))
        honest.sendall(large(LARGE_BYTES))  # less than one of the others, whatever the kernel takes of each
        until(lambda: running.call(held))
        for number in range(30):
            client = ends.enter_context(connect(running, "127.0.0.3"))
            client.sendall(large(LARGE_BYTES * 3 // 2, close=number % 2 == 0))
            until(lambda: running.call(running.server.state.unsent._sizes.__len__))
            assert running.call(held) <= MOST_BYTES
        until(lambda: len(running.server.state.connections) < 10)
        assert running.call(held) <= MOST_BYTES
        with connect(running, "127.0.0.3") as asking:  # what it still has open is served
            asking.sendall(large(5))
            assert answers(read_all(asking))[0].body == b"xxxxx"
        (answer,) = answers(read_all(honest))
        assert (answer.whole, len(answer.body)) == (True, LARGE_BYTES)
    until(lambda: not running.server.state.connections)
    assert running.call(lambda: (running.server.state.unsent.bytes, running.server.state.unsent._sizes)) == (0, {})


def test_the_kernel_keeps_little_of_what_a_client_does_not_read(running):
    with connect(running, "127.0.0.3") as client:
        client.sendall(large(LARGE_BYTES))
        until(lambda: running.call(lambda: running.server.state.unsent.bytes))
        assert 0 < queued_bytes(running.port, client.getsockname()[1]) < 2 * UNSENT_BYTES
        (answer,) = answers(read_all(client))
        assert (answer.whole, len(answer.body)) == (True, LARGE_BYTES)


def test_readers_that_read_all_are_never_ended(running):
    with contextlib.ExitStack() as ends:
        for _ in range(12):
            client = ends.enter_context(connect(running, "127.0.0.3"))
            client.sendall(large(LARGE_BYTES, close=False))
            received = 0
            while received < LARGE_BYTES:
                received += len(client.recv(LARGE_BYTES))
        until(lambda: running.call(lambda: running.server.state.unsent.bytes) == 0)
        assert len(running.server.state.connections) == 12


def test_an_answer_counts_until_its_client_has_taken_all_of_it(running):
    state = running.server.state

    def left():
        return sum(each._transport.get_write_buffer_size() for each in state.connections)

    with connect(running, "127.0.0.3") as client:
        client.sendall(large(LARGE_BYTES, close=False))
        until(lambda: state.unsent.bytes)
        before = running.call(left)
        while running.call(left) > before // 2:
            client.recv(65536)
        assert running.call(lambda: sum(each.unsent_bytes for each in state.connections)) >= LARGE_BYTES
        assert state.unsent.bytes >= LARGE_BYTES
