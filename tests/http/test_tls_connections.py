"""HTTPS: connections count from accept on, however their handshakes end."""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import time

import pytest
from support.command import BOUND_S
from support.raw_http import answers, on_both_loops, read_all, reset, serving
from support.waiting import until

from tornado_signal.limits.per_address import Limits
from tornado_signal.settings.settings import Settings
from tornado_signal.system.tls import Tls, read_certificate
from tornado_signal.transport import listener
from tornado_signal.transport.connection import Connection
from tornado_signal.transport.listener import PLAIN_HTTP_RESPONSE

HALF = bytes.fromhex("160301020001000100")  # the first bytes of a ClientHello that announces more
HEALTHY = b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: https://app.example\r\nConnection: close\r\n\r\n"


@pytest.fixture
def limits():
    """Limits with few connections per address, including loopback, and in total."""
    return Limits(Settings(unlimited_addresses=(), max_connections_per_address=5, max_connections=12))


@pytest.fixture
def limited(loop, pair, limits):
    """A server with TLS and `limits`. All counts must be zero when it has stopped."""
    with serving(loop=loop, tls=Tls(read_certificate(*pair)).context, limiter=limits) as running:
        yield running
    assert connection_counts(limits) == (0, 0)
    assert not running.server._handshakes


def connection_counts(limits):
    return limits.connections, limits.refused


def connect_from(address, port):
    """Connect from one of the loopback addresses and send nothing."""
    return socket.create_connection(("127.0.0.1", port), BOUND_S, source_address=(address, 0))


def status(client, context=None):
    """Send a request, after a handshake if there is a context. Return the status, or None if the server closed."""
    try:
        with context.wrap_socket(client, server_hostname="127.0.0.1") if context else client as connected:
            connected.sendall(HEALTHY)
            responses = answers(read_all(connected))
            return responses[0].status if responses else None
    except OSError:
        return None


@pytest.mark.parametrize("sent", [b"", HALF], ids=["silent", "half"])
def test_connections_count_before_their_handshake(sent, limited, limits, trusting):
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect_from("127.0.0.3", limited.port)) for _ in range(40)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
        until(lambda: limits.connections == 5)
        assert status(connect_from("127.0.0.2", limited.port), trusting) == 200
        assert {read_all(client) for client in silent[5:]} == {b""}
        until(lambda: connection_counts(limits) == (5, 0))
        assert status(connect_from("127.0.0.3", limited.port), trusting) == 429
        for address in ("127.0.0.4", "127.0.0.5"):
            for _ in range(5):
                stack.enter_context(connect_from(address, limited.port))
        until(lambda: limits.connections == 12)
        assert status(connect_from("127.0.0.6", limited.port), trusting) == 503
        until(lambda: connection_counts(limits) == (12, 0))
    until(lambda: connection_counts(limits) == (0, 0))
    assert status(connect_from("127.0.0.3", limited.port), trusting) == 200


def send_plain_http(client, trusting):
    client.sendall(HEALTHY)
    assert read_all(client) in (b"", PLAIN_HTTP_RESPONSE)  # nothing if there are too many connections


def offer_old_tls(client, trusting):
    """Offer only a TLS version that the server does not support."""
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    assert status(client, old) is None


def send(client, data, *ends):
    """Send data and end the connection in one of several ways."""
    client.sendall(data)
    for end in ends:
        end(client)


def hang_up(client):
    client.shutdown(socket.SHUT_WR)
    read_all(client)


def check(client, context, expected):
    assert status(client, context) == expected


def is_closed(client):
    assert read_all(client) == b""


HANDSHAKES = {
    "nothing": lambda client, trusting: None,
    "plain HTTP": send_plain_http,
    "garbage": lambda client, trusting: send(client, b"\0" * 100, is_closed),
    "half": lambda client, trusting: send(client, HALF),
    "half, and a reset": lambda client, trusting: send(client, HALF, lambda client: time.sleep(0.02), reset),
    "half, and an end": lambda client, trusting: send(client, HALF, hang_up),
    "old TLS": offer_old_tls,
    "a rejected certificate": lambda client, trusting: check(client, ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), None),
    "a reset after it": lambda client, trusting: reset(trusting.wrap_socket(client, server_hostname="127.0.0.1")),
    "a request": lambda client, trusting: check(client, trusting, 200),
    "nothing until the deadline": lambda client, trusting: is_closed(client),
    "half until the deadline": lambda client, trusting: send(client, HALF, is_closed),
    "a reset": lambda client, trusting: reset(client),
}


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("handshake", HANDSHAKES)
def test_connection_is_not_counted_or_kept_however_its_handshake_ends(
    handshake, limited, limits, trusting, monkeypatch
):
    with monkeypatch.context() as patch:
        if "deadline" in handshake:
            patch.setattr(listener, "HEAD_S", 0.1)
        for _ in range(7):  # more connections than an address may have open
            with contextlib.closing(connect_from("127.0.0.3", limited.port)) as client:
                if handshake != "a reset":
                    until(lambda: limits.connections == 1)
                HANDSHAKES[handshake](client, trusting)
            until(lambda: connection_counts(limits) == (0, 0))
    assert status(connect_from("127.0.0.2", limited.port), trusting) == 200
    until(lambda: not limited.server._handshakes and connection_counts(limits) == (0, 0))
    assert status(connect_from("127.0.0.3", limited.port), trusting) == 200
    until(lambda: not any(isinstance(each, Connection) for each in gc.get_objects()))


def test_plain_http_is_told_to_use_https_and_logged_once(limited, caplog):
    for _ in range(2):
        with connect_from("127.0.0.3", limited.port) as client:
            client.sendall(HEALTHY)
            response = read_all(client)
        assert response.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert json.loads(response.partition(b"\r\n\r\n")[2])["error"].endswith("use https:// or wss://")
    assert sum("plain HTTP" in record.getMessage() for record in caplog.records) == 1


def test_stopping_server_ends_handshakes_immediately(limited, limits):
    with contextlib.ExitStack() as stack:
        for number in range(10):
            client = stack.enter_context(connect_from(f"127.0.0.{number + 3}", limited.port))
            client.sendall(HALF if number % 2 else b"")
        until(lambda: limits.connections == 10)
        limited.run(limited.server.close(10 * BOUND_S))  # close() does not wait for handshakes
        until(lambda: not limited.server._handshakes and connection_counts(limits) == (0, 0))


def test_connection_accepted_before_the_drain_can_complete_its_handshake(limited, limits, trusting):
    with connect_from("127.0.0.3", limited.port) as accepted:
        until(lambda: limits.connections == 1)
        draining = asyncio.run_coroutine_threadsafe(limited.server.accept_no_more(), limited.loop)
        until(lambda: not limited.server._tls_sockets)
        with pytest.raises(ConnectionRefusedError):
            connect_from("127.0.0.3", limited.port)
        secure = trusting.wrap_socket(accepted, server_hostname="127.0.0.1")
        draining.result(BOUND_S)
        secure.sendall(HEALTHY.replace(b"Connection: close\r\n", b""))
        (response,) = answers(read_all(secure))
        assert (response.status, response.headers["connection"]) == (200, "close")
        secure.close()
    limited.run(limited.server.serve_the_rest(BOUND_S))


@on_both_loops
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
def test_accepting_can_be_paused_and_resumed(tls, loop, pair, trusting):
    context = trusting if tls else None
    with serving(loop=loop, tls=Tls(read_certificate(*pair)).context if tls else None) as running:
        for _ in range(2):
            running.run(running.server.accept(True))
            assert status(running.connect(), context) == 200
            for _ in range(2):
                running.run(running.server.accept(False))
            with running.connect() as waiting:
                running.run(asyncio.sleep(0.1))
                assert not running.server.state.connections
                running.run(running.server.accept(True))
                assert status(waiting, context) == 200
        running.run(running.server.accept(False))
        running.run(running.server.accept_no_more())
        running.run(running.server.accept(True))
        with pytest.raises(ConnectionRefusedError):
            running.connect()
