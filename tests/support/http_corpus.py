"""Unusual and hostile requests, grouped by how this server and Tornado's own HTTP/1 server handle them.

Each request is sent with LAST after it, which closes the connection. No response may be missing.
"""

from collections.abc import Iterable
from typing import NamedTuple

HOST = b"Host: a.example\r\n"
LAST = b"GET /last HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
GOOD = b"POST /good HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\n\r\nok"
INNER = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
LENGTH = b"Content-Length: 5\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
EXPECT = b"Expect: 100-continue\r\n"
CONTROLS = [*(byte for byte in range(32) if byte not in b"\t"), 0x7F]
HIGH = [0x80, 0x85, 0xA0, 0xB2, 0xC3, 0xFF]
SEPARATORS = b'"(),/;<=>?@[\\]{}'

# Templates of requests.
LINE = b"%b\r\n" + HOST + b"\r\n"
TARGET = b"GET %b HTTP/1.1\r\n" + HOST + b"\r\n"
VERSION = b"GET / %b\r\n" + HOST + b"\r\n"
HEADER = b"GET / HTTP/1.1\r\n" + HOST + b"%b\r\n\r\n"
HOSTED = b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n"
SIZED = b"POST /post HTTP/1.1\r\n" + HOST + b"Content-Length: %b\r\n\r\nhello"
EMPTY = SIZED.removesuffix(b"hello")
CHUNKS = b"POST /post HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n%b"
CHUNK = CHUNKS % b"%b\r\nhello\r\n0\r\n\r\n"
TRAILER = CHUNKS % b"0\r\n%b\r\n\r\n"
IN_BODY = EMPTY % (b"%d" % len(INNER)) + INNER
IN_CHUNK = CHUNKS % (b"%x\r\n%b\r\n0\r\n\r\n" % (len(INNER), INNER))
CODING = b"POST /post HTTP/1.1\r\n" + HOST + b"Transfer-Encoding:%b\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


def get(headers: bytes = b"", version: bytes = b"HTTP/1.1", host: bytes = HOST) -> bytes:
    return b"GET / " + version + b"\r\n" + host + headers + b"\r\n"


def post(headers: bytes, body: bytes = b"", version: bytes = b"HTTP/1.1") -> bytes:
    return b"POST /post " + version + b"\r\n" + HOST + headers + b"\r\n" + body


def coding(value: bytes, version: bytes = b"HTTP/1.1", more: bytes = b"") -> bytes:
    return post(b"Transfer-Encoding:" + value + b"\r\n" + more, b"5\r\nhello\r\n0\r\n\r\n", version)


def upgrade(request: bytes) -> bytes:
    return request.replace(
        HOST, HOST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n", 1
    )


def each(what: str, template: bytes, values: bytes) -> dict[str, bytes]:
    """Return a request for each of the values, which `|` separates."""
    return {f"{what} {value!r}": template % value for value in values.split(b"|")}


def each_byte(where: str, some: Iterable[int], template: bytes) -> dict[str, bytes]:
    return {f"byte {byte:02x} {where}": template % (b"%c" % byte) for byte in some}


def named(what: str, *requests: bytes) -> dict[str, bytes]:
    """Return requests by name and number."""
    return {f"{what}, {number}": request for number, request in enumerate(requests, 1)}


class Kind(NamedTuple):
    requests: dict[str, bytes]  # by name
    status: int | None = None  # of the rejection, or None if the application handles them
    stricter: str = ""  # why this server rejects them and Tornado accepts them
    laxer: str = ""  # why this server accepts them and Tornado rejects them
    different: str = ""  # why both accept them and parse them differently
    ends: bool = False  # whether the connection is closed after the response


TAKEN = {
    **named("plain, and an empty line before", get(), b"\r\n" + get(), b"\n" + get()),
    **each("target", TARGET, b"/a/b?c=d&e=%00%ff+x|//a//b|/" + b"a" * 20_000),
    "odd characters in the target": TARGET % b"/\"<>\\^`{|}[]'%zz%",
    "long target and long headers": get(b"X: " + b"x" * 8_000 + b"\r\n").replace(b"/", b"/" + b"a" * 8_000, 1),
    **each("line", LINE, b"OPTIONS * HTTP/1.1|CONNECT / HTTP/1.1|PROPFIND / HTTP/1.1|HEAD / HTTP/1.1"),
    **each("line", LINE, b"OPTIONS / HTTP/1.1|DELETE / HTTP/1.1"),
    "CONNECT, body": b"CONNECT /x HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % len(INNER) + INNER,
    "HEAD with a body": b"HEAD / HTTP/1.1\r\n" + HOST + LENGTH + b"\r\nhello",
    # Headers.
    **each("header", HEADER, b"A:1\r\nB:\t2\t\r\nC:   3   \r\nD: 4 \t 5|Empty:\r\nBlank:   \r\nOther: x|X: \xe4\xff"),
    **each("header", HEADER, b"X: 1\r\nx: 2\r\nX:\r\nX: \t 3 \t|Connection: keep-alive"),
    "every token character in a name": HEADER % b"!#$%&'*+-.^_`|~09azAZ: x",
    "every visible character in a value": HEADER % (b"X: " + bytes(range(33, 127))),
    "many headers": get(b"".join(b"X-%d: %d\r\n" % (i, i) for i in range(100))),
    "no value of Host": get(host=b"Host:\r\n"),
    **each("Host", HOSTED, b"a:8080|a:|a%2d.example|[::1]:80|%41"),
    **each_byte("in a value", HIGH, HEADER % b"X: a%bb"),
    **each_byte("before a value", HIGH, HEADER % b"X:%ba"),
    **each_byte("behind a value", HIGH, HEADER % b"X: a%b"),
    # Bodies.
    **each("length", SIZED, b"5| \t5 \t|0005"),
    **each("length, no body", EMPTY, b"0|" + b"0" * 20),
    **named("a GET with a body, and a POST without", get(LENGTH) + b"hello", post(b"")),
    **each("underscore", post(b"%b\r\n"), b"Content_Length: 5|Transfer_Encoding: chunked"),
    **each("chunks", CHUNKS, b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n|0\r\n\r\n|0005\r\nhello\r\n000\r\n\r\n"),
    **each("chunks", CHUNKS, b"A\r\n0123456789\r\n0\r\n\r\n|" + b"1\r\na\r\n1\r\nb\r\n" * 150 + b"0\r\n\r\n"),
    **each("coding", CODING, b" Chunked|chunked|\tchunked"),
    **named("a request as a body", IN_BODY, IN_CHUNK),
    "form": post(b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 7\r\n", b"a=b&c=d"),
    "broken multipart": post(b"Content-Type: multipart/form-data; boundary=x\r\n" + LENGTH, b"hello"),
    "broken gzip": post(b"Content-Encoding: gzip\r\n" + LENGTH, b"hello"),
    # Connections.
    **each("HTTP/1.0", get(b"Connection: %b\r\n", b"HTTP/1.0"), b"keep-alive|Keep-Alive"),
    "HTTP/1.0 body, keep-alive": post(b"Connection: keep-alive\r\n" + LENGTH, b"hello", b"HTTP/1.0"),
    **named("expectation", post(EXPECT + LENGTH, b"hello"), get(EXPECT), post(EXPECT.title() + LENGTH, b"hello")),
    **named("upgrade", *map(upgrade, (get(), SIZED % b"5", IN_BODY, EMPTY % b"0", CHUNK % b"5", IN_CHUNK))),
    "upgrades": upgrade(SIZED % b"5") + upgrade(CHUNKS % b"1\r\na\r\n0\r\n\r\n") + upgrade(get()),
    "upgrade without Connection": get(b"Upgrade: h2c\r\n"),
    "upgrade to websocket": get(
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA\r\n"
    ),
}

TAKEN_LAST = {
    **each("Connection", HEADER % b"Connection: %b", b"close| Close "),
    "close with data behind": post(b"Connection: close\r\n" + LENGTH, b"hello" + INNER),
    **each("line", LINE, b"GET / HTTP/1.0|HEAD / HTTP/1.0"),
    **named("HTTP/1.0", get(b"", b"HTTP/1.0", b""), get(b"Connection: close\r\n", b"HTTP/1.0")),
    **named("HTTP/1.0 with", post(EXPECT + LENGTH, b"hello", b"HTTP/1.0"), upgrade(get(b"", b"HTTP/1.0"))),
}

TLS = bytes.fromhex("16030100c8010000c40303")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
BAD = {
    **named("a byte before", b" " + get(), b"\0" + get()),
    **named("another protocol", b"GET /\r\n\r\n", PREFACE, TLS + bytes(range(200))),
    "RTSP with a body": (SIZED % b"5").replace(b"HTTP", b"RTSP"),
    **each("version", VERSION, b"HTTP/1.10|HTTP/01.1|HTTP/1|http/1.1|ICE/1.0|RTSP/1.0|RTSP/1.1"),
    **each(
        "request line", LINE, b"GET /|GET  / HTTP/1.1|GET /  HTTP/1.1|GET\t/\tHTTP/1.1|GET / HTTP/1.1 |GET HTTP/1.1"
    ),
    "request line in a header": LINE % b"GET  /x HTTP/1.1\r\nX-A: GET /x HTTP/",
    "request line in a body": EMPTY % b"13" + b"\nGET /x HTTP/1" + LINE % b"GET  /x HTTP/1.1",
    "request line in a chunk": CHUNK % b"5" + LINE % b"GET  /x HTTP/1.1\r\nX-A: GET /x HTTP/",
    "request line before": TARGET % b"/x" + LINE % b"GET  /x HTTP/1.1",
    **each("line", LINE, b"GET /\r HTTP/1.1|GET /a b HTTP/1.1| / HTTP/1.1|G\0ET / HTTP/1.1"),
    **each("absolute-form", b"GET http://a.example/x HTTP/1.1\r\n%b\r\n", b"|" + HOST + HOST),
    # Headers.
    **each("header", HEADER, b"X: 1\r\n 2|X: 1\r\n\t2|X : 1|X\t: 1|X Y: 1|: 1|X|X: 1\r\nY|X: 1\rY: 2|X: 1\r"),
    "folding of the first header": b"GET / HTTP/1.1\r\n X: 1\r\n" + HOST + b"\r\n",
    **each("spaces", post(b"%b\r\n", b"hello"), b"Content-Length:\r\n 5|Content-Length : 5"),
    "folded Transfer-Encoding": post(b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n"),
    "CR at the end of the head": b"GET / HTTP/1.1\r\n" + HOST + b"\r" + HOST + b"\r\n",
    **named("no Host, or two", get(host=b""), get(HOST), get(HOST, b"HTTP/1.0"), HEADER % b"Host: b.example"),
    **each("Host", HOSTED, "a, b|a,b|a b|a/b|u@a|a%.example|%4|ü".encode()),
    **each_byte("in a value", CONTROLS, HEADER % b"X: a%bb"),
    **each_byte("in a name", [*CONTROLS, *HIGH, *SEPARATORS], HEADER % b"a%bb: x"),
    **each_byte("in the target", CONTROLS, TARGET % b"/a%bb"),
    **each_byte("before a value", CONTROLS, HEADER % b"X:%ba"),
    **each_byte("behind a value", set(CONTROLS) - {10}, HEADER % b"X: a%b"),
    **each_byte("in Content-Length", {*CONTROLS, *HIGH} - {10}, SIZED % b"5%b"),
    **each_byte("in a chunk size", [*CONTROLS, *HIGH], CHUNK % b"5%b"),
    # Bodies with a length.
    **each("length", SIZED, '+5|-5|5.0|0x5|5e0|1_0|٥|5 5|5\r\nContent-Length: 6|5, 6|5,|"5"'.encode()),
    **each("length", SIZED, b"18446744073709551616|18446744073709551621|" + b"9" * 100 + b"|" + b"9" * 5000),
    **each("length", SIZED, b"0" * 5000 + b"5"),
    **each("length, no body", EMPTY, b"|-0|" + b"0" * 5000),
    **each("length and coding", post(b"%b", b"0\r\n\r\n"), LENGTH + CHUNKED + b"|" + CHUNKED + LENGTH),
    "length and chunked, upgrade": upgrade(post(LENGTH + CHUNKED, b"0\r\n\r\n")),
    **each("length and coding", post(LENGTH + b"Transfer-Encoding: %b\r\n", b"hello"), b"gzip|identity"),
    # Chunked bodies.
    **each("chunk size", CHUNK, b"fffffffffffffffff|10000000000000005|-5|+5|0x5|0_5||xyz| 5|5 |5\t"),
    **each("chunk extension", CHUNK, b"5;a\rb|5;|5 ; a = b"),
    **each("chunk", CHUNKS, b"5\r\nhello0\r\n\r\n|5\r\nhello\n0\r\n\r\n|5\r\nhello!\r\n0\r\n\r\n"),
    **each("chunk", CHUNKS, b"5\nhello\r\n0\r\n\r\n|5\rhello\r\n0\r\n\r\n|5;a\nhello\r\n0\r\n\r\n"),
    **each("last chunk", CHUNKS, b'0\r\n\n|0\n\n|0\r\n|0\r\nX: 1\r\n|5;a="b\r\nhello\r\n0\r\n\r\n"'),
    "chunk extension, LF hides a chunk": CHUNKS % (b"2;\nxx\r\n4c\r\n0\r\n\r\n" + INNER + b"0\r\n\r\n"),
    **each("trailer", TRAILER, b"X: 1\r\n 2|X : 1|X: 1\nY: 2|Transfer-Encoding: chunked|GET / HTTP/1.1"),
    "trailer Content-Length": TRAILER % (b"Content-Length: %d" % len(INNER)) + INNER,
    # Transfer codings.
    **each("coding", CODING, b" \x0bchunked| chunked, gzip| chunked, chunked| chunked, identity| chunked,|"),
    **each("coding twice", CODING, b" chunked\r\nTransfer-Encoding: chunked| chunked\r\nTransfer-Encoding: identity"),
    "no coding, and a length": coding(b"", more=b"Content-Length: 15\r\n"),
}

MANY = b"".join(b"%d:\r\n" % i for i in range(12_000))
TOO_LARGE = {
    **each("header", HEADER, b"X: %b|%b: x|X: %bx" % (b"x" * 70_000, b"X" * 70_000, b" " * 70_000)),
    **named("many", get(MANY), CHUNKS % (b"0\r\n" + MANY + b"\r\n")),
    **named("in a body", CHUNK % (b"5;" + b"a" * 70_000), TRAILER % (b"X: " + b"x" * 70_000)),
}

UNKNOWN_URLS = {
    **each("target", TARGET, "a|?a|/ü|http:///x|http://u:p@a.example/x|http://a,b/x|ftp://a.example/x".encode()),
    **each("target", TARGET, b"http://a.example:x/x|a.example:80|*"),
    **each("line", LINE, b"OPTIONS *a HTTP/1.1|CONNECT a.example:443 HTTP/1.1"),
    **each_byte("in the target", HIGH, TARGET % b"/a%bb"),
}

LONE_LINE_FEEDS = {
    "LF everywhere": (HEADER % b"X: 1").replace(b"\r\n", b"\n"),
    **named("LF in a head", b"GET / HTTP/1.1\n" + HOST + b"\r\n", b"GET / HTTP/1.1\r\n" + HOST + b"\n"),
    **named("LF in a header", HEADER % b"X: 1\nY: 2", HEADER % (b"X: 1\nContent-Length: %d" % len(INNER)) + INNER),
    **each_byte("behind a value", b"\n", HEADER % b"X: a%b"),
    **each_byte("in Content-Length", b"\n", SIZED % b"5%b"),
}

EXTENSIONS = each("extension", CHUNKS, b'5;a=b\r\nhello\r\n0;c\r\n\r\n|5;a="b;c\\"d"\r\nhello\r\n0\r\n\r\n')
METHODS = each("line", LINE, b"BREW / HTTP/1.1|get / HTTP/1.1|%s / HTTP/1.1" % (b"x" * 32))
STRANGE_METHODS = {
    **each("line", LINE, b"DESCRIBE / HTTP/1.1|%s / HTTP/1.1|BREW /a#b HTTP/1.1" % (b"x" * 33)),
    "unknown method with LF": b"BREW / HTTP/1.1\n" + HOST + b"\r\n",
}
NO_METHODS = {
    **each("line", LINE, b"\0GET / HTTP/1.1|BREW /|BREW|BREW  / HTTP/1.1"),
    **each("unknown method", b"BREW / HTTP/1.1\r\n%b\r\n", b"|" + HOST * 2),
    **named("another protocol, zeros", TLS + bytes(200), b"SSH-2.0-OpenSSH_9.2\r\n"),
}
SAME_LENGTHS = each("length", SIZED, b"5\r\nContent-Length: 5|5, 5")
KEPT = b"Connection: keep-alive\r\n"
OLD_CODINGS = named("coding", coding(b" chunked", b"HTTP/1.0"), coding(b" chunked", b"HTTP/1.0", KEPT))

EXPECTATIONS = each("expectations", post(b"%b" + LENGTH, b"hello"), b"Expect: 200-ok\r\n|Expect:\r\n|" + EXPECT * 2)

TRAILERS = {
    "trailer behind a chunk": CHUNKS % b"5\r\nhello\r\n0\r\nX: 1\r\n\r\n",
    **each("trailer", TRAILER, b"Host: b.example|Origin: https://evil.example|Expect: miracles"),
    **each("trailer", TRAILER, b"Connection: Upgrade\r\nUpgrade: websocket|X: GET /smuggled HTTP/1.1"),
    "trailer announced": post(CHUNKED + b"Trailer: X\r\n", b"0\r\nX: 1\r\n\r\n"),
    "many trailers": CHUNKS % (b"5\r\nhello\r\n0\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(100)) + b"\r\n"),
    "upgrade with a trailer": upgrade(TRAILER % b"X: 1"),
}

URLS = each("target", TARGET, b"http://a.example/x?y|http://b.example/x|http://a.example|http://a.example?x")
LISTS = {
    "close in a list": HEADER % b"Connection: x, close",
    "coding and close in a list": coding(b" chunked", more=b"Connection: close, Transfer-Encoding\r\n"),
}

KINDS = [
    Kind(TAKEN),
    Kind(TAKEN_LAST, ends=True),
    Kind(BAD, 400),
    Kind({"target too long": TARGET % (b"/" + b"a" * 70_000)}, 414),
    Kind({f"too large: {name}": raw for name, raw in TOO_LARGE.items()}, 431),
    Kind(each("coding", CODING, b' gzip, chunked| identity| identity, chunked| chunked;a=b| "chunked"| ,chunked'), 501),
    Kind(each("coding", CODING, b" xchunked| chunkedx| identity\r\nTransfer-Encoding: chunked"), 501),
    Kind(each("version", VERSION, b"HTTP/0.9|HTTP/2.0"), 505),
    Kind(UNKNOWN_URLS, 400, stricter="a URL that no client sends to a server (RFC 9112, 3.2) reaches no handler"),
    Kind(each("target", TARGET, b"/a#b|/a?b#|/#"), 400, stricter="a fragment stays with the client (RFC 9112, 3.2)"),
    Kind(METHODS),
    Kind(NO_METHODS, 400),
    Kind(STRANGE_METHODS, 400, stricter="as with a known method, or one of RTSP, or longer than any in use"),
    Kind(LONE_LINE_FEEDS, 400, stricter="a lone LF ends no line: attackers could use that some readers accept it"),
    Kind(each("Host", HOSTED, b"a:b|a:1:2|[::1"), 400, stricter="no host and port, and so no origin"),
    Kind(SAME_LENGTHS, 400, stricter="a length is said once, even if both say the same"),
    Kind({"more headers than are taken": get(b"X: y\r\n" * 150)}, 431, stricter="a header takes much memory"),
    Kind({"length of 21 digits": SIZED % (b"0" * 20 + b"5")}, 400, stricter="no number of bytes is so long"),
    Kind({"coding, blanks": CODING % b" chunked \t "}, 400, stricter="the parser wants the bare word"),
    Kind(OLD_CODINGS, 400, stricter="somebody on the way has not understood the coding (RFC 9112, 6.1)"),
    Kind(EXPECTATIONS, 417, stricter="an expectation that will not be met is answered as RFC 9110, 10.1.1 says"),
    Kind({"empty lines": b"\r\n\r\n\r\n" + get()}, laxer="they are to be ignored (RFC 9112, 2.2); Tornado ignores one"),
    Kind({"100 zeros": CHUNK % (b"0" * 100 + b"5")}, laxer="Tornado reads chunk sizes of at most 64 bytes"),
    Kind(EXTENSIONS, laxer="extensions that are not understood must be ignored (RFC 9112, 7.1.1)"),
    Kind(TRAILERS, laxer="trailers may be dropped (RFC 9110, 6.5.1); Tornado takes none"),
    Kind(
        each("line", LINE, b"GET / HTTP/1.2|BREW / HTTP/1.9"),
        different="a later version is served as 1.1 (RFC 9110, 2.5); Tornado closes the connection",
    ),
    Kind(
        URLS, different="the host in the target replaces the header (RFC 9112, 3.2.2); Tornado takes all for the path"
    ),
    Kind(LISTS, different="Connection is a list (RFC 9110, 7.6.1); Tornado compares it as a whole", ends=True),
]
CORPUS = {name: raw for kind in KINDS for name, raw in kind.requests.items()}
assert len(CORPUS) == sum(len(kind.requests) for kind in KINDS)
STRICTER = {name: kind.stricter for kind in KINDS if kind.stricter for name in kind.requests}
LAXER = {name: kind.laxer for kind in KINDS if kind.laxer for name in kind.requests}
DIFFERENT = {name: kind.different for kind in KINDS if kind.different for name in kind.requests}
REFUSED = {name: kind.status for kind in KINDS if kind.status for name in kind.requests}
ENDS = {name for kind in KINDS if kind.ends for name in kind.requests}
