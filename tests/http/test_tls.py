"""HTTPS: handshakes, certificates read again under open connections, and clients that do not speak TLS to the end."""

import contextlib
import os
import re
import resource
import signal
import socket
import ssl
import threading
import time

import pytest
from support.certificates import client_context, make_pair, name_of
from support.command import BOUND_S, ORIGIN, Server, run
from support.raw_http import answers, read_all, serving

from tornado_signal.errors import OperatorError
from tornado_signal.system.tls import Tls
from tornado_signal.transport import listener

HEALTH = f"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n".encode()
CLOSE = b"Connection: close\r\n"
HALF = bytes.fromhex("160301020001000100")  # the beginning of a ClientHello that says it is longer
HUNG_UP = r"UNEXPECTED_EOF|\(EOF\)"  # what a client sees of a server that ends a handshake
HALVES = 1000
RELOADS = 20


@pytest.fixture
def descriptors():
    """As many descriptors as this machine allows, for this process and those that it starts."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.fixture
def server(tmp_path, pair, trusting, descriptors):
    """The command with TLS."""
    server = Server("--data-dir", tmp_path / "data", *pair.flags)
    server.tls = trusting
    server.port = int(server.url.rpartition(":")[2])
    yield server
    server.end()


def connect(port, context, host="127.0.0.1"):
    """A client's connection, its handshake done."""
    return context.wrap_socket(socket.create_connection((host, port), BOUND_S), server_hostname=host)


def ask(client, request=HEALTH):
    """Send a request on a connection that stays open; its status."""
    client.sendall(request + b"\r\n")
    received = b""
    while not received.endswith(b"}"):
        more = client.recv(65536)
        assert more, received
        received += more
    (answer,) = answers(received)
    return answer.status


def shown(port, context):
    """The name of the certificate that a new connection is shown; the connection works."""
    with connect(port, context) as client:
        assert ask(client) == 200
        return name_of(client)


def reload(server, said):
    """Have the certificate read again; wait until the server has said what came of it."""
    server.process.send_signal(signal.SIGHUP)
    line = server.process.stderr.readline()
    server.log.append(line)
    assert re.search(said, line), line


def complaints(server):
    """What the server has logged that is no ordinary event."""
    return [line for line in server.log if " INFO tornado_signal" not in line]


# Handshakes.


def test_everything_over_tls(server):
    """The whole service is there, under https in the log, and the server's own origin is an https one."""
    assert re.fullmatch(r"https://127\.0\.0\.1:[1-9][0-9]*", server.url)
    code = server.offer(offer="o" * 200_000)
    assert server.codes() == [code]
    assert server.call("/lobby/offer", {"info": "i", "offer": "o" * 300_000}) == (
        413,
        {"error": "Request body too large"},
    )
    waited = []
    body = {"code": code, "side": "offerer", "wait": 60}
    waiting = threading.Thread(target=lambda: waited.append(server.call("/poll", body)))
    waiting.start()
    assert server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
    waiting.join(BOUND_S)
    assert waited[0][1]["answer"] == "a"
    with connect(server.port, server.tls) as client:
        host = f"127.0.0.1:{server.port}"
        client.sendall(
            f"GET /topics HTTP/1.1\r\nHost: {host}\r\nSec-Fetch-Site: same-origin\r\nConnection: close\r\n\r\n".encode()
        )
        (answer,) = answers(read_all(client))
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, server.url)
    assert server.stop() == 0
    assert complaints(server) == []


def test_versions(subtests, server, pairs):
    """TLS 1.2 and 1.3 are spoken."""
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = client_context(*pairs.values())
        context.minimum_version = context.maximum_version = version
        with subtests.test(version.name), connect(server.port, context) as client:
            assert client.version() == version.name.replace("_", ".")
            assert ask(client) == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions(server, trusting):
    """What is older is refused, to a client that would take it."""
    trusting.minimum_version = ssl.TLSVersion.TLSv1_1
    trusting.maximum_version = ssl.TLSVersion.TLSv1_1
    trusting.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match=HUNG_UP), connect(server.port, trusting):
        pass


def test_http_1_1_only(subtests, server, pairs):
    """Of the protocols that a client offers, HTTP/1.1 is chosen; who offers others is served all the same."""
    for offered in (["h2", "http/1.1"], ["http/1.1"], ["h2"], []):
        context = client_context(*pairs.values())
        context.set_alpn_protocols(offered)
        with subtests.test(f"{offered}"), connect(server.port, context) as client:
            assert client.selected_alpn_protocol() == ("http/1.1" if "http/1.1" in offered else None)
            assert ask(client) == 200


def test_over_a_unix_socket(tmp_path, pair, trusting):
    """TLS can be had over a Unix socket, too."""
    server = Server("--data-dir", tmp_path / "data", *pair.flags, "--address", f"unix:{tmp_path}/signal.sock")
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(str(tmp_path / "signal.sock"))
        with trusting.wrap_socket(plain, server_hostname="127.0.0.1") as client:
            assert ask(client) == 200
    assert server.stop() == 0
    server.end()


# Certificates that cannot be used.


def missing(pair, pairs):
    pair.certificate.unlink()
    return "cannot read the TLS certificate {certificate}: No such file or directory; see --tls-certificate"


def no_key(pair, pairs):
    pair.key.unlink()
    return "cannot read the TLS key {key}: No such file or directory; see --tls-key"


def a_folder(pair, pairs):
    pair.key.unlink()
    pair.key.mkdir()
    return "cannot read the TLS key {key}: Is a directory; see --tls-key"


def anothers_key(pair, pairs):
    pair.key.write_bytes(pairs["second"].key.read_bytes())
    return "cannot use the TLS certificate {certificate} with the key {key}: the key is another certificate's"


def another_type_of_key(pair, pairs):
    pair.key.write_bytes(pairs["rsa"].key.read_bytes())
    return "cannot use the TLS certificate {certificate} with the key {key}: the key is another certificate's"


def swapped(pair, pairs):
    certificate = pair.certificate.read_bytes()
    pair.certificate.write_bytes(pair.key.read_bytes())
    pair.key.write_bytes(certificate)
    return "{certificate} holds no certificate as PEM; name a file that does with --tls-certificate"


def empty(pair, pairs):
    pair.key.write_bytes(b"")
    return "{key} holds no key as PEM; name a file that does with --tls-key"


def half_written(pair, pairs):
    written = pair.certificate.read_bytes()
    pair.certificate.write_bytes(written[: len(written) // 2])
    return "cannot use the TLS certificate {certificate} with the key {key}: "


def encrypted(pair, pairs):
    locked = make_pair(pair.key.parent, "locked", passphrase=b"secret")
    pair.replace(locked)
    return "the key {key} is encrypted, and a server cannot ask for its passphrase; remove the passphrase"


BAD = [missing, no_key, a_folder, anothers_key, another_type_of_key, swapped, empty, half_written, encrypted]


@pytest.mark.parametrize(
    ("spoil", "check"), [*((each, ["--check"]) for each in BAD), (missing, []), (anothers_key, [])]
)
def test_a_certificate_that_cannot_be_used(spoil, check, pair, pairs, tmp_path):
    """What cannot be used is refused in one sentence (exit status 1), by `--check` too, before anything is made."""
    reason = spoil(pair, pairs).format(**pair._asdict())
    done = run("serve", *check, "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tornado-signal: {reason}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_check_of_good_ones(pair, tmp_path):
    """`--check` has nothing to say about a certificate that can be used."""
    done = run("serve", "--check", "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"certificate and key: {pair.certificate}, {pair.key}\n" in done.stdout


@pytest.mark.parametrize("flag", [0, 2])
def test_one_without_the_other(flag, pair, tmp_path):
    """A certificate without a key, or a key without a certificate, is wrong usage (exit status 2)."""
    done = run("serve", "--check", "--port", 0, *pair.flags[flag : flag + 2], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"expected {pair.flags[2 - flag]} beside it\n" in done.stderr


# Read again.


@pytest.mark.parametrize("new", ["second", "rsa"])
def test_a_new_certificate(new, server, pair, pairs, trusting):
    """After SIGHUP new connections are shown the new certificate; a wait, a stream and idle connections go on."""
    code = server.offer()
    waited, told = [], []
    body = {"code": code, "side": "offerer", "wait": 60}
    waiting = threading.Thread(target=lambda: waited.append(server.call("/poll", body)))
    waiting.start()
    with connect(server.port, trusting) as idle, connect(server.port, trusting) as stream:
        assert ask(idle) == 200
        stream.sendall(f"GET /lobby/events HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n\r\n".encode())
        while b"\nid: " not in b"".join(told):
            told.append(stream.recv(65536))
        assert shown(server.port, trusting) == "first"
        pair.replace(pairs[new])
        assert shown(server.port, trusting) == "first"  # not before it is told to
        reload(server, "INFO .* certificate and key read again")
        assert shown(server.port, trusting) == new
        assert ask(idle) == 200
        assert name_of(idle) == "first"
        assert server.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
        while b"event: gone" not in b"".join(told):
            told.append(stream.recv(65536))
    waiting.join(BOUND_S)
    assert waited[0] == (200, waited[0][1] | {"answer": "a"})
    assert server.stop() == 0
    assert complaints(server) == []


def test_the_old_certificate_is_gone(server, pair, pairs, trusting):
    """A client that would only take a key of the old type is not shown the old certificate, but refused."""
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    trusting.set_ciphers("ECDHE+aECDSA")
    assert shown(server.port, trusting) == "first"
    pair.replace(pairs["rsa"])
    reload(server, "read again")
    with pytest.raises(ssl.SSLError, match=HUNG_UP), connect(server.port, trusting):
        pass
    trusting.set_ciphers("ECDHE+aRSA")
    assert shown(server.port, trusting) == "rsa"


def test_a_bad_new_certificate(subtests, server, pair, pairs, trusting):
    """A certificate that cannot be used is logged, the old one stays, and the next good one is taken."""
    before = pair.certificate.read_bytes(), pair.key.read_bytes()
    for spoil in BAD:
        with subtests.test(spoil.__name__):
            reason = spoil(pair, pairs).format(**pair._asdict())
            reload(server, f"ERROR .* what is in use stays: {re.escape(reason)}")
            assert shown(server.port, trusting) == "first"
        if pair.key.is_dir():
            pair.key.rmdir()
        pair.certificate.write_bytes(before[0])
        pair.key.write_bytes(before[1])
        reload(server, "INFO .* read again")
    pair.replace(pairs["second"])
    reload(server, "INFO .* read again")
    assert shown(server.port, trusting) == "second"
    assert server.stop() == 0
    assert len(complaints(server)) == len(BAD)


def test_reading_again_and_again_under_load(server, pair, pairs, trusting):
    """While certificates come and go, every new connection is served, with one that belongs to its key."""
    names, problems, stopping = set(), [], threading.Event()

    def knock():
        try:
            while not stopping.is_set():
                names.add(shown(server.port, trusting))
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=knock) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(RELOADS):
        pair.replace(list(pairs.values())[number % len(pairs)])
        reload(server, "INFO .* read again")
    stopping.set()
    for thread in threads:
        thread.join(BOUND_S)
    assert problems == []
    assert names == set(pairs)
    assert server.stop() == 0
    assert complaints(server) == []


def test_sighup_without_tls(tmp_path):
    """Without TLS there are settings to read again, and the server goes on."""
    server = Server("--data-dir", tmp_path / "data")
    code = server.offer()
    reload(server, "INFO .* settings read again, applied: nothing new")
    assert server.codes() == [code]
    assert server.stop() == 0
    server.end()


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_new_certificate_on_either_loop(loop, pair, pairs, trusting):
    """The same holds on uvloop and on asyncio's own loop, and for a session that is resumed."""
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # whose sessions can be had at once
    tls = Tls(*pair)
    with serving(loop=loop, tls=tls.context) as running:
        with connect(running.port, trusting) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
            assert answers(read_all(client))[0].status == 200
            session, name = client.session, name_of(client)
        assert name == "first"
        pair.replace(pairs["rsa"])
        tls.reload(*pair)
        anothers_key(pair, pairs)
        with pytest.raises(OperatorError, match="another certificate's"):
            tls.reload(*pair)
        for resumed, expected in ((None, "rsa"), (session, "first")):
            plain = socket.create_connection(("127.0.0.1", running.port), BOUND_S)
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1", session=resumed) as client:
                assert client.session_reused == (resumed is not None)
                assert (name_of(client), client.selected_alpn_protocol()) == (expected, "http/1.1")
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
                assert answers(read_all(client))[0].status == 200


# Those who do not speak it, or not to the end.


def test_plain_http(server):
    """Who speaks plain HTTP to the TLS port is hung up on, without a line in the log, and others are served."""
    for request in (HEALTH + b"\r\n", b"\x00" * 100, HALF + b"x" * 1000):
        with socket.create_connection(("127.0.0.1", server.port), BOUND_S) as client:
            client.sendall(request)
            if request.startswith(HALF):
                client.shutdown(socket.SHUT_WR)
            assert b"HTTP" not in read_all(client)
    assert server.call("/health")[0] == 200
    assert server.stop() == 0
    assert complaints(server) == []


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
@pytest.mark.parametrize("sent", [b"", HALF])
def test_a_slow_handshake(sent, loop, pair, trusting, monkeypatch):
    """A handshake that is not done in time is ended, without a line in the log, and nobody waits for it."""
    monkeypatch.setattr(listener, "HEAD_S", 0.5)
    with serving(loop=loop, tls=Tls(*pair).context) as running, running.connect() as slow:
        slow.sendall(sent)
        with connect(running.port, trusting) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n" + CLOSE + b"\r\n")
            assert answers(read_all(client))[0].status == 200
        assert read_all(slow) == b""


def test_a_thousand_half_handshakes(server, trusting):
    """A thousand clients that begin a handshake and leave it at that hold up nobody, and do not hold up the end."""
    with contextlib.ExitStack() as stack:
        for _ in range(HALVES):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), BOUND_S))
            client.sendall(HALF)
        for _ in range(10):
            assert shown(server.port, trusting) == "first"
        code = server.offer()
        assert server.codes() == [code]
        assert server.stop() == 0
    assert complaints(server) == []


def test_no_descriptor_to_accept_with(server, trusting):
    """When the process has no descriptor left that is said, the loop does not spin, and later all are accepted."""
    pid = server.process.pid
    allowed = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    with connect(server.port, trusting) as known:
        assert ask(known) == 200
        open_now = len(os.listdir(f"/proc/{pid}/fd"))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_now, allowed[1]))
        # Some may have a descriptor that was in use for a moment.
        late = [socket.create_connection(("127.0.0.1", server.port), BOUND_S) for _ in range(10)]
        line = server.process.stderr.readline()
        assert "cannot accept connections: Too many open files" in line
        assert ask(known) == 200
        before_s = cpu_s(pid)
        time.sleep(1)
        assert cpu_s(pid) - before_s < 0.5
        resource.prlimit(pid, resource.RLIMIT_NOFILE, allowed)
        for each in late:
            with trusting.wrap_socket(each, server_hostname="127.0.0.1") as client:
                assert ask(client) == 200
        assert server.call("/health")[0] == 200
    assert server.stop() == 0


def cpu_s(pid):
    """How much processor time a process has used."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
