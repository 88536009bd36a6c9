"""Messages that no honest member of a room sends over its open connections, by the name of the kind."""

import json

DEEP = "[" * 50_000


def description(**fields):
    return json.dumps({"description": fields, "of": 2})


def header(**fields):
    return "\x1e\x1e" + json.dumps(fields)


def file(**fields):
    return json.dumps({"name": "a", "type": "", "size": 10} | fields)


# Messages on the channel of the application. The receiver delivers some value or nothing.
MESSAGES = {
    "half of a surrogate pair": ['\x1e"\\ud800"', '\x1e{"\\udfff": "\\ud83d x"}'],
    "no number": ["\x1eNaN", "\x1e[Infinity]"],
    "infinite number": ["\x1e1e999"],
    "no JSON": ["\x1e", "\x1e{", "\x1e\x00"],
    "deep JSON": ["\x1e" + DEEP, "\x1e" + "[" * 10_000 + "]" * 10_000],
    "wide JSON": ["\x1e[" + "0," * 100_000 + "0]"],
    "prototype": ['\x1e{"__proto__": {"then": 1}, "constructor": 1, "toString": 1}'],
    "empty message": ["", b""],
    "binary message": [b"\xff\x00" * 1000],
    "control characters": ["\x1b[2J\x07\r\n\x00"],
    "header without fields": [header()],
    "negative size": [header(size=-1, text=True)],
    "infinite size": ['\x1e\x1e{"size": 1e999, "text": true}', b"x"],
    "size without a number": [header(size="10", text=True), b"x"],
    "huge size": [header(size=2**60, text=False), b"x" * 65_536],
    "size beyond the limit": [header(size=2**26 + 1, text=False), *[b"x" * 65_536] * 8],
    "no bytes": [header(size=0, text=True)],
    "too many bytes": [header(size=10, text=False), b"x" * 11],
    "no UTF-8": [header(size=10, text=True), b"\xff" * 10],
    "header in a message": [header(size=10, text=True), b"x", header(size=10, text=True), b"x" * 10],
    "text in a message": [header(size=10, text=False), b"x", "text", b"x" * 9],
    "unfinished message": [header(size=2**26, text=False), *[b"x" * 65_536] * 8],
    "many messages": ["x"] * 1000,
}
# Messages on the channel for descriptions and candidates.
NEGOTIATION = {
    "description without JSON": ["", "no JSON", "{"],
    "binary description": [b"\xff", b"{}"],
    "value as a description": ["null", "7", "[]", '"text"', "NaN"],
    "empty description": ["{}", '{"description": {}}', '{"of": 1}'],
    "deep description": [DEEP, '{"description": ' + DEEP],
    "number as a description": ['{"description": 1, "of": 2}'],
    "text as an offer number": ['{"description": {"type": "offer", "sdp": "x"}, "of": "2"}'],
    "infinite offer number": ['{"description": {"type": "offer", "sdp": "x"}, "of": 1e999}'],
    "offer without a description": [description(type="offer")],
    "offer with a wrong description": [description(type="offer", sdp="x"), description(type="offer", sdp=7)],
    "offer without media": [description(type="offer", sdp="v=0\r\no=- 0 0 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n")],
    "long offer": [description(type="offer", sdp="v=0\r\n" + "a=x\r\n" * 30_000)],
    "answer without an offer": [description(type="answer", sdp="x")],
    "rollback": [description(type="rollback"), description(type="rollback", sdp="")],
    "unknown type": [description(type="pranswer", sdp=""), description(type="x", sdp=""), description(type={})],
    "number as candidates": ['{"candidates": 7}', '{"candidates": {}}'],
    "wrong candidates": [json.dumps({"candidates": [None, 7, {}, {"candidate": "x"}, {"candidate": "candidate:x"}]})],
    "many candidates": [json.dumps({"candidates": [{"candidate": f"candidate:{n}"} for n in range(4000)]})],
    "many descriptions": ["{}"] * 1000,
}
# Messages on channels for files.
FILES = {
    "file without JSON": ["", "no JSON"],
    "binary file header": [b"\xff"],
    "value as a file header": ["null", "[]", "7"],
    "empty file header": ["{}"],
    "deep file header": [DEEP],
    "size as a text": [file(size="10")],
    "negative size of a file": [file(size=-1)],
    "half a byte": [file(size=1.5)],
    "infinite size of a file": ['{"name": "a", "type": "", "size": 1e999}'],
    "huge size of a file": [file(size=2**60)],
    "object as a name": [file(name={}), file(type=[])],
    "path as a name": [file(name="../../a\x00\x1b[2J", size=0)],
    "bytes before the acceptance": [file(), b"x"],
    "too many bytes of a file": [file(), b"x" * 11],
    "cancelled at once": [file(), '{"cancel": {}}', '{"cancel": "refused"}'],
    "accepted by the sender": [file(), '{"accept": true, "received": true}'],
}
KINDS = {
    **{name: ("room", messages) for name, messages in MESSAGES.items()},
    **{name: ("negotiation", messages) for name, messages in NEGOTIATION.items()},
    **{name: ("file", messages) for name, messages in FILES.items()},
}
