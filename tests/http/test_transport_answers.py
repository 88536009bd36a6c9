"""What goes out: refusals that arrive whole, expectations, HEAD, framing, and handlers that would break it."""

import datetime
import ipaddress
import itertools
import socket
import ssl
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from support.raw_http import answers, echo_application, read_all, serving
from support.service import applying
from tornado import web

from tornado_signal.settings.settings import Settings
from tornado_signal.system.clock import Clock
from tornado_signal.transport import connection

HOST = b"Host: a.example\r\n"
ORIGIN = b"Origin: https://a.example\r\nX: 1\r\n"  # known to have come once the next header begins
CLOSE = b"Connection: close\r\n"


class Sending(web.RequestHandler):
    """Sends a response in the way that its query names."""

    async def get(self):
        await getattr(self, self.get_argument("how"))()

    head = get

    async def whole(self):
        self.finish(b"hello")

    async def in_steps(self):
        for part in (b"he", b"", b"llo"):
            self.write(part)
            await self.flush()

    async def with_length(self):
        self.set_header("Content-Length", "5")
        self.write(b"he")
        await self.flush()
        self.finish(b"llo")

    async def nothing(self):
        self.set_status(204)
        self.finish()

    async def not_modified(self):
        self.set_status(304)
        self.finish()

    async def closing(self):
        self.set_header("Connection", "close")
        self.finish(b"hello")

    async def own_coding(self):
        self.set_header("Transfer-Encoding", "chunked")
        self.write(b"hello")
        await self.flush()

    async def too_short(self):
        self.set_header("Content-Length", "10")
        self.finish(b"hello")

    async def too_long(self):
        self.set_header("Content-Length", "2")
        self.write(b"he")
        await self.flush()
        self.finish(b"llo")

    async def too_long_at_once(self):
        self.set_header("Content-Length", "2")
        self.finish(b"hello")

    async def header(self):
        self.set_header("X", "a\r\nEvil: 1")

    async def header_unchecked(self):
        self._headers["X"] = "a\r\nEvil: 1"

    async def header_line_feed(self):
        self._headers["X"] = "a\nEvil: 1"

    async def header_return(self):
        self._headers["X"] = "a\rEvil: 1"

    async def header_end(self):
        self._headers["X"] = "a\r\n\r\nevil"

    async def header_name(self):
        self._headers._as_list["X\r\nEvil"] = ["1"]

    async def header_in_other_letters(self):
        self._headers["X"] = "\u010d\u010aEvil: 1"

    async def reason(self):
        self.set_status(299)
        self._reason = "Fine\r\nEvil: 1"

    async def failing(self):
        raise RuntimeError("a defect")


def sending_application():
    return echo_application(("/send", Sending))


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(request):
    """The event loop under the server."""
    return request.param


@pytest.fixture
def echoing(loop):
    """A server that echoes."""
    with serving(loop=loop) as running:
        yield running


@pytest.fixture
def real(loop):
    """A server with this product's handlers, without a store: no request comes that far."""
    with serving(lambda: applying(None, Clock(), Settings()), loop=loop) as running:
        yield running


def send(how, method=b"GET", version=b"HTTP/1.1", headers=b""):
    return method + b" /send?how=" + how.encode() + b" " + version + b"\r\n" + HOST + headers + b"\r\n"


# Refusals


@pytest.mark.parametrize(
    ("status", "raw"),
    [
        (400, b"GET / HTTP/1.1\r\n" + HOST + ORIGIN + b"no colon\r\n\r\n"),
        (400, b"GET / HTTP/1.1\r\n" + HOST + HOST + ORIGIN + b"\r\n"),
        (400, b"POST / HTTP/1.1\r\n" + HOST + ORIGIN + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
        (400, b"POST / HTTP/1.1\r\n" + HOST + ORIGIN + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        (417, b"POST / HTTP/1.1\r\n" + HOST + ORIGIN + b"Expect: miracles\r\nContent-Length: 5\r\n\r\nhello"),
        (431, b"GET / HTTP/1.1\r\n" + HOST + ORIGIN + b"X: " + b"x" * 100_000 + b"\r\n\r\n"),
        (501, b"POST / HTTP/1.1\r\n" + HOST + ORIGIN + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        (505, b"GET / HTTP/2.0\r\n" + HOST + ORIGIN + b"\r\n"),
    ],
)
def test_refusals_in_full(echoing, status, raw):
    """A refusal is JSON with CORS for the Origin that was understood, and says that the connection ends."""
    (answer,) = answers_of(echoing, raw)
    assert answer.status == status
    assert answer.headers == {
        "content-type": "application/json",
        "vary": "Origin",
        "access-control-allow-origin": "https://a.example",
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\rX: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: " + b"x" * 600 + b"\r\nX: 1\r\nno colon\r\n\r\n",
    ],
)
def test_refusals_without_an_origin(echoing, raw):
    """No Origin is echoed that has not been understood, or is too long to be one."""
    (answer,) = answers_of(echoing, raw)
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("raw", [b"nonsense\r\n", b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n"])
def test_a_refusal_arrives_while_the_client_sends(echoing, raw):
    """Who goes on sending after it was refused still gets the answer whole, and no reset before."""
    with echoing.connect() as client:
        client.sendall(raw)
        for _ in range(50):
            client.sendall(b"x" * 20_000)
            time.sleep(0.001)
        (answer,) = answers(client.recv(1 << 20))
    assert answer.whole
    assert "error" in answer.json


def test_more_behind_the_last_request(echoing):
    """Data behind a request that closes the connection do not destroy its answer."""
    with echoing.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n" + b"x" * 300_000)
        time.sleep(0.1)
        client.sendall(b"x" * 300_000)
        (answer,) = answers(client.recv(1 << 20))
    assert (answer.status, answer.whole) == (200, True)


@pytest.mark.parametrize("length", [b"262145", b"50000000", b"9223372036854775807", b"18446744073709551615"])
@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_too_large_a_body_is_not_waited_for(real, length, expect):
    """A body that is announced too large is refused at once, and never asked for."""
    with real.connect() as client:
        client.sendall(b"POST /poll HTTP/1.1\r\n" + HOST + ORIGIN + expect + b"Content-Length: " + length + b"\r\n\r\n")
        (answer,) = answers(read_all(client))
    assert (answer.status, answer.json) == (413, {"error": "Request body too large"})
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("framing", [b"Content-Length: 3000000", b"Transfer-Encoding: chunked"])
def test_too_large_a_body_that_comes_all_the_same(real, framing):
    """The refusal of a body that is too large arrives whole although the client sends the body."""
    with real.connect() as client:
        client.sendall(b"POST /poll HTTP/1.1\r\n" + HOST + ORIGIN + framing + b"\r\n\r\n")
        for _ in range(30):
            client.sendall(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
        (answer,) = answers(read_all(client))
    assert (answer.status, answer.json, answer.whole) == (413, {"error": "Request body too large"}, True)


# Expectations


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_continue(echoing, framing):
    """Who waits for 100 Continue gets it, then sends its body, and is answered."""
    with echoing.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\n" + framing + b"\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello" if b"Length" in framing else b"5\r\nhello\r\n0\r\n\r\n")
        (answer,) = answers(read_all(client))
    assert answer.json["body"] == "hello"


def test_continue_when_its_turn_comes(echoing):
    """100 Continue comes behind the answers to earlier requests."""
    with echoing.connect() as client:
        client.sendall(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n")
        client.sendall(b"POST /2 HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        received = b""
        while not received.endswith(b"100 Continue\r\n\r\n"):
            received += client.recv(1000)
        client.sendall(b"hello")
        statuses = [answer.status for answer in answers(received + read_all(client))]
    assert statuses == [200, 100, 200]


@pytest.mark.parametrize(("version", "sent"), [(b"HTTP/1.1", b"hello"), (b"HTTP/1.0", b"hello")])
def test_no_continue(echoing, version, sent):
    """There is no 100 Continue for a body that is there already, nor for HTTP/1.0."""
    head = b"POST / " + version + b"\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with echoing.connect() as client:
        if version == b"HTTP/1.0":
            client.sendall(head)
            time.sleep(0.05)
            head = b""
        client.sendall(head + sent)
        (answer,) = answers(read_all(client))
    assert answer.json["body"] == "hello"


# Framing


@pytest.mark.parametrize(
    ("how", "status", "length"),
    [
        ("whole", 200, "5"),
        ("in_steps", 200, None),
        ("with_length", 200, "5"),
        ("nothing", 204, None),
        ("not_modified", 304, None),
        ("closing", 200, "5"),
        ("own_coding", 200, None),
    ],
)
def test_framing(subtests, how, status, length):
    """Every kind of response ends where its client believes, HEAD has its lengths and no body, and the next follows."""
    versions, wishes = (b"HTTP/1.1", b"HTTP/1.0"), (b"", CLOSE, b"Connection: keep-alive\r\n")
    for method, version, wish in itertools.product((b"GET", b"HEAD"), versions, wishes):
        with subtests.test(f"{method} {version} {wish}"):
            check_framing(how, status, length, method, version, wish)


def check_framing(how, status, length, method, version, wish):
    """The whole of a connection with such a response, and another one if there is one behind it."""
    with serving(sending_application) as running:
        received = received_of(
            running, send(how, method, version, wish) + b"GET /next HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
        )
    head, _, rest = received.partition(b"\r\n\r\n")
    kept = wish != CLOSE and how != "closing" and (version == b"HTTP/1.1" or wish != b"")
    chunked = version == b"HTTP/1.1" and method == b"GET" and status == 200 and length is None
    if version == b"HTTP/1.0" and method == b"GET" and length is None and status == 200:
        kept = False
    lines = head.decode().split("\r\n")
    assert lines[0].startswith(f"HTTP/1.1 {status} ")
    headers = dict(line.split(": ") for line in lines[1:])
    assert len(headers) == len(lines) - 1
    assert headers.get("Content-Length") == length
    assert ("Transfer-Encoding" in headers) == chunked
    assert headers.get("Connection") == ("close" if not kept else "keep-alive" if version == b"HTTP/1.0" else None)
    body = b"" if method == b"HEAD" or status != 200 else b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n" if chunked else b"hello"
    if how == "own_coding" and chunked:
        body = b"5\r\nhello\r\n0\r\n\r\n"
    assert rest[: len(body)] == body
    assert [b'"/next"' in answer.body for answer in answers(rest[len(body) :])] == [True] * kept


@pytest.mark.parametrize("how", ["too_short", "too_long", "too_long_at_once"])
def test_a_response_that_is_not_as_announced(loop, how):
    """A response of another length than announced is never followed by another."""
    with serving(sending_application, loop=loop, quiet=False) as running:
        received = received_of(running, send(how) + send("whole"))
    assert received.count(b"HTTP/1.1") <= 1
    assert not any(answer.whole and answer.body == b"hello" for answer in answers(received))


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("header", 500),
        ("header_unchecked", None),
        ("header_line_feed", None),
        ("header_return", None),
        ("header_end", None),
        ("header_name", None),
        ("header_in_other_letters", None),
        ("reason", None),
        ("failing", 500),
    ],
)
def test_a_handler_breaks_out_of_its_headers(loop, how, status):
    """A header or reason with a line break is a 500 or the end of the connection, never another header."""
    with serving(sending_application, loop=loop, quiet=False) as running:
        received = received_of(running, send(how, headers=CLOSE))
        assert running.exchange(send("whole", headers=CLOSE))[0].body == b"hello"
    assert [answer.status for answer in answers(received)] == ([] if status is None else [status])
    assert b"evil" not in received.lower()


# TLS


@pytest.fixture(scope="module")
def contexts(tmp_path_factory):
    """TLS contexts of a server with a certificate of its own, and of a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + private)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(pem)
    return server, ssl.create_default_context(cafile=pem)


@pytest.fixture
def secure(loop, contexts):
    """A server over TLS, and a function that connects to it."""
    with serving(sending_application, loop=loop, tls=contexts[0]) as running:
        yield running, lambda: contexts[1].wrap_socket(running.connect(), server_hostname="127.0.0.1")


def test_tls_many_requests(secure):
    """Over TLS a thousand pipelined requests are answered in order, to a client without a certificate."""
    _, connect = secure
    with connect() as client:
        for number in range(1000):
            client.sendall(b"GET /%d HTTP/1.1\r\n" % number + HOST + (CLOSE if number == 999 else b"") + b"\r\n")
        found = answers(read_all(client))
    assert [answer.json["request"][1] for answer in found] == [f"/{number}" for number in range(1000)]


def test_tls_large_bodies(secure):
    """Over TLS large bodies come and go whole."""
    _, connect = secure
    body = b"0123456789" * 200_000
    with connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 2000000\r\n\r\n" + body)
        (answer,) = answers(read_all(client))
    assert answer.json["body"].encode() == body


@pytest.mark.parametrize(
    "raw", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"]
)
def test_tls_refusals(secure, raw):
    """Over TLS a refusal arrives whole, too."""
    _, connect = secure
    with connect() as client:
        client.sendall(raw)
        (answer,) = answers(client.recv(1 << 16))
    assert (answer.status, answer.whole) == (400, True)


@pytest.mark.parametrize("raw", [b"", b"GET / HTTP/1.1\r\n" + HOST + b"\r\n", b"\x16\x03\x01\x02\x00\x01"])
def test_tls_is_not_spoken(secure, raw):
    """Who speaks no TLS to a TLS listener is dropped without a word in the log, and the next one is served."""
    running, connect = secure
    with running.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        assert not read_all(client).startswith(b"HTTP")
    with connect() as client:
        client.sendall(send("whole", headers=CLOSE))
        assert answers(read_all(client))[0].body == b"hello"


def test_tls_streaming_until_the_end(secure):
    """Over TLS a client of HTTP/1.0 learns from the end of the connection that the answer is whole, at once."""
    _, connect = secure
    began_s = time.monotonic()
    with connect() as client:
        client.sendall(send("in_steps", version=b"HTTP/1.0"))
        (answer,) = answers(read_all(client))
    assert answer.body == b"hello"
    assert time.monotonic() - began_s < connection.LINGER_S / 2


def test_protocol_and_address(secure, echoing):
    """Handlers learn over what, and from where, a request came."""
    running, connect = secure
    with connect(), echoing.connect():
        while not (running.server.state.connections and echoing.server.state.connections):
            time.sleep(0.01)
        (there,), (here,) = running.server.state.connections, echoing.server.state.connections
        assert (there.protocol, there.remote_ip) == ("https", "127.0.0.1")
        assert (here.protocol, here.remote_ip) == ("http", "127.0.0.1")


def received_of(running, raw):
    with running.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def answers_of(running, raw):
    with running.connect() as client:
        client.sendall(raw)
        return answers(read_all(client))
