"""Headers are like those of Tornado. Blocks that repeat are parsed once, and however the bytes are segmented."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tornado.httputil import HTTPHeaders

from tornado_signal.transport import syntax
from tornado_signal.transport.headers import Headers
from tornado_signal.transport.parser import PIECE_BYTES, RequestParser
from tornado_signal.transport.syntax import BadRequest, parse_head


class Sink:
    """Records the calls of a parser. Chunks of a body are joined."""

    def __init__(self):
        self.calls = []

    def request_received(self, start_line, headers, keep_alive, body=None):
        values = dict(headers), headers.get_list("Content-Length")
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
    return sink.calls


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


def test_caches_are_bounded():
    for number in range(2 * max(syntax.CACHED_LINES, syntax.CACHED_HEADS)):
        parse_pieces([b"GET /%d HTTP/1.1\r\nHost: h\r\nX: %d\r\nContent-Length: 0\r\n\r\n" % (number, number)])
        assert len(syntax._lines) <= syntax.CACHED_LINES
        assert len(syntax._heads) <= syntax.CACHED_HEADS


def test_connections_keep_no_head_that_the_caches_have_dropped():
    parser = RequestParser(Sink())
    for _ in range(3):
        parser.feed(b"GET /kept HTTP/1.1\r\nHost: h\r\nX: only here\r\n\r\n")
    assert parser._known() is not None
    syntax._heads.clear()
    assert parser._known() is None


GET = b"GET %b HTTP/1.1\r\nHost: good.example\r\n\r\n"
POST = b"POST %b HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
XY = POST % (b"/a", 2, b"xy")
LENGTH_FIRST = b"POST /a HTTP/1.1\r\nContent-Length: 1\r\nHost: %b\r\n\r\nx"
TWO_TOKENS = b"GET /a HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer x\r\nAuthorization: Bearer y\r\n\r\n"
CHUNKED = b"POST /poll HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
UNKNOWN = ["BREW", "get", "!x", "x" * 32]


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([GET % b"/a", GET.replace(b"1.1", b"1.0") % b"/a"], ["GET /a 1.1 good.example", "GET /a 1.0 good.example"]),
        (
            [GET % b"/a", GET % b"http://evil.example/b", GET % b"/c"],
            ["GET /a 1.1 good.example", "GET /b 1.1 evil.example", "GET /c 1.1 good.example"],
        ),
        (
            [POST % (b"/a", 1, b"x"), POST % (b"http://other/a", 2, b"xy"), POST % (b"/a", 3, b"xyz")],
            ["POST /a 1.1 h 1 x", "POST /a 1.1 other 2 xy", "POST /a 1.1 h 3 xyz"],
        ),
        (
            [(GET % b"/a").replace(b"GET", each.encode()) for each in UNKNOWN],
            [f"{each} /a 1.1 good.example" for each in UNKNOWN],
        ),
        ([CHUNKED, GET.replace(b"GET", b"BREW") % b"/"], ["POST /poll 1.1 h", "400"]),
        ([XY, XY, XY.replace(b"Host: h", b"Host: g")], ["POST /a 1.1 h 2 xy"] * 2 + ["POST /a 1.1 g 2 xy"]),
        ([LENGTH_FIRST % host for host in (b"h", b"h", b"g")], ["POST /a 1.1 h 1 x"] * 2 + ["POST /a 1.1 g 1 x"]),
        ([XY, XY, XY.replace(b"2", b"+2")], ["POST /a 1.1 h 2 xy"] * 2 + ["400"]),
        ([TWO_TOKENS] * 2, ["GET /a 1.1 h Bearer x,Bearer y"] * 2),
    ],
    ids=[
        *("version", "target with a host", "length after such a target", "unknown methods", "unknown after chunks"),
        *("before a length", "after a length", "invalid length", "two tokens"),
    ],
)
def test_part_of_a_known_request_is_not_that_of_another_one_however_they_are_segmented(requests, expected):
    def shown(call):
        if isinstance(call, int):
            return str(call)
        method, target, version, headers, lengths, _, body, _ = call
        token = headers.get("Authorization", "")
        parts = [method, target, version[-3:], headers["Host"], *lengths, token, body.decode()]
        return " ".join(filter(None, parts))

    sent = b"".join(requests)
    for pieces in (requests, [sent], [bytes([byte]) for byte in sent]):
        assert [*map(shown, parse_pieces(pieces))] == expected


NAMES = st.sampled_from(["Host", "host", "HOST", "Last-Event-ID", "last-event-id", "X-a", "x-A", "Origin"])
VALUES = st.sampled_from(["", "1", "a,b", "value", "\u00e4"])


@given(st.lists(st.tuples(NAMES, VALUES)), NAMES)
def test_headers_behave_like_those_of_tornado(pairs, key):
    ours, theirs = Headers([(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]), HTTPHeaders()
    for name, value in pairs:
        theirs.add(name, value)
    assert (key in ours) == (key in theirs)
    assert ours.get(key) == theirs.get(key)
    assert ours.get(key, "other") == theirs.get(key, "other")
    assert ours.get_list(key) == theirs.get_list(key)
    assert list(ours.get_all()) == list(theirs.get_all())
    assert dict(ours) == dict(theirs)
    assert len(ours) == len(theirs)
    assert str(ours) == str(theirs)
    assert ours.copy() == theirs
    for name in (key, "\u0141", ""):
        if name in theirs:
            assert ours[name] == theirs[name]
            continue
        assert name not in ours
        with pytest.raises(KeyError):
            ours[name]
