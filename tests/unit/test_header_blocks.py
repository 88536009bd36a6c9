"""Header blocks that repeat are parsed once, and are the same however the bytes are segmented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tornado_signal.transport import syntax
from tornado_signal.transport.parser import PIECE_BYTES, RequestParser
from tornado_signal.transport.syntax import BadRequest, parse_head


class Sink:
    """Records the calls of a parser. Chunks of a body are joined."""

    def __init__(self):
        self.calls = []

    def request_received(self, start_line, headers, keep_alive):
        self.calls.append([*start_line, dict(headers), headers.get_list("Content-Length"), keep_alive, b"", False])

    def body_received(self, chunk):
        self.calls[-1][-2] += chunk

    def request_complete(self):
        self.calls[-1][-1] = True


def parse_pieces(pieces):
    """Return the calls of a parser for pieces, up to an error."""
    sink = Sink()
    parser = RequestParser(sink)
    try:
        for piece in pieces:
            while piece:
                piece = piece[parser.feed(piece[:PIECE_BYTES]) :]
    except BadRequest as refused:
        sink.calls.append(refused.status)
    return sink.calls, parser.in_head


METHODS = ["GET", "POST", "OPTIONS", "DELETE", "RTSP", "get"]
TARGETS = ["/", "/poll", "/a%20b/offer?x=1", "*", "http://other/x", "/#", "/\xe4", "", "/x y"]
VERSIONS = ["HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/1.1 "]
LENGTHS = ["{}", " {}", "{} ", "+{}", "0{}", "{}, {}", "x", ""]
BLOCKS = [
    "Host: h\r\nOrigin: https://one.example\r\n",
    "Host: h\r\nContent-Length: @\r\nOrigin: https://one.example\r\n",
    "Host: h\r\nContent-Length: @\r\ncontent-length: @\r\n",
    "Host: h\r\nX: Content-Length: @\r\nContent-Length: @\r\n",
    "Host: h\r\nContent-Length: @\r\nConnection: close\r\n",
    "Host: h\r\nTransfer-Encoding: chunked\r\n",
    "Host: h\r\nContent-Length: @\r\nExpect: 100-continue\r\n",
    "Host: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: @\r\n",
    "Origin: https://one.example\r\n",
]


def weighted(usual, strange):
    """Draw the usual value most of the time."""
    return st.integers(0, 9).flatmap(lambda number: st.sampled_from(strange) if number == 0 else st.just(usual))


@st.composite
def requests(draw, block):
    body = draw(st.binary(max_size=20))
    length = draw(weighted("{}", LENGTHS)).format(len(body), len(body))
    line = (
        f"{draw(weighted('POST', METHODS))} {draw(weighted('/poll', TARGETS))} {draw(weighted('HTTP/1.1', VERSIONS))}"
    )
    block = draw(weighted(block, BLOCKS))
    if "chunked" in block:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif "@" not in block:
        body = b""
    return f"{line}\r\n{block.replace('@', length)}\r\n".encode("latin-1") + body


@given(st.data())
def test_repeated_block_is_parsed_like_a_new_one(data):
    block = data.draw(st.sampled_from(BLOCKS))
    sent = b"".join(data.draw(st.lists(requests(block), min_size=1, max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    pieces = [sent[start:end] for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    syntax._heads.clear()
    syntax._fields.clear()
    first = parse_pieces(pieces)
    assert parse_pieces(pieces) == first
    assert parse_pieces([bytes([byte]) for byte in sent]) == first


def test_unknown_method_after_chunks_is_refused_however_it_is_segmented():
    chunked = b"POST /poll HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    sent = chunked + b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n"
    first = parse_pieces([sent])
    assert first[0][-1] == 400
    assert parse_pieces([bytes([byte]) for byte in sent]) == first


@pytest.mark.parametrize(
    ("field", "kept"),
    [
        (b"X: x", True),
        (b"X: " + b"x" * syntax.MAX_CACHED_BYTES, False),
        *[(name + b": x", False) for name in (b"Authorization", b"COOKIE", b"proxy-authorization")],
    ],
)
def test_only_small_blocks_without_credentials_are_kept(field, kept):
    block = b"HTTP/1.1\r\nHost: h\r\n" + field
    assert (parse_head(block) is parse_head(block)) == kept
    others = [parse_head(block + b"\r\nContent-Length: %d" % length)[1] for length in (1, 2)]
    assert [headers["content-length"] for headers in others] == ["1", "2"]
    assert (block + b"\r\nContent-Length: " in syntax._heads) == kept
    assert (field in syntax._fields) == kept


def test_caches_are_bounded():
    for number in range(2 * syntax.CACHED_FIELDS):
        parse_head(b"HTTP/1.1\r\nHost: h\r\nX: %d\r\nContent-Length: 1" % number)
        assert len(syntax._heads) <= syntax.CACHED_HEADS
        assert len(syntax._fields) <= syntax.CACHED_FIELDS


def test_host_of_a_target_is_that_of_one_request():
    block = b"Host: good.example\r\n\r\n"
    requests = [b"GET /a HTTP/1.1\r\n", b"GET http://evil.example/b HTTP/1.1\r\n", b"GET /c HTTP/1.1\r\n"]
    calls, _ = parse_pieces([line + block for line in requests])
    assert [(call[1], call[3]["Host"]) for call in calls] == [
        ("/a", "good.example"),
        ("/b", "evil.example"),
        ("/c", "good.example"),
    ]


def test_methods_that_the_parser_does_not_know_are_kept():
    methods = ["BREW", "get", "!x", "x" * 32, "GET"]
    heads = [f"{method} /a HTTP/1.1\r\nHost: h\r\n\r\n".encode() for method in methods]
    calls, _ = parse_pieces([b"".join(heads)])
    assert [call[:2] for call in calls] == [[method, "/a"] for method in methods]
