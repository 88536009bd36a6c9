"""Generated requests, divided into arbitrary segments, pipelined and mutated."""

import itertools
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_http import answers, chopping, read_all, serving

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


@pytest.fixture(scope="module")
def echo_server():
    with serving() as running:
        yield running


def exchange_pieces(running, pieces):
    """Send pieces and return the statuses, headers and bodies of the responses."""
    with running.connect() as client:
        for piece in pieces:
            client.sendall(piece)
        responses = answers(read_all(client))
    return [(response.status, {**response.headers, "date": None}, response.body) for response in responses]


@given(data=st.data())
def test_segmentation_and_pipelining_do_not_change_responses(echo_server, data):
    drawn = data.draw(st.lists(requests(), min_size=1, max_size=6))
    expected = [exchange_pieces(echo_server, [request, CLOSE])[0] for request in drawn]
    assert [status for status, *_ in expected] == [200] * len(drawn)
    raw = b"".join(drawn) + CLOSE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    sizes = [end - start for start, end in itertools.pairwise([0, *cuts, len(raw)]) if start < end]
    with chopping(*sizes):
        assert exchange_pieces(echo_server, [raw])[:-1] == expected


@settings(max_examples=3 * settings().max_examples)
@given(raw=mutations() | st.binary(max_size=300))
def test_any_bytes_get_http_responses_without_a_500(echo_server, raw):
    with echo_server.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        received = read_all(client)
    statuses = [response.status for response in answers(received)]
    assert all(status < 500 or status in (501, 505) for status in statuses)
    assert len(exchange_pieces(echo_server, [CLOSE])) == 1
