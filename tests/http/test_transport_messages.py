"""Responses and their framing, and hostile requests, compared with the HTTP server of Tornado."""

import contextlib
import itertools
import socket
import time
from types import SimpleNamespace

import pytest
from support.http_corpus import CORPUS, DIFFERENT, ENDS, GOOD, HOST, LAST, LAXER, REFUSED, STRICTER
from support.raw_http import (
    PATIENCE_S,
    Answer,
    answers,
    chopping,
    echo_application,
    on_both_loops,
    read_all,
    receive_until,
    serving,
)
from support.service import applying
from tornado import web

from tornado_signal.settings.settings import Settings
from tornado_signal.system.clock import Clock
from tornado_signal.system.tls import Tls, read_certificate
from tornado_signal.transport import connection

ORIGIN = b"Origin: https://a.example\r\nX: 1\r\n"  # a header is complete once the next one starts
CLOSE = b"Connection: close\r\n"


# Header values that would end the header.
BREAKS = {
    "line_break": "a\r\nEvil: 1",
    "line_feed": "a\nEvil: 1",
    "carriage_return": "a\rEvil: 1",
    "end_of_head": "a\r\n\r\nevil",
    "other_letters": "\u010d\u010aEvil: 1",
}


# The status and headers of responses, the parts that are flushed, and the last one.
RESPONSES = {
    "whole": (200, {}, [], b"hello"),
    "in_steps": (200, {}, [b"he", b"", b"llo"], b""),
    "nothing": (204, {}, [], None),
    "not_modified": (304, {}, [], None),
    "closing": (200, {"Connection": "close"}, [], b"hello"),
    "own_coding": (200, {"Transfer-Encoding": "chunked"}, [b"hello"], b""),
    "with_length": (200, {"Content-Length": "5"}, [b"he"], b"llo"),
    "too_short": (200, {"Content-Length": "10"}, [], b"hello"),
    "too_long": (200, {"Content-Length": "2"}, [b"he"], b"llo"),
    "too_long_at_once": (200, {"Content-Length": "2"}, [], b"hello"),
}


class SendingHandler(web.RequestHandler):
    """Sends a response in the way named by its query."""

    async def get(self):
        kind = self.get_argument("how")
        if kind in BREAKS:
            self._headers["X"] = BREAKS[kind]
        elif kind not in RESPONSES:
            await getattr(self, kind)()
        else:
            status, headers, parts, last = RESPONSES[kind]
            self.set_status(status)
            for name, value in headers.items():
                self.set_header(name, value)
            for part in parts:
                self.write(part)
                await self.flush()
            self.finish(last)

    head = get

    async def header_name(self):
        self._headers._as_list["X\r\nEvil"] = ["1"]

    async def reason(self):
        self.set_status(299)
        self._reason = "Fine\r\nEvil: 1"

    async def caught(self):
        self._headers["X"] = BREAKS["line_break"]
        with contextlib.suppress(ValueError):
            await self.flush()
        self.finish("HTTP/1.1 200 Evil\r\n\r\n")  # must not be taken for a head


@pytest.fixture(scope="module")
def own_server():
    """A server with this transport and an application that echoes requests."""
    with serving() as running:
        yield running


@pytest.fixture
def sending():
    with serving(lambda: echo_application(("/send", SendingHandler)), quiet=False) as running:
        yield running


def send(kind, method=b"GET", version=b"HTTP/1.1", headers=b""):
    return method + b" /send?how=" + kind.encode() + b" " + version + b"\r\n" + HOST + headers + b"\r\n"


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
def test_protocol_error_is_json_with_cors_for_a_parsed_origin_and_no_other(own_server, status, version, more):
    (response,) = own_server.exchange(b"POST / HTTP/" + version + b"\r\n" + HOST + ORIGIN + more)
    assert response.status == status
    assert response.headers.pop("date").endswith(" GMT")
    assert response.headers == {
        "content-type": "application/json",
        "cache-control": "no-store",
        "vary": "Origin",
        "access-control-allow-origin": "https://a.example",
        "access-control-expose-headers": "Retry-After, WWW-Authenticate, X-Request-Id",
        "content-length": str(len(response.body)),
        "connection": "close",
    }
    assert list(response.json) == ["error"]
    for origin in (b"", b"Origin: https://a.example\rX: 1\r\n", b"Origin: " + b"x" * 600 + b"\r\nX: 1\r\n"):
        (response,) = own_server.exchange(b"GET / HTTP/1.1\r\nHost: a\r\n" + origin + b"no colon\r\n\r\n")
        assert (response.status, "access-control-allow-origin" in response.headers) == (400, False)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n", 400),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n" + b"x" * 300_000, 200),
    ],
    ids=["error", "coding", "data after the last request"],
)
def test_last_response_arrives_while_the_client_sends(own_server, raw, status):
    with own_server.connect() as client:
        client.sendall(raw)
        for _ in range(50):
            client.sendall(b"x" * 20_000)
            time.sleep(0.001)
        (response,) = answers(client.recv(1 << 20))
    assert (response.status, response.whole) == (status, True)


@pytest.mark.parametrize("expect", [b"", b"Expect: 100-continue\r\n"])
def test_oversized_body_is_413_immediately_and_without_100_continue(expect):
    no_store = SimpleNamespace(shared_redis=None)  # which no request needs
    sizes = (262_145, 50_000_000, 2**63 - 1, 2**64 - 1)
    rows = [(b"Content-Length: %d" % size, 0) for size in sizes] + [(b"Content-Length: 3000000", 30)]
    if not expect:
        rows.append((b"Transfer-Encoding: chunked", 30))
    with serving(lambda: applying(no_store, Clock(), Settings())) as running:
        for framing, chunks in rows:  # the response also arrives completely while the body is sent
            with running.connect() as client:
                client.sendall(b"POST /poll HTTP/1.1\r\n" + HOST + ORIGIN + expect + framing + b"\r\n\r\n")
                for _ in range(chunks):
                    client.sendall(b"186a0\r\n" + b"x" * 100_000 + b"\r\n")
                (response,) = answers(read_all(client))
            assert (response.status, response.json, response.whole) == (413, {"error": "Request body too large"}, True)
            assert response.headers["connection"] == "close"


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_100_continue_is_sent_if_expected_after_earlier_responses(own_server, earlier, framing):
    """A received body or HTTP/1.0 gets none."""
    head = b"POST / HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\n" + framing + b"\r\n\r\n"
    body = b"hello" if b"Length" in framing else b"5\r\nhello\r\n0\r\n\r\n"
    with own_server.connect() as client:
        client.sendall((b"GET /1 HTTP/1.1\r\n" + HOST + b"\r\n") * earlier + head)
        received = receive_until(client, b"HTTP/1.1 100 Continue\r\n\r\n")
        client.sendall(body)
        responses = answers(received + read_all(client))
    assert [response.status for response in responses] == [*[200] * earlier, 100, 200]
    responses += own_server.exchange(head + body)
    if b"Length" in framing:
        with own_server.connect() as client:
            client.sendall(head.replace(b"HTTP/1.1", b"HTTP/1.0"))
            time.sleep(0.05)
            client.sendall(body)
            responses += answers(read_all(client))
    assert {response.json["body"] for response in responses[earlier + 1 :]} == {"hello"}


@pytest.mark.parametrize(
    ("kind", "status", "length"),
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
def test_every_response_has_valid_framing(subtests, sending, kind, status, length):
    """The next one too, if the connection is kept alive."""
    versions, wishes = (b"HTTP/1.1", b"HTTP/1.0"), (b"", CLOSE, b"Connection: keep-alive\r\n")
    for method, version, wish in itertools.product((b"GET", b"HEAD"), versions, wishes):
        with subtests.test(f"{method} {version} {wish}"):
            next_request = b"GET /next HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n"
            received = exchange_raw(sending, send(kind, method, version, wish) + next_request)
            head, _, rest = received.partition(b"\r\n\r\n")
            persistent = wish != CLOSE and kind != "closing" and (version == b"HTTP/1.1" or wish != b"")
            chunked = version == b"HTTP/1.1" and method == b"GET" and status == 200 and length is None
            if version == b"HTTP/1.0" and method == b"GET" and length is None and status == 200:
                persistent = False
            lines = head.decode().split("\r\n")
            assert lines[0].startswith(f"HTTP/1.1 {status} ")
            headers = dict(line.split(": ") for line in lines[1:])
            assert len(headers) == len(lines) - 1
            assert headers.get("Content-Length") == length
            assert ("Transfer-Encoding" in headers) == chunked
            assert headers.get("Connection") == (
                "close" if not persistent else "keep-alive" if version == b"HTTP/1.0" else None
            )
            body = b"hello"
            if method == b"HEAD" or status != 200:
                body = b""
            elif chunked:
                of_steps = b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"
                body = b"5\r\nhello\r\n0\r\n\r\n" if kind == "own_coding" else of_steps
            assert rest[: len(body)] == body
            assert [b'"/next"' in response.body for response in answers(rest[len(body) :])] == [True] * persistent


@pytest.mark.parametrize("kind", ["too_short", "too_long", "too_long_at_once"])
def test_response_with_a_wrong_content_length_closes_the_connection(sending, kind):
    received = exchange_raw(sending, send(kind) + send("whole"))
    assert received.count(b"HTTP/1.1") <= 1
    assert not any(response.whole and response.body == b"hello" for response in answers(received))


@pytest.mark.parametrize("kind", [*BREAKS, "caught", "header_name", "reason"])
def test_line_break_in_a_value_does_not_add_a_header(sending, kind):
    received = exchange_raw(sending, send(kind, headers=CLOSE))
    assert sending.exchange(send("whole", headers=CLOSE))[0].body == b"hello"
    assert received == b""


@on_both_loops
def test_error_responses_are_complete_over_tls_and_one_of_http_1_0_ends_with_an_immediate_close(
    loop, pair, trusting, monkeypatch
):
    monkeypatch.setattr(connection, "LINGER_S", 10 * PATIENCE_S)  # the client must not wait for this
    tls = Tls(read_certificate(*pair)).context
    with serving(lambda: echo_application(("/send", SendingHandler)), loop=loop, tls=tls) as running:
        errors = (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        for raw in (*errors, send("in_steps", version=b"HTTP/1.0")):
            with trusting.wrap_socket(running.connect(), server_hostname="127.0.0.1") as client:
                client.sendall(raw)
                (response,) = answers(client.recv(1 << 16) if raw in errors else read_all(client))
            assert (response.status, response.whole) == (400 if raw in errors else 200, True)
    assert response.body == b"hello"


def exchange_raw(running, raw):
    with running.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


# Requests, however they arrive. Each test runs all and reports those that fail: thousands of tests would take longer.

TORNADO_REFUSES = b"HTTP/1.1 400 Bad Request\r\n\r\n"  # it has no length; the connection ends there


@pytest.fixture(scope="module")
def tornado_server():
    """A server of Tornado with the same application."""
    with serving(kind="tornado", quiet=False) as running:
        yield running


@pytest.fixture(scope="module")
def expected(own_server):
    """The responses of this transport to each request of the corpus in one segment, followed by LAST."""
    return {name: comparable(own_server.exchange(raw + LAST)) for name, raw in CORPUS.items()}


def comparable(responses: list[Answer]) -> list[tuple]:
    """Return the parts of responses that must be the same for every segmentation and server."""
    volatile = ("date", "connection", "transfer-encoding")
    return [
        (response.status, {key: value for key, value in response.headers.items() if key not in volatile}, response.body)
        for response in responses
        if response.status != 100
    ]


def is_refused(responses: list[tuple]) -> bool:
    """Return whether the last response is from the transport or missing. Responses of handlers have a Server header."""
    return not responses or "server" not in responses[-1][1]


def test_refusals_are_those_of_tornado_with_listed_exceptions_and_end_the_connection(
    subtests, expected, tornado_server
):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            with tornado_server.connect() as client:
                with contextlib.suppress(ConnectionError):
                    client.sendall(raw + LAST)
                received = read_all(client).replace(b"100 (Continue)", b"100 Continue")
            own, tornado = expected[name], comparable(answers(received.removesuffix(TORNADO_REFUSES)))
            if received.endswith(TORNADO_REFUSES):
                tornado.append((400, {}, b""))
            if is_refused(own) and is_refused(tornado):
                table, own, tornado = None, own[:-1], tornado[:-1]  # compare the responses before the refusal
            elif is_refused(own):
                table = STRICTER
            elif is_refused(tornado):
                table = LAXER
            else:
                table = DIFFERENT if own != tornado else None
            assert [listing for listing in (STRICTER, LAXER, DIFFERENT) if name in listing] == (
                [] if table is None else [table]
            )
            assert table is not None or own == tornado
            *before, last = responses = expected[name]
            assert not any(is_refused([response]) for response in before)
            assert not any(b'"/smuggled"' in body for _, _, body in responses)
            if is_refused(responses):
                assert last[0] == REFUSED[name]
                assert last[1]["content-type"] == "application/json"
                assert last[1]["vary"] == "Origin"
                assert b'{"error":"' in last[2]
            else:
                assert name not in REFUSED
                assert before or name in ENDS
                assert (b'"/last"' in last[2]) == (name not in ENDS)


def test_pipelined_requests_and_single_bytes_get_the_same_responses(subtests, own_server, expected):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            responses = comparable(own_server.exchange(GOOD + GOOD + raw + LAST))
            assert [body.count(b'"/good"') for _, _, body in responses[:2]] == [1, 1]
            assert responses[2:] == expected[name]
        if not name.startswith("byte "):  # these are similar to many others
            with subtests.test(f"{name} in bytes"), chopping(1):
                assert comparable(own_server.exchange(raw + LAST)) == expected[name]


def test_body_that_looks_like_a_known_request_and_arrives_alone_is_a_body(own_server):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    assert len(own_server.exchange(GOOD + LAST)) == 2
    with chopping(len(head), len(GOOD), len(LAST)):
        posted, last = own_server.exchange(head + GOOD + LAST)
    assert (posted.json["body"].encode(), "/last" in last.json["request"]) == (GOOD, True)
