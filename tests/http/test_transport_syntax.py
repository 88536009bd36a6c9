"""Unusual and hostile requests, and generated ones, however they arrive, compared with the HTTP server of Tornado.

Each test runs all requests and reports those that fail, because thousands of small tests would take much longer.
"""

import contextlib
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


def test_body_that_looks_like_a_known_request_and_arrives_alone_is_a_body(own_server):
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    assert len(own_server.exchange(GOOD + LAST)) == 2
    with chopping(len(head), len(GOOD), len(LAST)):
        posted, last = own_server.exchange(head + GOOD + LAST)
    assert (posted.json["body"].encode(), "/last" in last.json["request"]) == (GOOD, True)


# Mutated requests

CLOSE = b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
VALID = [raw for name, raw in CORPUS.items() if name not in REFUSED and len(raw) < 1000]


@st.composite
def mutations(draw):
    """Valid requests with bytes flipped, removed, repeated or moved."""
    raw = bytearray(b"".join(draw(st.lists(st.sampled_from(VALID), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(raw)))
        end = min(len(raw), place + draw(st.sampled_from([0, 1, 1, 2, 10])))
        others = st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"\xff", b"0", b"9" * 20])
        raw[place:end] = draw(st.one_of(st.just(b""), st.binary(max_size=4), others, st.just(bytes(raw[:end]))))
    return bytes(raw)


@settings(max_examples=3 * settings().max_examples)
@given(raw=mutations() | st.binary(max_size=300))
def test_any_bytes_get_http_responses_without_a_500(own_server, raw):
    with own_server.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        received = read_all(client)
    statuses = [response.status for response in answers(received)]
    assert all(status < 500 or status in (501, 505) for status in statuses)
    assert len(own_server.exchange(CLOSE)) == 1
