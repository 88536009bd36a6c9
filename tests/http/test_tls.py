"""HTTPS: certificates reloaded under open connections, and connections that count however their handshakes end."""

import asyncio
import contextlib
import gc
import json
import os
import re
import resource
import signal
import socket
import ssl
import threading
import time

import pytest
from cryptography import x509
from support.certificates import client_context, make_pair, name_of
from support.command import BOUND_S, ORIGIN, run
from support.processes import cpu_s
from support.raw_http import answers, on_both_loops, read_all, receive_until, reset, serving
from support.scraping import scrape
from support.waiting import until

from tornado_signal.errors import OperatorError
from tornado_signal.limits.per_address import Limits
from tornado_signal.settings.settings import Settings
from tornado_signal.system.tls import Tls, read_certificate
from tornado_signal.transport import listener
from tornado_signal.transport.connection import Connection
from tornado_signal.transport.listener import PLAIN_HTTP_RESPONSE

HEALTH = f"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n".encode()
HEALTHY = HEALTH + b"Connection: close\r\n\r\n"
HALF = bytes.fromhex("160301020001000100")  # the first bytes of a ClientHello that announces more
HUNG_UP = r"UNEXPECTED_EOF|\(EOF\)"  # the client's error if the server closes during a handshake


@pytest.fixture
def server(start, pair, trusting):
    server = start(*pair.flags)
    server.tls = trusting
    return server


def connect(port, context):
    """Connect and complete the handshake."""
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), BOUND_S), server_hostname="127.0.0.1")


def request_status(client):
    """Send a request on a persistent connection and return the status of the response."""
    client.sendall(HEALTH + b"\r\n")
    (response,) = answers(receive_until(client, b"}"))
    return response.status


def certificate_name(port, context):
    """Return the name of the certificate of a new connection, after a request on it."""
    with connect(port, context) as client:
        assert request_status(client) == 200
        return name_of(client)


def reload(server, pattern):
    """Reload the certificate and check that the next log line matches `pattern`."""
    server.process.send_signal(signal.SIGHUP)
    line = server.process.stderr.readline()
    server.log.append(line)
    assert re.search(pattern, line), line


def problems_logged(server):
    """Return the log lines that are not INFO."""
    return [line for line in server.log if " INFO tornado_signal" not in line]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_2_and_1_3_with_http_1_1_only(subtests, server, pairs):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for protocols in (["h2", "http/1.1"], ["http/1.1"], ["h2"], []):
            context = client_context(*pairs.values())
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(protocols)
            with subtests.test(f"{version.name} {protocols}"), connect(server.port, context) as client:
                assert client.version() == version.name.replace("_", ".")
                assert client.selected_alpn_protocol() == ("http/1.1" if "http/1.1" in protocols else None)
                assert request_status(client) == 200
    context = client_context(*pairs.values())
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=HUNG_UP), connect(server.port, context):
        pass


def test_tls_over_a_unix_socket(tmp_path, pair, trusting, start):
    server = start(*pair.flags, "--address", f"unix:{tmp_path}/signal.sock")
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(str(tmp_path / "signal.sock"))
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            assert request_status(client) == 200
    assert server.stop() == 0


FOLDER = object()


def unusable_pairs(pair, pairs):
    """Return the contents of unusable certificates and keys, each with the expected error."""
    certificate, key = (path.read_bytes() for path in pair)
    encrypted_pair = make_pair(pair.key.parent, "locked", passphrase=b"secret")
    missing = "No such file or directory; see --tls-"
    unusable = f"cannot use the TLS certificate {pair.certificate} with the key {pair.key}: "
    mismatched = unusable + "the key does not belong to the certificate"
    no_pem = "{} does not contain a {} in PEM form; name one that does with --tls-{}"
    encrypted = f"the key {pair.key} is encrypted, and a server cannot prompt for its passphrase; remove the passphrase"
    return {
        "no certificate": (None, key, f"cannot read the TLS certificate {pair.certificate}: {missing}certificate"),
        "no key": (certificate, None, f"cannot read the TLS key {pair.key}: {missing}key"),
        "folder": (certificate, FOLDER, f"cannot read the TLS key {pair.key}: Is a directory; see --tls-key"),
        "another's key": (certificate, pairs["second"].key.read_bytes(), mismatched),
        "another type": (certificate, pairs["rsa"].key.read_bytes(), mismatched),
        "swapped": (key, certificate, no_pem.format(pair.certificate, "certificate", "certificate")),
        "empty": (certificate, b"", no_pem.format(pair.key, "key", "key")),
        "half": (certificate[: len(certificate) // 2], key, unusable),
        "encrypted": (*(path.read_bytes() for path in encrypted_pair), encrypted),
    }


def write(pair, *contents):
    for path, content in zip(pair, contents, strict=True):
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        if content is FOLDER:
            path.mkdir()
        elif content is not None:
            path.write_bytes(content)


@pytest.mark.parametrize(
    ("defect", "check"), [("no certificate", []), ("another's key", []), ("encrypted", ["--check"])]
)
def test_unusable_certificate_is_refused_before_the_data_directory_is_created(defect, check, pair, pairs, tmp_path):
    *contents, reason = unusable_pairs(pair, pairs)[defect]
    write(pair, *contents)
    completed = run("serve", *check, "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr.startswith(f"tornado-signal: {reason}")
    assert completed.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_check_prints_the_certificate_and_key(pair, tmp_path):
    completed = run("serve", "--check", "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (completed.returncode, completed.stderr) == (0, "")
    assert f"certificate and key: {pair.certificate}, {pair.key}\n" in completed.stdout


def test_new_certificate_applies_to_new_connections_only(server, pair, pairs, trusting):
    code = server.offer()
    results, received = [], []
    body = {"code": code, "side": "offerer", "wait": 60}
    poller = threading.Thread(target=lambda: results.append(server.call("/poll", body)))
    poller.start()
    assert server.url == f"https://127.0.0.1:{server.port}"
    with connect(server.port, trusting) as idle, connect(server.port, trusting) as stream:
        assert request_status(idle) == 200
        own = f"GET /topics HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nSec-Fetch-Site: same-origin\r\n\r\n"
        idle.sendall(own.encode())
        (response,) = answers(idle.recv(65536))
        assert (response.status, response.headers["access-control-allow-origin"]) == (200, server.url)
        stream.sendall(f"GET /lobby/events HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
        while b"\nid: " not in b"".join(received):
            received.append(stream.recv(65536))
        assert certificate_name(server.port, trusting) == "first"
        pair.replace(pairs["rsa"])
        assert certificate_name(server.port, trusting) == "first"  # the files are not read before the reload
        reload(server, "INFO .* applied: certificate and key")
        assert certificate_name(server.port, trusting) == "rsa"
        assert request_status(idle) == 200
        assert name_of(idle) == "first"
        assert server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
        while b"event: gone" not in b"".join(received):
            received.append(stream.recv(65536))
    poller.join(BOUND_S)
    assert results[0] == (200, results[0][1] | {"answer": "a"})
    assert server.stop() == 0
    assert problems_logged(server) == []


def test_unusable_new_certificate_is_logged_and_the_old_one_stays(subtests, start, pair, pairs, trusting, tmp_path):
    """The metrics have the expiry of the current one."""
    server = start(*pair.flags, "--admin-port", 0)
    before, unusable = [path.read_bytes() for path in pair], unusable_pairs(pair, pairs)
    for defect, (*contents, reason) in unusable.items():
        with subtests.test(defect):
            write(pair, *contents)
            reload(server, f"ERROR .* reload failed, keeping the current settings: {re.escape(reason)}")
            assert certificate_name(server.port, trusting) == "first"
        write(pair, *before)
        reload(server, "INFO .* reloaded")
    expiring_late = make_pair(tmp_path, "later", days=30_000)  # after 2049, for which X.509 has another time format
    for current, applied in (pair, "nothing new"), (expiring_late, "certificate and key"):
        pair.replace(current)
        reload(server, f"INFO .* applied: {applied}")
        expected = x509.load_pem_x509_certificate(current.certificate.read_bytes()).not_valid_after_utc
        timestamp = scrape(server.admin_url).one("certificate_expiry_timestamp_seconds")
        assert timestamp == expected.timestamp()
    assert certificate_name(server.port, client_context(expiring_late)) == "later"
    assert server.stop() == 0
    assert len(problems_logged(server)) == len(unusable) == 9


@on_both_loops
def test_new_certificate_on_both_loops_and_with_a_resumed_session(loop, pair, pairs, trusting):
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # its sessions are available right after the handshake
    tls = Tls(read_certificate(*pair))

    def is_served(client):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return answers(read_all(client))[0].status == 200

    with serving(loop=loop, tls=tls.context) as running:
        with connect(running.port, trusting) as client:
            assert is_served(client)
            session, name = client.session, name_of(client)
        assert name == "first"
        pair.replace(pairs["rsa"])
        tls.certificate = read_certificate(*pair)
        write(pair, pairs["rsa"].certificate.read_bytes(), pairs["second"].key.read_bytes())
        with pytest.raises(OperatorError, match="does not belong to the certificate"):
            tls.certificate = read_certificate(*pair)
        for resumed, expected in ((None, "rsa"), (session, "first")):
            plain = socket.create_connection(("127.0.0.1", running.port), BOUND_S)
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1", session=resumed) as client:
                assert client.session_reused == (resumed is not None)
                assert (name_of(client), client.selected_alpn_protocol()) == (expected, "http/1.1")
                assert is_served(client)


def test_loop_does_not_spin_without_free_descriptors(server, trusting):
    pid = server.process.pid
    allowed = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with connect(server.port, trusting) as established:
        assert request_status(established) == 200
        open_now = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now, allowed[1]))
        # A few connections can get a descriptor that was in use when they were counted.
        waiting = [socket.create_connection(("127.0.0.1", server.port), BOUND_S) for _ in range(10)]
        line = server.process.stderr.readline()
        assert "cannot accept connections: Too many open files" in line
        assert request_status(established) == 200
        before_s = cpu_s(pid)
        time.sleep(1)
        assert cpu_s(pid) - before_s < 0.5
        resource.prlimit(pid, resource.RLIMIT_NOFILE, allowed)
        for connection in waiting:
            with trusting.wrap_socket(connection, server_hostname="127.0.0.1") as client:
                assert request_status(client) == 200
        assert server.call("/health")[0] == 200
    assert server.stop() == 0


# Connections count from accept on, however their handshakes end.


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


# The bytes that a client sends, and those that it may get until the server closes, unless they are None.
SENT = {
    "nothing": (b"", None),
    "plain HTTP": (HEALTHY, [b"", PLAIN_HTTP_RESPONSE]),  # nothing if there are too many connections
    "garbage": (b"\0" * 100, [b""]),
    "half": (HALF, None),
    "half, and a reset": (HALF, None),
    "half, and an end": (HALF, None),
    "a reset": (b"", None),
    "nothing until the deadline": (b"", [b""]),
    "half until the deadline": (HALF, [b""]),
}


def begin_handshake(name, client, trusting):
    untrusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if name == "a request":
        assert status(client, trusting) == 200
    elif name == "a reset after it":
        reset(trusting.wrap_socket(client, server_hostname="127.0.0.1"))
    elif name not in SENT:  # the client rejects the certificate, or offers only an old version
        if name == "old TLS":
            untrusting.set_ciphers("DEFAULT:@SECLEVEL=0")
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                untrusting.maximum_version = ssl.TLSVersion.TLSv1_1
        assert status(client, untrusting) is None
    else:
        sent, received = SENT[name]
        client.sendall(sent)
        if name == "half, and an end":
            client.shutdown(socket.SHUT_WR)
            read_all(client)
        assert received is None or read_all(client) in received
        if "reset" in name:
            time.sleep(0.02 if sent else 0)
            reset(client)


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("handshake", [*SENT, "old TLS", "a rejected certificate", "a reset after it", "a request"])
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
                begin_handshake(handshake, client, trusting)
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
