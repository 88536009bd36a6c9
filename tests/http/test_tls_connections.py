"""HTTPS: connections count from the moment when they are accepted, whatever becomes of their handshakes."""

import asyncio
import concurrent.futures
import contextlib
import socket
import ssl
import struct
import threading
import time

import pytest
from support.command import BOUND_S
from support.raw_http import answers, read_all, serving

from tornado_signal.limits.per_address import SPARE_CONNECTIONS_PER_CLIENT, Limits
from tornado_signal.settings.settings import Settings
from tornado_signal.system.tls import Tls
from tornado_signal.transport import listener

HALF = bytes.fromhex("160301020001000100")  # the beginning of a ClientHello that says it is longer
HEALTHY = b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\nConnection: close\r\n\r\n"


@pytest.fixture
def limits():
    """Few connections for each address, also of this machine, and in all."""
    return Limits(Settings(unlimited_addresses=(), max_connections_per_address=5, max_connections=12))


@pytest.fixture
def limited(loop, pair, limits):
    """A server with TLS and those limits; when it has ended nothing is counted any more."""
    with serving(loop=loop, tls=Tls(*pair).context, limiter=limits) as running:
        yield running
    assert counted(limits) == (0, 0)
    assert not running.server._handshakes


def counted(limits):
    return limits.connections, limits.refused


def connect_from(address, port):
    """A connection from one of this machine's addresses; nothing is said on it yet."""
    return socket.create_connection(("127.0.0.1", port), BOUND_S, source_address=(address, 0))


def status(client, context):
    """Do the handshake on a connection, ask something; the status, or None if the server has closed it."""
    try:
        with context.wrap_socket(client, server_hostname="127.0.0.1") as secure:
            secure.sendall(HEALTHY)
            found = answers(read_all(secure))
            return found[0].status if found else None
    except OSError:
        return None


def until(true, limit_s=BOUND_S):
    end_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end_s, "that did not come"
        time.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", HALF], ids=["silent", "half"])
def test_connections_before_their_handshake_are_within_the_limits(sent, limited, limits, trusting):
    with contextlib.ExitStack() as ends:
        silent = [ends.enter_context(connect_from("127.0.0.3", limited.port)) for _ in range(40)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
        until(lambda: limits.connections == 5)
        assert status(connect_from("127.0.0.2", limited.port), trusting) == 200
        assert {read_all(client) for client in silent[5:]} == {b""}
        until(lambda: counted(limits) == (5, 0))
        assert status(connect_from("127.0.0.3", limited.port), trusting) == 429
        for address in ("127.0.0.4", "127.0.0.5"):
            for _ in range(5):
                ends.enter_context(connect_from(address, limited.port))
        until(lambda: limits.connections == 12)
        assert status(connect_from("127.0.0.6", limited.port), trusting) == 503
        until(lambda: counted(limits) == (12, 0))
    until(lambda: counted(limits) == (0, 0))
    assert status(connect_from("127.0.0.3", limited.port), trusting) == 200


def reset(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def nothing(client, trusting):
    """Say nothing, and leave."""


def plain(client, trusting):
    client.sendall(HEALTHY)
    assert b"HTTP" not in read_all(client)


def noise(client, trusting):
    """Send bytes that are no handshake."""
    client.sendall(b"\0" * 100)
    assert read_all(client) == b""


def half(client, trusting):
    client.sendall(HALF)


def half_and_reset(client, trusting):
    """The same, without a farewell."""
    client.sendall(HALF)
    time.sleep(0.02)
    reset(client)


def half_closed(client, trusting):
    """Say that nothing more will come, and wait."""
    client.sendall(HALF)
    client.shutdown(socket.SHUT_WR)
    read_all(client)


def too_old(client, trusting):
    """Offer no version that the server speaks."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    assert status(client, old) is None


def distrustful(client, trusting):
    assert status(client, ssl.create_default_context()) is None


def reset_behind_it(client, trusting):
    """Do the handshake, and leave without a farewell."""
    reset(trusting.wrap_socket(client, server_hostname="127.0.0.1"))


def served(client, trusting):
    assert status(client, trusting) == 200


def overdue(client, trusting):
    assert read_all(client) == b""


def half_and_overdue(client, trusting):
    """The same in the middle of the first message."""
    client.sendall(HALF)
    overdue(client, trusting)


HANDSHAKES = [
    *(nothing, plain, noise, half, half_and_reset, half_closed, too_old, distrustful, reset_behind_it, served, overdue),
    *(half_and_overdue, reset),
]


@pytest.mark.parametrize("handshake", HANDSHAKES, ids=lambda each: each.__name__)
def test_however_a_handshake_ends_its_connection_counts_no_more(handshake, limited, limits, trusting, monkeypatch):
    with monkeypatch.context() as impatient:
        if handshake in (overdue, half_and_overdue):
            impatient.setattr(listener, "HEAD_S", 0.3)
        for _ in range(7):  # more than an address may have at a time
            with contextlib.closing(connect_from("127.0.0.3", limited.port)) as client:
                if handshake is reset:
                    reset(client)
                else:
                    until(lambda: limits.connections == 1)
                    handshake(client, trusting)
            until(lambda: counted(limits) == (0, 0))
    assert status(connect_from("127.0.0.2", limited.port), trusting) == 200
    until(lambda: not limited.server._handshakes and counted(limits) == (0, 0))
    assert status(connect_from("127.0.0.3", limited.port), trusting) == 200


def test_many_handshakes_that_fail_leave_the_counts_as_they_were(limited, limits, trusting):
    waves = [plain, half, half_and_reset, nothing, reset_behind_it]

    def attack(number):
        for _ in range(5):
            client = connect_from(f"127.0.0.{number % 3 + 3}", limited.port)
            with contextlib.suppress(OSError), contextlib.closing(client):
                waves[number % len(waves)](client, trusting)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: counted(limits) == (0, 0))
    assert status(connect_from("127.0.0.2", limited.port), trusting) == 200


def test_as_many_as_may_get_their_429_over_tls(limited, limits, trusting):
    with contextlib.ExitStack() as ends:
        for _ in range(5):
            ends.enter_context(connect_from("127.0.0.3", limited.port))
        until(lambda: limits.connections == 5)
        late = [ends.enter_context(connect_from("127.0.0.3", limited.port)) for _ in range(10)]
        until(lambda: limits.refused == SPARE_CONNECTIONS_PER_CLIENT)
        with concurrent.futures.ThreadPoolExecutor(len(late)) as threads:
            found = list(threads.map(lambda client: status(client, trusting), late))
        assert found == [429] * SPARE_CONNECTIONS_PER_CLIENT + [None] * (10 - SPARE_CONNECTIONS_PER_CLIENT)


def test_a_server_that_stops_ends_handshakes_at_once(limited, limits):
    with contextlib.ExitStack() as ends:
        for number in range(10):
            client = ends.enter_context(connect_from(f"127.0.0.{number + 3}", limited.port))
            client.sendall(HALF if number % 2 else b"")
        until(lambda: limits.connections == 10)
        limited.run(limited.server.close(10 * BOUND_S))  # it does not wait for them
        limited.run(asyncio.sleep(0.05))
        assert not limited.server._handshakes
        assert counted(limits) == (0, 0)


def test_who_was_accepted_before_the_drain_has_time_for_its_handshake(limited, limits, trusting):
    with connect_from("127.0.0.3", limited.port) as accepted:
        until(lambda: limits.connections == 1)
        draining = asyncio.run_coroutine_threadsafe(limited.server.accept_no_more(), limited.loop)
        time.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            connect_from("127.0.0.3", limited.port)
        secure = trusting.wrap_socket(accepted, server_hostname="127.0.0.1")
        draining.result(BOUND_S)
        secure.sendall(HEALTHY.replace(b"Connection: close\r\n", b""))
        (answer,) = answers(read_all(secure))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        secure.close()
    limited.run(limited.server.serve_the_rest(BOUND_S))


@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_connections_are_left_to_other_processes_and_taken_again(tls, loop, pair, trusting):
    def ask(client):
        return status(client, trusting) if tls else plain_status(client)

    with serving(loop=loop, tls=Tls(*pair).context if tls else None) as running:
        for _ in range(2):
            running.run(running.server.accept(True))
            assert ask(running.connect()) == 200
            for _ in range(2):
                running.run(running.server.accept(False))
            with running.connect() as left:
                running.run(asyncio.sleep(0.1))
                assert not running.server.state.connections
                running.run(running.server.accept(True))
                assert ask(left) == 200
        running.run(running.server.accept(False))
        running.run(running.server.accept_no_more())
        running.run(running.server.accept(True))
        with pytest.raises(ConnectionRefusedError):
            running.connect()


def plain_status(client):
    with client:
        client.sendall(HEALTHY)
        return answers(read_all(client))[0].status
