"""Unusual and hostile requests, and generated ones, however they arrive, compared with the HTTP server of Tornado.

Each test runs all requests and reports those that fail, because thousands of small tests would take much longer.
"""

import contextlib
import itertools
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.http_corpus import CORPUS, DIFFERENT, ENDS, GOOD, LAST, LAXER, REFUSED, STRICTER
from support.raw_http import Answer, answers, chopping, read_all, serving

TORNADO_REFUSES = b"HTTP/1.1 400 Bad Request\r\n\r\n"  # it has no length; the connection ends there


@pytest.fixture(scope="module")
def own_server():
    """A server with this transport and an application that echoes requests."""
    with serving() as running:
        yield running


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


def tornado_responses(tornado_server, raw: bytes) -> list[tuple]:
    with tornado_server.connect() as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(raw)
        received = read_all(client)
    received = received.replace(b"100 (Continue)", b"100 Continue")
    if not received.endswith(TORNADO_REFUSES):
        return comparable(answers(received))
    return [*comparable(answers(received.removesuffix(TORNADO_REFUSES))), (400, {}, b"")]


def test_requests_refused_by_tornado_are_refused_with_listed_exceptions(subtests, expected, tornado_server):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            own, tornado = expected[name], tornado_responses(tornado_server, raw + LAST)
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


def test_refusal_has_the_expected_status_and_is_the_last_response(subtests, expected):
    for name, responses in expected.items():
        with subtests.test(name):
            *before, last = responses
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


def test_single_bytes_get_the_same_responses(subtests, own_server, expected):
    for name, raw in CORPUS.items():
        if name.startswith("byte "):  # these are similar to many others
            continue
        with subtests.test(name), chopping(1):
            assert comparable(own_server.exchange(raw + LAST)) == expected[name]


def test_pipelined_requests_get_the_same_responses(subtests, own_server, expected):
    for name, raw in CORPUS.items():
        with subtests.test(name):
            responses = comparable(own_server.exchange(GOOD + GOOD + raw + LAST))
            assert [body.count(b'"/good"') for _, _, body in responses[:2]] == [1, 1]
            assert responses[2:] == expected[name]


# Generated requests

CLOSE = b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
TOKEN = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=12)
VISIBLE = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="#")
TARGET = st.text(VISIBLE, max_size=20).map(lambda rest: "/" + rest)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
BODY = st.binary(max_size=200)
SPECIAL = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "content-type"}
BLANK = st.text(" \t", max_size=3)


@st.composite
def requests(draw):
    """A valid request after which the connection stays open."""
    names = draw(st.lists(TOKEN.filter(lambda name: name.lower() not in SPECIAL), max_size=5))
    lines = [f"Host: {draw(st.sampled_from(['a', 'a.example:80', '[::1]:80', '']))}"]
    lines += [f"{name}:{draw(BLANK)}{draw(VALUE)}{draw(BLANK)}" for name in names]
    framing = draw(st.sampled_from(["none", "length", "chunked"]))
    method = draw(st.sampled_from(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]))
    body = b""
    if framing == "length":
        body = draw(BODY)
        lines.append(f"Content-Length: {len(body)}")
    elif framing == "chunked":
        lines.append("transfer-encoding: Chunked")
        for chunk in draw(st.lists(st.binary(min_size=1, max_size=40), max_size=6)):
            body += f"{len(chunk):{draw(st.sampled_from(['x', 'X', '06x']))}}".encode() + b"\r\n" + chunk + b"\r\n"
        body += b"0\r\n\r\n"
    if draw(st.booleans()):
        lines.append(draw(st.sampled_from(["Connection: keep-alive", "Connection: upgrade\r\nUpgrade: h2c"])))
    lines = draw(st.permutations(lines))
    head = f"{method} {draw(TARGET)} HTTP/1.1\r\n" + "".join(line + "\r\n" for line in lines) + "\r\n"
    return head.encode("latin-1") + body


@st.composite
def mutations(draw):
    """Valid requests with bytes flipped, removed, repeated or moved."""
    raw = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(raw)))
        end = min(len(raw), place + draw(st.sampled_from([0, 1, 1, 2, 10])))
        others = st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"\xff", b"0", b"9" * 20])
        raw[place:end] = draw(st.one_of(st.just(b""), st.binary(max_size=4), others, st.just(bytes(raw[:end]))))
    return bytes(raw)


def exchange_pieces(running, pieces):
    """Send pieces and return the statuses, headers and bodies of the responses."""
    with running.connect() as client:
        for piece in pieces:
            client.sendall(piece)
        responses = answers(read_all(client))
    return [(response.status, {**response.headers, "date": None}, response.body) for response in responses]


@given(data=st.data())
def test_segmentation_and_pipelining_do_not_change_responses(own_server, data):
    drawn = data.draw(st.lists(requests(), min_size=1, max_size=6))
    expected = [exchange_pieces(own_server, [request, CLOSE])[0] for request in drawn]
    assert [status for status, *_ in expected] == [200] * len(drawn)
    raw = b"".join(drawn) + CLOSE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    sizes = [end - start for start, end in itertools.pairwise([0, *cuts, len(raw)]) if start < end]
    with chopping(*sizes):
        assert exchange_pieces(own_server, [raw])[:-1] == expected


@settings(max_examples=3 * settings().max_examples)
@given(raw=mutations() | st.binary(max_size=300))
def test_any_bytes_get_http_responses_without_a_500(own_server, raw):
    with own_server.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        received = read_all(client)
    statuses = [response.status for response in answers(received)]
    assert all(status < 500 or status in (501, 505) for status in statuses)
    assert len(exchange_pieces(own_server, [CLOSE])) == 1
