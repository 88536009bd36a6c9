"""The limit for unsent data of all clients: connections with the most unsent bytes are closed, and no others."""

import contextlib
import socket
import time
from operator import attrgetter
from pathlib import Path

import pytest
from support.raw_http import PATIENCE_S, answers, echo_application, on_both_loops, read_all, serving
from support.waiting import until
from tornado import web
from tornado.iostream import StreamClosedError

from tornado_signal.system.tls import Tls, read_certificate
from tornado_signal.transport import connection, listener
from tornado_signal.transport.listener import UNSENT_BYTES
from tornado_signal.transport.pacing import HIGH_WATER_BYTES, WRITE_BYTES
from tornado_signal.transport.state import MemoryBudget

MAX_UNSENT_BYTES = 8 * 1024 * 1024
# More than the kernel buffers for a client. A sweep leaves three times as much, so that others are closed first.
LARGE_BYTES = MAX_UNSENT_BYTES // 4


class FakeConnection:
    """A connection with the attributes that MemoryBudget uses."""

    def __init__(self, unsent, address, size):
        self.unsent = unsent
        self.remote_ip = self.client_address = address
        self.unsent_bytes = size
        self.closed = False

    def grow(self, size):
        self.unsent_bytes += size
        self.unsent.grown(self, self.unsent_bytes)

    def abort(self):
        assert not self.closed
        self.closed = True


@pytest.fixture
def unsent():
    """A budget of 100 bytes."""
    return MemoryBudget(100, attrgetter("unsent_bytes"))


def fake_connections(unsent, **sizes):
    """Create connections by address, with the given numbers of unsent bytes, in this order."""
    connections = {
        address: [FakeConnection(unsent, address, size) for size in values] for address, values in sizes.items()
    }
    for values in connections.values():
        for each in values:
            each.grow(0)
    return connections


def closed_sizes(connections):
    """Return the sizes of the closed connections by address."""
    return {
        address: [connection.unsent_bytes for connection in group if connection.closed]
        for address, group in connections.items()
    }


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
def test_address_with_most_unsent_bytes_loses_its_largest_connections_first(sizes, growths, closed, unsent):
    connections = fake_connections(unsent, **sizes)
    for address, index, size in growths:
        connections[address][index].grow(size)
    assert closed_sizes(connections) == {address: closed.get(address, []) for address in sizes}
    counted = sum(each.unsent_bytes for group in connections.values() for each in group if not each.closed)
    assert unsent.bytes == counted


def test_client_that_has_read_since_is_not_closed(unsent):
    connections = fake_connections(unsent, a=[50, 30], b=[15])
    for each in connections["a"]:
        each.unsent_bytes = 1
    connections["b"][0].grow(20)
    assert closed_sizes(connections) == {"a": [], "b": []}
    connections["b"][0].grow(63)
    assert closed_sizes(connections) == {"a": [], "b": []}
    connections["b"][0].grow(1)
    assert closed_sizes(connections) == {"a": [], "b": [99]}


def test_removed_connections_are_not_counted(unsent):
    connections = fake_connections(unsent, a=[90])
    unsent.forget(connections["a"][0])
    unsent.forget(connections["a"][0])
    others = fake_connections(unsent, b=[95])
    assert (closed_sizes(connections), closed_sizes(others)) == ({"a": []}, {"b": []})
    unsent.forget(others["b"][0])
    assert (unsent.bytes, unsent._sizes) == (0, {})


# With the real transport.


class LargeHandler(web.RequestHandler):
    """Sends the requested number of bytes at once."""

    async def get(self):
        with contextlib.suppress(StreamClosedError):
            await self.finish(b"x" * int(self.get_argument("bytes")))


@pytest.fixture
def running(loop, monkeypatch):
    """A server whose clients may leave a few megabytes unread in total, and wait for each other."""
    monkeypatch.setattr(connection, "STALLED_S", 300.0)
    with serving(lambda: echo_application(("/large", LargeHandler)), loop=loop) as running:
        running.call(
            setattr, running.server.state, "unsent", MemoryBudget(MAX_UNSENT_BYTES, attrgetter("unsent_bytes"))
        )
        yield running


def large_request(size, close=True):
    last = b"Connection: close\r\n" if close else b""
    return b"GET /large?bytes=%d HTTP/1.1\r\nHost: x\r\n%b\r\n" % (size, last)


def connect(running, address):
    """Connect from one of the loopback addresses with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.bind((address, 0))
    client.connect(("127.0.0.1", running.port))
    return client


def queued_bytes(port, other):
    """Return the bytes that the kernel still has to send from port `port` to `other` or has no acknowledgement for."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if [int(address.partition(":")[2], 16) for address in (local, remote)] == [port, other]:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("no such connection")


@on_both_loops
def test_unread_responses_stay_within_the_budget(running):
    def unsent_bytes():
        return sum(connection.unsent_bytes for connection in running.server.state.connections)

    with contextlib.ExitStack() as stack:
        honest = stack.enter_context(connect(running, "127.0.0.2"))
        honest.sendall(large_request(LARGE_BYTES))  # less than each of the others, whatever the kernel buffers
        until(lambda: running.call(unsent_bytes))
        for number in range(30):
            client = stack.enter_context(connect(running, "127.0.0.3"))
            client.sendall(large_request(LARGE_BYTES * 3 // 2, close=number % 2 == 0))
            until(lambda: running.call(running.server.state.unsent._sizes.__len__))
            assert running.call(unsent_bytes) <= MAX_UNSENT_BYTES
        until(lambda: len(running.server.state.connections) < 10)
        assert running.call(unsent_bytes) <= MAX_UNSENT_BYTES
        with connect(running, "127.0.0.3") as client_2:  # the address is still served
            client_2.sendall(large_request(5))
            assert answers(read_all(client_2))[0].body == b"xxxxx"
        (response,) = answers(read_all(honest))
        assert (response.whole, len(response.body)) == (True, LARGE_BYTES)
    until(lambda: not running.server.state.connections)
    assert running.call(lambda: (running.server.state.unsent.bytes, running.server.state.unsent._sizes)) == (0, {})


def test_unread_response_over_tls_is_counted(loop, pair, trusting):
    tls = Tls(read_certificate(*pair)).context
    with (
        serving(lambda: echo_application(("/large", LargeHandler)), loop=loop, tls=tls) as running,
        trusting.wrap_socket(connect(running, "127.0.0.3"), server_hostname="127.0.0.1") as client,
    ):
        client.sendall(large_request(LARGE_BYTES))
        until(lambda: running.call(lambda: running.server.state.unsent.bytes) > LARGE_BYTES * 3 // 4)
        (response,) = answers(read_all(client))
        assert (response.whole, len(response.body)) == (True, LARGE_BYTES)


@on_both_loops
def test_tls_holds_little_of_what_a_client_reads_slowly(loop, pair, trusting):
    def sizes():
        transport = connection._transport
        below = transport._transport.get_write_buffer_size()
        return below, transport.get_write_buffer_size() - below, sum(map(len, transport._waiting))

    tls = Tls(read_certificate(*pair)).context
    with (
        serving(lambda: echo_application(("/large", LargeHandler)), loop=loop, tls=tls) as running,
        trusting.wrap_socket(connect(running, "127.0.0.3"), server_hostname="127.0.0.1") as client,
    ):
        client.sendall(large_request(LARGE_BYTES, close=False))
        received = client.recv(65536)
        (connection,) = running.server.state.connections
        while len(received) < LARGE_BYTES:
            received += client.recv(65536)
            below, counted, waiting = running.call(sizes)
            assert below <= HIGH_WATER_BYTES + 2 * WRITE_BYTES
            assert counted == waiting
        until(lambda: not running.call(lambda: running.server.state.unsent.bytes))
        client.sendall(large_request(LARGE_BYTES, close=False))
        until(lambda: running.call(sizes)[1])
        running.call(connection.abort)
        assert running.call(sizes)[1:] == (0, 0)


@pytest.fixture
def hasty(monkeypatch):
    """A server that lingers for a moment only."""
    monkeypatch.setattr(listener, "TICK_S", 0.02)
    monkeypatch.setattr(connection, "LINGER_S", 0.02)


def test_kernel_buffers_little_unread_data_and_the_rest_waits(hasty, running):
    with connect(running, "127.0.0.3") as client:
        client.sendall(large_request(LARGE_BYTES))
        until(lambda: running.call(lambda: running.server.state.unsent.bytes))
        assert 0 < queued_bytes(running.port, client.getsockname()[1]) < 2 * UNSENT_BYTES
        time.sleep(0.2)  # for the client to be closed, if that were a matter of lingering
        (response,) = answers(read_all(client))
        assert (response.whole, len(response.body)) == (True, LARGE_BYTES)


def test_clients_that_read_everything_are_never_closed(running):
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            client = stack.enter_context(connect(running, "127.0.0.3"))
            client.sendall(large_request(LARGE_BYTES, close=False))
            received = 0
            while received < LARGE_BYTES:
                received += len(client.recv(LARGE_BYTES))
        until(lambda: running.call(lambda: running.server.state.unsent.bytes) == 0)
        assert len(running.server.state.connections) == 12


def test_response_counts_until_it_is_sent_completely(running):
    state = running.server.state

    def buffered_bytes():
        return sum(connection._transport.get_write_buffer_size() for connection in state.connections)

    with connect(running, "127.0.0.3") as client:
        client.sendall(large_request(LARGE_BYTES, close=False))
        until(lambda: state.unsent.bytes)
        before = running.call(buffered_bytes)
        while running.call(buffered_bytes) > before // 2:
            client.recv(65536)
        assert running.call(lambda: sum(connection.unsent_bytes for connection in state.connections)) >= LARGE_BYTES
        assert state.unsent.bytes >= LARGE_BYTES
