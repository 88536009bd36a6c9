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

    def request_received(self, start_line, headers, keep_alive, body=None):
        values = dict(headers), headers.get_list("Content-Length"), headers.get_list("Authorization")
        self.calls.append([*start_line, *values, keep_alive, body or b"", body is not None])

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
    "Host: h\r\nAuthorization: Bearer @\r\nContent-Length: @\r\n",
    "Host: h\r\nAuthorization: Bearer @\r\ncontent-length: @\r\n",
    "Host: h\r\nContent-Length: @\r\nAuthorization: Bearer @\r\nAuthorization: Bearer @\r\n",
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
    for cache in (syntax._heads, syntax._lines, syntax._fields):
        cache.clear()
    first = parse_pieces([bytes([byte]) for byte in sent])
    for _ in range(2):
        assert parse_pieces(pieces) == first


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
        *[(name + b": Bearer x", False) for name in (b"authorization", b"COOKIE", b"proxy-authorization")],
        *[(field, False) for field in (b"Connection: close", b"Expect: 100-continue", b"Upgrade: websocket")],
    ],
)
def test_only_small_blocks_without_credentials_are_kept(field, kept):
    block = b"HTTP/1.1\r\nHost: h\r\n" + field
    assert (parse_head(block)[1] is parse_head(block)[1]) == kept
    others = [parse_head(block + b"\r\nContent-Length: %d" % length)[1] for length in (1, 2)]
    assert [headers["content-length"] for headers in others] == ["1", "2"]
    assert (block + b"\r\nContent-Length: " in syntax._heads) == kept
    assert (field in syntax._fields) == (kept or field.startswith((b"Connection", b"Expect", b"Upgrade")))


def test_token_is_not_kept_with_its_head():
    heads = [b"HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b" % token for token in (b"one", b"two", b"two")]
    found = [parse_head(head)[1] for head in heads]
    assert [headers["Authorization"] for headers in found] == ["Bearer one", "Bearer two", "Bearer two"]
    assert found[0].get_list("Host") == ["h"]
    kept = syntax._heads[b"HTTP/1.1\r\nHost: h\r\nAuthorization: "].headers
    assert kept.sent == {b"host": b"h", b"authorization": b""}
    assert "Authorization" not in kept._decoded


def test_known_request_that_is_refused_has_its_headers():
    sink = Sink()
    parser = RequestParser(sink)
    request = b"GET /health HTTP/1.1\r\nHost: h\r\nOrigin: https://one.example\r\n\r\n"
    parser.feed(request)

    def refuse(*_):
        raise BadRequest(503)

    sink.request_received = refuse
    with pytest.raises(BadRequest):
        parser.feed(request)
    assert parser.partial_headers["Origin"] == "https://one.example"


@pytest.mark.parametrize(
    "last", ["GET /x HTTP/1.1\r\nConnection: close", "GET /x HTTP/1.0", "UNKNOWN /x HTTP/1.1\r\nConnection: close"]
)
def test_known_request_is_refused_after_the_last_one_of_its_connection(last):
    known = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
    parse_pieces([known])
    parser = RequestParser(Sink())
    parser.feed(f"{last}\r\nHost: h\r\n\r\n".encode())
    with pytest.raises(BadRequest):
        parser.feed(known)


def test_line_of_http_1_0_is_not_that_of_a_known_request():
    known = b"GET /version HTTP/1.1\r\nHost: h\r\n\r\n"
    calls = [parse_pieces([request])[0][0] for request in (known, known.replace(b"1.1", b"1.0"), known)]
    assert [call[2] for call in calls] == ["HTTP/1.1", "HTTP/1.0", "HTTP/1.1"]


def test_caches_are_bounded():
    for number in range(2 * syntax.CACHED_FIELDS):
        parse_pieces([b"GET /%d HTTP/1.1\r\nHost: h\r\nX: %d\r\nContent-Length: 0\r\n\r\n" % (number, number)])
        assert len(syntax._lines) <= syntax.CACHED_LINES
        assert len(syntax._heads) <= syntax.CACHED_HEADS
        assert len(syntax._fields) <= syntax.CACHED_FIELDS


def test_connections_keep_no_head_that_the_caches_have_dropped():
    parser = RequestParser(Sink())
    for _ in range(3):
        parser.feed(b"GET /kept HTTP/1.1\r\nHost: h\r\nX: only here\r\n\r\n")
    assert parser._known() is not None
    syntax._heads.clear()
    assert parser._known() is None


def test_host_of_a_target_is_that_of_one_request():
    block = b"Host: good.example\r\n\r\n"
    requests = [b"GET /a HTTP/1.1\r\n", b"GET http://evil.example/b HTTP/1.1\r\n", b"GET /c HTTP/1.1\r\n"]
    calls, _ = parse_pieces([line + block for line in requests])
    assert [(call[1], call[3]["Host"]) for call in calls] == [
        ("/a", "good.example"),
        ("/b", "evil.example"),
        ("/c", "good.example"),
    ]


def test_length_of_a_known_head_is_its_own_after_a_target_with_a_host():
    block = b" HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
    targets = [(b"/a", b"x"), (b"http://other/a", b"xy"), (b"/a", b"xyz")]
    calls, _ = parse_pieces([b"POST " + target + block % (len(body), body) for target, body in targets])
    assert [(call[3]["Host"], call[4], call[7]) for call in calls] == [
        ("h", ["1"], b"x"),
        ("other", ["2"], b"xy"),
        ("h", ["3"], b"xyz"),
    ]


def test_methods_that_the_parser_does_not_know_are_kept():
    methods = ["BREW", "get", "!x", "x" * 32, "GET"]
    heads = [f"{method} /a HTTP/1.1\r\nHost: h\r\n\r\n".encode() for method in methods]
    calls, _ = parse_pieces([b"".join(heads)])
    assert [call[:2] for call in calls] == [[method, "/a"] for method in methods]
