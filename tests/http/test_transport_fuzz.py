"""Requests that hypothesis makes up: however they are cut and grouped, and whatever is done to their bytes."""

import itertools
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.raw_http import answers, chopping, read_all, serving

CLOSE = b"GET /end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
TOKEN = st.text("!#$%&'*+-.^_`|~09azAZ", min_size=1, max_size=12)
VISIBLE = st.characters(min_codepoint=33, max_codepoint=126)
TARGET = st.text(VISIBLE, max_size=20).map(lambda rest: "/" + rest)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=30)
BODY = st.binary(max_size=200)
SPECIAL = {"host", "content-length", "transfer-encoding", "connection", "expect", "upgrade", "content-type"}
BLANK = st.text(" \t", max_size=3)


@st.composite
def requests(draw):
    """A valid request that keeps its connection."""
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
    """Valid requests, and some of their bytes flipped, left out, doubled, or put elsewhere."""
    raw = bytearray(b"".join(draw(st.lists(requests(), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(raw)))
        end = min(len(raw), place + draw(st.sampled_from([0, 1, 1, 2, 10])))
        others = st.sampled_from([b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"\xff", b"0", b"9" * 20])
        raw[place:end] = draw(st.one_of(st.just(b""), st.binary(max_size=4), others, st.just(bytes(raw[:end]))))
    return bytes(raw)


@pytest.fixture(scope="module")
def echoing():
    with serving() as running:
        yield running


def spoken(running, pieces):
    """Statuses, headers and bodies of what a server says to pieces that it reads one by one."""
    with running.connect() as client:
        for piece in pieces:
            client.sendall(piece)
        found = answers(read_all(client))
    return [(each.status, {**each.headers, "date": None}, each.body) for each in found]


@given(data=st.data())
def test_requests_get_the_same_answers_however_cut_and_pipelined(echoing, data):
    listed = data.draw(st.lists(requests(), min_size=1, max_size=6))
    alone = [spoken(echoing, [request, CLOSE])[0] for request in listed]
    assert [status for status, *_ in alone] == [200] * len(listed)
    raw = b"".join(listed) + CLOSE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    sizes = [end - start for start, end in itertools.pairwise([0, *cuts, len(raw)]) if start < end]
    with chopping(*sizes):
        assert spoken(echoing, [raw])[:-1] == alone


@settings(max_examples=3 * settings().max_examples)
@given(raw=mutations() | st.binary(max_size=300))
def test_any_bytes_are_answered_in_http_without_a_500(echoing, raw):
    with echoing.connect() as client:
        client.sendall(raw)
        client.shutdown(socket.SHUT_WR)
        received = read_all(client)
    statuses = [answer.status for answer in answers(received)]
    assert all(status < 500 or status in (501, 505) for status in statuses)
    assert len(spoken(echoing, [CLOSE])) == 1
