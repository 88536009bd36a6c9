"""JSON that parsers disagree about (RFC 8259): each value is sent inside an object."""

from collections.abc import Iterator

VALID = [
    # Strings
    *(
        rb'"\"\\\/\b\f\n\r\t\u0000\u001f\uFFFF"',
        rb'"\ud83d\ude00\uD834\uDD1E"',
        '"\x7f\x85\xa0\u2028\ufeff\ufffe😀"'.encode(),
    ),
    # Numbers
    *(b"0", b"-0", b"-0.0", b"0e0", b"1E+2", b"1e-400", b"5e-324", b"1.7976931348623157e308", b"0." + b"1" * 5000),
    *(b"9007199254740993", b"18446744073709551616", b"-123456789012345678901234567890"),
    # Structures
    *(b'{"a":1,"a":2}', b'{"":0,"\\u0000":{}}', b'{"__proto__":1}', b"\t[\r\n ]\n", b"[" * 200 + b"]" * 200),
]
# Values that a parser may refuse: half of a surrogate pair, and more than a double can hold. This server accepts them.
UNUSUAL = [
    *(rb'"\ud800"', rb'"\udfff"', rb'"\udc00\ud800"', rb'"\ud800\ud800\udc00"', rb'"\ud800x"', rb'{"\ud800":1}'),
    *(b"1e400", b"-1e400", b"[1e999999999]", b"1" + b"0" * 400),
]
INVALID = [
    # Numbers
    *b"|NaN|Infinity|-Infinity|[NaN]|nan|+1|.5|1.|1.e1|01|-|-01|--1|1e|1e+|0x1|1_000|1,0|1/1".split(b"|"),
    *("١".encode(), "１".encode()),
    # Strings
    *(b'"\0"', b'"\n"', b'"\t"', b'"\x1f"', b"'x'", b"x", b'"x', b'x"', rb'"\"', rb'"\x41"', rb'"\a"', rb'"\U0041"'),
    *(rb'"\u"', rb'"\u12"', rb'"\u00g0"', rb'"\ud800\u"', rb'"\ud800\u12"', rb'"\u{41}"', '"\\€"'.encode()),
    # Structures
    *b"[1,]|[,1]|[1 2]|[1,,2]|[1|]|[}|[1:2]|{,}|{1}|{1:1}|{a:1}|{'a':1}|{\"a\":}|{\"a\" 1}|{\"a\",1}".split(b"|"),
    *(b'{"a":1,}', b'{"a":1 "b":2}', b'{"a":1', b'{"a"', b'{"a":1}}', b"1 2", b"1;", b"1,", b'"a" "b"'),
    *(b"True", b"nul", b"truee", b"null null", b"undefined", b"// x\n1", b"/**/1", b"# x\n1", b"\f1", b"\v1", b"1\0"),
    *("\xa01".encode(), "\ufeff1".encode(), "\u20281".encode()),
    *(b"[" * 100_000, b"[" * 50_000 + b"]" * 50_000, b'{"a":' * 50_000, b'{"a":' * 40_000 + b"1" + b"}" * 40_000),
]  # fmt: skip
NOT_UTF8 = [
    b'"%b"' % some for some in (b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc3")
]
AROUND = [(b" \t\r\n", b" \t\r\n")]
NOT_AROUND = [(b"", b"x"), (b"", b"}"), (b"", b"\0"), (b"", b"{}")]
NOT_AROUND += [(b"x", b""), (b"{", b""), (b")]}',\n", b""), (b"\x1e", b"")]


def messages(template: bytes, *, unusual: bool) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield messages with the value that each has at `%b`, or None if it is not JSON.

    Args:
        template: the message.
        unusual: whether the unusual values are yielded, or all others.
    """
    for value in UNUSUAL if unusual else VALID:
        yield template % value, value
    if unusual:
        return
    for value in INVALID + NOT_UTF8:
        yield template % value, None
    for before, after in AROUND:
        yield before + template % b"1" + after, b"1"
    for before, after in NOT_AROUND:
        yield before + template % b"1" + after, None
    for encoding in ("utf-16", "utf-32-le"):
        yield (template % b"1").decode().encode(encoding), None
    yield (template % b"1")[:-1], None
