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
from cryptography import x509
from support.certificates import client_context, make_pair, name_of
from support.command import BOUND_S, ORIGIN, run
from support.raw_http import answers, read_all, serving
from support.scraping import scrape

from tornado_signal.errors import OperatorError
from tornado_signal.system.tls import Tls

HEALTH = f"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: {ORIGIN}\r\n".encode()

HALF = bytes.fromhex("160301020001000100")  # the beginning of a ClientHello that says it is longer
HUNG_UP = r"UNEXPECTED_EOF|\(EOF\)"  # what a client sees of a server that ends a handshake
HALVES = 1000
RELOADS = 20


@pytest.fixture
def server(start, pair, trusting, descriptors):
    server = start(*pair.flags)
    server.tls = trusting
    server.port = int(server.url.rpartition(":")[2])
    return server


def test_the_expiry_in_the_metrics_is_that_of_the_certificate_in_use(start, pair, tmp_path):
    server = start(*pair.flags, "--admin-port", 0)
    later = make_pair(tmp_path, "later", days=30_000)  # beyond 2049, which certificates write in another way
    for used in pair, later:
        pair.replace(used)
        server.process.send_signal(signal.SIGHUP)
        assert "certificate and key reloaded" in server.process.stderr.readline()
        expected = x509.load_pem_x509_certificate(used.certificate.read_bytes()).not_valid_after_utc
        found = scrape(server.admin_url).one("certificate_expiry_timestamp_seconds")
        assert found == expected.timestamp()


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
    """Have the certificate reloaded; wait until the server has said what came of it."""
    server.process.send_signal(signal.SIGHUP)
    line = server.process.stderr.readline()
    server.log.append(line)
    assert re.search(said, line), line


def complaints(server):
    """What the server has logged that is no ordinary event."""
    return [line for line in server.log if " INFO tornado_signal" not in line]


def test_everything_over_tls(server):
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


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_tls_1_2_and_1_3_are_spoken_and_no_protocol_but_http_1_1(subtests, server, pairs):
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        for offered in (["h2", "http/1.1"], ["http/1.1"], ["h2"], []):
            context = client_context(*pairs.values())
            context.minimum_version = context.maximum_version = version
            context.set_alpn_protocols(offered)
            with subtests.test(f"{version.name} {offered}"), connect(server.port, context) as client:
                assert client.version() == version.name.replace("_", ".")
                assert client.selected_alpn_protocol() == ("http/1.1" if "http/1.1" in offered else None)
                assert ask(client) == 200
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
            assert ask(client) == 200
    assert server.stop() == 0


FOLDER = object()
BAD = ["no certificate", "no key", "folder", "another's key", "another type", "swapped", "empty", "half", "encrypted"]


def spoil(how, pair, pairs):
    """Make a certificate or its key unusable; what is said of it."""
    certificate, key = (path.read_bytes() for path in pair)
    locked = make_pair(pair.key.parent, "locked", passphrase=b"secret")
    missing = "No such file or directory; see --tls-"
    unusable = f"cannot use the TLS certificate {pair.certificate} with the key {pair.key}: "
    anothers = unusable + "the key does not belong to the certificate"
    no_pem = "{} does not contain a {} in PEM form; name one that does with --tls-{}"
    encrypted = f"the key {pair.key} is encrypted, and a server cannot prompt for its passphrase; remove the passphrase"
    contents = {
        "no certificate": (None, key, f"cannot read the TLS certificate {pair.certificate}: {missing}certificate"),
        "no key": (certificate, None, f"cannot read the TLS key {pair.key}: {missing}key"),
        "folder": (certificate, FOLDER, f"cannot read the TLS key {pair.key}: Is a directory; see --tls-key"),
        "another's key": (certificate, pairs["second"].key.read_bytes(), anothers),
        "another type": (certificate, pairs["rsa"].key.read_bytes(), anothers),
        "swapped": (key, certificate, no_pem.format(pair.certificate, "certificate", "certificate")),
        "empty": (certificate, b"", no_pem.format(pair.key, "key", "key")),
        "half": (certificate[: len(certificate) // 2], key, unusable),
        "encrypted": (*(path.read_bytes() for path in locked), encrypted),
    }
    *files, reason = contents[how]
    for path, content in zip(pair, files, strict=True):
        path.unlink()
        if content is FOLDER:
            path.mkdir()
        elif content is not None:
            path.write_bytes(content)
    return reason


@pytest.mark.parametrize(("how", "check"), [("no certificate", []), ("another's key", []), ("encrypted", ["--check"])])
def test_a_certificate_that_cannot_be_used_is_refused_before_anything_is_made(how, check, pair, pairs, tmp_path):
    reason = spoil(how, pair, pairs)
    done = run("serve", *check, "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"tornado-signal: {reason}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_check_names_a_certificate_and_key_that_can_be_used(pair, tmp_path):
    done = run("serve", "--check", "--port", 0, "--data-dir", tmp_path / "data", *pair.flags)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"certificate and key: {pair.certificate}, {pair.key}\n" in done.stdout


@pytest.mark.parametrize("flag", [0, 2])
def test_a_certificate_without_a_key_or_a_key_without_one_is_wrong_usage(flag, pair, tmp_path):
    done = run("serve", "--check", "--port", 0, *pair.flags[flag : flag + 2], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"expected {pair.flags[2 - flag]} to be set as well\n" in done.stderr


@pytest.mark.parametrize("new", ["second", "rsa"])
def test_a_new_certificate_is_for_new_connections_and_others_go_on(new, server, pair, pairs, trusting):
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
        reload(server, "INFO .* certificate and key reloaded")
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


def test_an_old_certificate_of_another_type_is_gone(server, pair, pairs, trusting):
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    trusting.set_ciphers("ECDHE+aECDSA")
    assert shown(server.port, trusting) == "first"
    pair.replace(pairs["rsa"])
    reload(server, "reloaded")
    with pytest.raises(ssl.SSLError, match=HUNG_UP), connect(server.port, trusting):
        pass
    trusting.set_ciphers("ECDHE+aRSA")
    assert shown(server.port, trusting) == "rsa"


def test_a_bad_new_certificate_is_logged_and_the_old_one_stays(subtests, server, pair, pairs, trusting):
    before = pair.certificate.read_bytes(), pair.key.read_bytes()
    for how in BAD:
        with subtests.test(how):
            reason = spoil(how, pair, pairs)
            reload(server, f"ERROR .* reload failed, keeping the current settings: {re.escape(reason)}")
            assert shown(server.port, trusting) == "first"
        if pair.key.is_dir():
            pair.key.rmdir()
        pair.certificate.write_bytes(before[0])
        pair.key.write_bytes(before[1])
        reload(server, "INFO .* reloaded")
    pair.replace(pairs["second"])
    reload(server, "INFO .* reloaded")
    assert shown(server.port, trusting) == "second"
    assert server.stop() == 0
    assert len(complaints(server)) == len(BAD)


def test_certificates_that_come_and_go_disturb_no_new_connection(server, pair, pairs, trusting):
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
        reload(server, "INFO .* reloaded")
    stopping.set()
    for thread in threads:
        thread.join(BOUND_S)
    assert problems == []
    assert names == set(pairs)
    assert server.stop() == 0
    assert complaints(server) == []


def test_a_new_certificate_on_either_loop_and_in_a_resumed_session(loop, pair, pairs, trusting):
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # whose sessions can be had at once
    tls = Tls(*pair)

    def served(client):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return answers(read_all(client))[0].status == 200

    with serving(loop=loop, tls=tls.context) as running:
        with connect(running.port, trusting) as client:
            assert served(client)
            session, name = client.session, name_of(client)
        assert name == "first"
        pair.replace(pairs["rsa"])
        tls.reload(*pair)
        spoil("another's key", pair, pairs)
        with pytest.raises(OperatorError, match="does not belong to the certificate"):
            tls.reload(*pair)
        for resumed, expected in ((None, "rsa"), (session, "first")):
            plain = socket.create_connection(("127.0.0.1", running.port), BOUND_S)
            with trusting.wrap_socket(plain, server_hostname="127.0.0.1", session=resumed) as client:
                assert client.session_reused == (resumed is not None)
                assert (name_of(client), client.selected_alpn_protocol()) == (expected, "http/1.1")
                assert served(client)


def test_a_thousand_half_handshakes_hold_up_nobody(server, trusting):
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


def test_without_a_descriptor_left_the_loop_does_not_spin(server, trusting):
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
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
