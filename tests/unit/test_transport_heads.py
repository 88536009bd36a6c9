"""Heads that have come before are not parsed again, and mean the same; nothing else is taken for one of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.http_corpus import CORPUS

from tornado_signal.transport.receiver import KNOWN_HEAD_BYTES, KNOWN_HEADS, PIECE_BYTES, Receiver, plain_line
from tornado_signal.transport.syntax import Refused

HEAD = b"POST /poll HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n"


class Told(Receiver):
    """Writes down what it is told."""

    def __init__(self, heads):
        super().__init__(heads)
        self.told = []

    def request_received(self, head, keep_alive, body=None):
        self.told.append((head.start_line, list(head.headers.get_all()), keep_alive))
        if body:
            self.told.append(body)
        if body is not None:
            self.request_complete()

    def body_received(self, chunk):
        self.told.append(chunk)

    def request_complete(self):
        self.told.append("complete")


def understood(heads, data):
    """What a connection with these known heads makes of some bytes, pieces of one body put together."""
    receiver = Told(heads)
    at = 0
    try:
        while at < len(data):
            at += receiver.feed(data[at : at + PIECE_BYTES])
    except Refused as refused:
        receiver.told.append(refused.status)
    told = []
    for each in receiver.told:
        if isinstance(each, bytes) and told and isinstance(told[-1], bytes):
            told[-1] += each
        else:
            told.append(each)
    return told


@pytest.mark.parametrize("name", CORPUS)
def test_the_same_as_parsed(name):
    """Every request of the corpus means the same when its head is known, and so does what comes behind it."""
    data = CORPUS[name] + HEAD + b"body"
    first = understood({}, data)
    heads = {}
    understood(heads, HEAD + b"body")
    assert understood(heads, data) == first
    assert understood(heads, data) == first
    assert understood(heads, HEAD + b"body" + data)[3:] == first


@pytest.mark.parametrize("name", CORPUS)
def test_the_same_behind_another_line(name):
    """Headers that are known mean the same behind every request line of the corpus, and so does what comes behind."""
    line, _, rest = CORPUS[name].partition(b"\r\n")
    heads = {}
    understood(heads, HEAD + b"body")
    data = line + HEAD[HEAD.index(b"\r\n") :] + b"body" + HEAD + b"body"
    assert understood(heads, data) == understood({}, data)
    plain, odd = (first + b"\r\n" + rest + HEAD + b"body" for first in (b"POST /known HTTP/1.1", line))
    for before, data in ((plain, odd), (odd, plain)):
        heads = {}
        understood(heads, before)
        assert understood(heads, data) == understood({}, data)


@given(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"get", b"PRI", b"CONNECT"]),
    st.binary(max_size=6),
    st.binary(max_size=3),
)
def test_lines_that_only_look_plain(method, target, version):
    """Any few bytes in a request line mean with known headers what they mean without."""
    heads = {}
    understood(heads, HEAD + b"body")
    for line in (method + b" /" + target + b" HTTP/1.1" + version, method + b" " + target + b" HTTP/1." + version):
        data = line + HEAD[HEAD.index(b"\r\n") :] + b"body" + HEAD + b"body"
        assert understood(heads, data) == understood({}, data)


@given(st.binary(max_size=20), st.integers(0, 30))
def test_only_a_whole_one(behind, cut):
    """A known head with its body, some of it, or more than that is taken for what it is."""
    heads = {}
    understood(heads, HEAD + b"body")
    assert list(heads) == [HEAD[HEAD.index(b"\r\n") :]]
    data = (HEAD + b"body")[: len(HEAD) + 4 - cut] + (behind if cut == 0 else b"")
    assert understood(heads, data) == understood({}, data)


def test_it_is_not_parsed_again(monkeypatch):
    """The second time the parser is not asked."""
    heads = {}
    first = understood(heads, HEAD + b"body")
    monkeypatch.setattr(Receiver, "on_message_begin", None)  # whoever parsed would stumble here
    assert understood(heads, (HEAD + b"body") * 2) == first * 2
    other = understood(heads, HEAD.replace(b"/poll", b"/a%20topic/offer?x=1") + b"body")
    assert other[0][0] == ("POST", "/a%20topic/offer?x=1", "HTTP/1.1")
    assert other[0][1:] == first[0][1:]
    assert other[1:] == first[1:]


def test_not_too_many_and_not_too_long():
    """What is kept of heads is bounded, whatever comes."""
    heads = {}
    for number in range(KNOWN_HEADS * 2 + 1):
        understood(heads, b"GET / HTTP/1.1\r\nHost: %d\r\n\r\n" % number)
        assert len(heads) <= KNOWN_HEADS
    heads = {}
    understood(heads, b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"x" * KNOWN_HEAD_BYTES))
    assert heads == {}
    asked = plain_line.cache_info()
    for length in (KNOWN_HEAD_BYTES, 3 * KNOWN_HEAD_BYTES):
        for _ in range(2):
            understood(heads, b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"x" * length))
    assert plain_line.cache_info() == asked


@pytest.mark.parametrize(
    "head",
    [
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nAccept: x\r\nAccept: y\r\n\r\n",
        b"\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        b"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
)
def test_not_remembered(head):
    """What is not simply a head with a body of a known length behind it is parsed each time."""
    heads = {}
    assert understood(heads, head)
    assert heads == {}
