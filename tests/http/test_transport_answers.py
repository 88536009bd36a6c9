"""What goes out: refusals that arrive whole, expectations, HEAD, framing, and handlers that would break it."""

import itertools
import socket
import time

import pytest
from support.raw_http import PATIENCE_S, answers, echo_application, read_all, serving
from support.service import applying
from tornado import web

from tornado_signal.settings.settings import Settings
from tornado_signal.system.clock import Clock
from tornado_signal.system.tls import Tls
from tornado_signal.transport import connection

HOST = b"Host: a.example\r\n"
ORIGIN = b"Origin: https://a.example\r\nX: 1\r\n"  # known to have come once the next header begins
CLOSE = b"Connection: close\r\n"


# Values of a header that would end it.
BREAKS = {
    "line_break": "a\r\nEvil: 1",
    "line_feed": "a\nEvil: 1",
    "carriage_return": "a\rEvil: 1",
    "end_of_head": "a\r\n\r\nevil",
    "other_letters": "\u010d\u010aEvil: 1",
}


class Sending(web.RequestHandler):
    """Sends a response in the way that its query names."""

    async def get(self):
        how = self.get_argument("how")
        if how in BREAKS:
            self._headers["X"] = BREAKS[how]
        else:
            await getattr(self, how)()

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

    async def header_name(self):
        self._headers._as_list["X\r\nEvil"] = ["1"]

    async def reason(self):
        self.set_status(299)
        self._reason = "Fine\r\nEvil: 1"

    async def failing(self):
        raise RuntimeError("a defect")


@pytest.fixture
def echoing(loop):
    with serving(loop=loop) as running:
        yield running


@pytest.fixture
def real(loop):
    """A server with this product's handlers, without a store: no request comes that far."""
    with serving(lambda: applying(None, Clock(), Settings()), loop=loop) as running:
        yield running


def send(how, method=b"GET", version=b"HTTP/1.1", headers=b""):
    return method + b" /send?how=" + how.encode() + b" " + version + b"\r\n" + HOST + headers + b"\r\n"


@pytest.mark.parametrize(
    ("status", "version", "more"),
    [
        (400, b"1.1", b"no colon\r\n\r\n"),
        (400, b"1.1", HOST + b"\r\n"),
        (400, b"1.1", b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
        (400, b"1.1", b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n"),
        (417, b"1.1", b"Expect: miracles\r\nContent-Length: 5\r\n\r\nhello"),
        (431, b"1.1", b"X: " + b"x" * 100_000 + b"\r\n\r\n"),
        (501, b"1.1", b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
        (505, b"2.0", b"\r\n"),
    ],
)
def test_a_refusal_is_json_with_cors_for_the_origin_that_was_understood(echoing, status, version, more):
    (answer,) = echoing.exchange(b"POST / HTTP/" + version + b"\r\n" + HOST + ORIGIN + more)
    assert answer.status == status
    assert answer.headers == {
        "content-type": "application/json",
        "vary": "Origin",
        "access-control-allow-origin": "https://a.example",
        "content-length": str(len(answer.body)),
        "connection": "close",
    }
    assert list(answer.json) == ["error"]


@pytest.mark.parametrize("value", [None, b"https://a.example\r", b"x" * 600 + b"\r\n"])
def test_no_origin_is_echoed_that_is_none_or_was_not_understood(echoing, value):
    origin = b"" if value is None else b"Origin: " + value + b"X: 1\r\n"
    (answer,) = echoing.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n" + origin + b"no colon\r\n\r\n")
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("raw", [b"nonsense\r\n", b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n"])
def test_a_refusal_arrives_while_the_client_sends(echoing, raw):
    with echoing.connect() as client:
        client.sendall(raw)
        for _ in range(50):
            client.sendall(b"x" * 20_000)
            time.sleep(0.001)
        (answer,) = answers(client.recv(1 << 20))
    assert answer.whole
    assert "error" in answer.json


def test_data_behind_the_last_request_do_not_destroy_its_answer(echoing):
    with echoing.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n" + b"x" * 300_000)
        time.sleep(0.1)
        client.sendall(b"x" * 300_000)
        (answer,) = answers(client.recv(1 << 20))
    assert (answer.status, answer.whole) == (200, True)


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_too_large_a_body_is_refused_at_once_and_never_asked_for(real, expect):
    for length in (b"262145", b"50000000", b"9223372036854775807", b"18446744073709551615"):
        with real.connect() as client:
            client.sendall(b"POST /poll HTTP/1.1\r\n" + HOST + ORIGIN + expect)
            client.sendall(b"Content-Length: " + length + b"\r\n\r\n")
            (answer,) = answers(read_all(client))
        assert (answer.status, answer.json) == (413, {"error": "Request body too large"})
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize("framing", [b"Content-Length: 3000000", b"Transfer-Encoding: chunked"])
def test_the_refusal_of_a_body_arrives_whole_although_it_comes(real, framing):
    with real.connect() as client:
        client.sendall(b"POST /poll HTTP/1.1\r\n" + HOST + ORIGIN + framing + b"\r\n\r\n")
        for _ in range(30):
            client.sendall(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
        (answer,) = answers(read_all(client))
    assert (answer.status, answer.json, answer.whole) == (413, {"error": "Request body too large"}, True)


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_who_waits_for_100_continue_gets_it(echoing, framing):
    with echoing.connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\n" + framing + b"\r\n\r\n")
        assert client.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"hello" if b"Length" in framing else b"5\r\nhello\r\n0\r\n\r\n")
        (answer,) = answers(read_all(client))
    assert answer.json["body"] == "hello"


def test_100_continue_comes_behind_earlier_answers(echoing):
    with echoing.connect() as client:
        client.sendall(b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n")
        client.sendall(b"POST /2 HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n")
        received = b""
        while not received.endswith(b"100 Continue\r\n\r\n"):
            received += client.recv(1000)
        client.sendall(b"hello")
        statuses = [answer.status for answer in answers(received + read_all(client))]
    assert statuses == [200, 100, 200]


@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
def test_no_continue_for_a_body_that_is_there_nor_for_http_1_0(echoing, version):
    head = b"POST / " + version + b"\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with echoing.connect() as client:
        if version == b"HTTP/1.0":
            client.sendall(head)
            time.sleep(0.05)
            head = b""
        client.sendall(head + b"hello")
        (answer,) = answers(read_all(client))
    assert answer.json["body"] == "hello"


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
def test_every_response_ends_where_its_client_believes(subtests, sending, how, status, length):
    versions, wishes = (b"HTTP/1.1", b"HTTP/1.0"), (b"", CLOSE, b"Connection: keep-alive\r\n")
    for method, version, wish in itertools.product((b"GET", b"HEAD"), versions, wishes):
        with subtests.test(f"{method} {version} {wish}"):
            check_framing(sending, how, status, length, method, version, wish)


def check_framing(running, how, status, length, method, version, wish):
    """The whole of a connection with such a response, and another one if there is one behind it."""
    follows = b"GET /next HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
    received = received_of(running, send(how, method, version, wish) + follows)
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
def test_a_response_of_another_length_than_announced_is_the_last(loop, how):
    with serving(lambda: echo_application(("/send", Sending)), loop=loop, quiet=False) as running:
        received = received_of(running, send(how) + send("whole"))
    assert received.count(b"HTTP/1.1") <= 1
    assert not any(answer.whole and answer.body == b"hello" for answer in answers(received))


@pytest.mark.parametrize(
    ("how", "status"),
    [("header", 500), ("failing", 500), *((how, None) for how in (*BREAKS, "header_name", "reason"))],
)
def test_a_line_break_makes_no_header(loop, how, status):
    with serving(lambda: echo_application(("/send", Sending)), loop=loop, quiet=False) as running:
        received = received_of(running, send(how, headers=CLOSE))
        assert running.exchange(send("whole", headers=CLOSE))[0].body == b"hello"
    assert [answer.status for answer in answers(received)] == ([] if status is None else [status])
    assert b"evil" not in received.lower()


@pytest.fixture
def sending():
    with serving(lambda: echo_application(("/send", Sending))) as running:
        yield running


@pytest.fixture
def secure(loop, pair, trusting):
    """A server over TLS, and a function that connects to it."""
    with serving(lambda: echo_application(("/send", Sending)), loop=loop, tls=Tls(*pair).context) as running:
        yield running, lambda: trusting.wrap_socket(running.connect(), server_hostname="127.0.0.1")


def test_over_tls_a_thousand_pipelined_requests_are_answered_in_order(secure):
    _, connect = secure
    with connect() as client:
        for number in range(1000):
            client.sendall(b"GET /%d HTTP/1.1\r\n" % number + HOST + (CLOSE if number == 999 else b"") + b"\r\n")
        found = answers(read_all(client))
    assert [answer.json["request"][1] for answer in found] == [f"/{number}" for number in range(1000)]


def test_over_tls_large_bodies_come_and_go_whole(secure):
    _, connect = secure
    body = b"0123456789" * 200_000
    with connect() as client:
        client.sendall(b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: 2000000\r\n\r\n" + body)
        (answer,) = answers(read_all(client))
    assert answer.json["body"].encode() == body


def test_over_tls_refusals_arrive_whole(secure):
    _, connect = secure
    for raw in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"):
        with connect() as client:
            client.sendall(raw)
            (answer,) = answers(client.recv(1 << 16))
        assert (answer.status, answer.whole) == (400, True)


def test_over_tls_http_1_0_learns_from_the_end_at_once_that_it_has_all(secure, monkeypatch):
    monkeypatch.setattr(connection, "LINGER_S", 10 * PATIENCE_S)  # what the client does not wait for
    _, connect = secure
    with connect() as client:
        client.sendall(send("in_steps", version=b"HTTP/1.0"))
        (answer,) = answers(read_all(client))
    assert answer.body == b"hello"


def test_handlers_learn_over_what_and_from_where_a_request_came(secure, echoing):
    running, connect = secure
    with connect(), echoing.connect():
        servers = (running.server, echoing.server)
        while [len(each.state.connections) for each in servers] != [1, 1]:
            time.sleep(0.01)
        (there,), (here,) = (each.state.connections for each in servers)
        assert (there.protocol, there.remote_ip) == ("https", "127.0.0.1")
        assert (here.protocol, here.remote_ip) == ("http", "127.0.0.1")


def received_of(running, raw):
    with running.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)
