"""Inputs for a server, derived from a seed: requests with arbitrary parameters, and mutated request bytes."""

import functools
import itertools
import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from support.http_corpus import CORPUS
from support.json_vectors import messages

from tornado_signal.service.operations import SUBSCRIPTIONS, declare
from tornado_signal.settings.settings import Settings

DECLARED = declare(Settings())
OPERATIONS = [*DECLARED, *[each for each in DECLARED if each.action in ("offer", "answer")] * 3]
POLL = next(each for each in OPERATIONS if each.name == "poll")

ORIGINS = ["https://one.example", "https://two.example", "null", "x" * 512]
TOPICS = ["a", "b", "a\0", "/", "é", "😀" * 256, "..", "events", "topics"]
SECRETS = ["s" * 16, "t" * 16]
MAX_BODY = 262_144
NO_SUCH_CODE = "00000000-0000-4000-8000-000000000000"

STRINGS = [
    "", "x", "\0", "\ud800", "😀" * 257, "x" * 1025, "offerer", "answerer", "é", "1", "\r\n", NO_SUCH_CODE, "null",
]  # fmt: skip
NUMBERS = [0, 1, -1, 0.01, 60, 61, 1e308, 2**53, 2**63, 2**64, 10**400, 1000, 999, -0.0, 3600000]
LISTS = [[], [[]], ["c"], ["c"] * 100, ["c"] * 101, ["c", 1], [""]]
VALUES = [None, True, False, {}, {"a": []}, *LISTS, *NUMBERS, *STRINGS]
FILES = ["/", "/health", "/ice-servers", "/openapi.json", "/client.js", "/demo", "/demo/qr.svg?text=x", "/nothing"]
PATHS = ["/poll", "/answer", "/a/offer", "/topics", "/a/sessions", "//", "/%00/offer", "*", "/a/b/c"]
BODIES = [body for unusual in (True, False) for body, _ in messages(b'{"info":"i","offer":%b}', unusual=unusual)]
BODIES += [b"", b"[]", b"null", b"0", b'"x"', b"{}", b'{"code":"\\u0000","side":"offerer"}', b" " * 1000 + b"{}"]
UNUSUAL = [bytearray(raw) for raw in CORPUS.values() if len(raw) < 20_000]
METHODS = ["GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PURGE", "get", "CONNECT"]
HEADERS = [
    "Accept: text/event-stream", "Accept-Encoding: gzip, br", "Authorization: Basic eDp5", "Cookie: a=b",
    "Access-Control-Request-Headers: x, y", "Access-Control-Request-Method: POST", "Range: bytes=0-1",
    "Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: navigate", "X-Forwarded-For: 1.2.3.4, x", "X-Request-Id: é",
    "X-Forwarded-Proto: ftp", "If-None-Match: *", 'If-None-Match: W/"x"', "Content-Type: text/plain", "Upgrade: h2c",
    "Upgrade: websocket", "Connection: upgrade", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Expect: 100-continue",
    "Sec-WebSocket-Version: 13", "Last-Event-ID: 0.0", "Last-Event-ID: x", "Content-Encoding: gzip", "TE: trailers",
    "Origin: twice", "Host: twice", "Forwarded: for=_x", "X-HTTP-Method-Override: DELETE", "Expect: 200-ok",
]  # fmt: skip
SPECIAL = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b",", b"\xff", b"0", b"9" * 20, b"0" * 5000, b"\r\n\r\n",
    b"HTTP/1.0", b"HTTP/2.0", b"%", b"%00", b"%ff", b"?", b"#", b"//", b"\xc3\x28", b"chunked",
    b'"', b"{", b"}", b"\\u",
]  # fmt: skip


class Input(NamedTuple):
    pieces: list[bytes]  # the server reads each of them separately
    leaves: bool = False  # whether the client disconnects without waiting for all responses
    admin: bool = False  # whether it is sent to the admin listener


class Maker:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.codes = [NO_SUCH_CODE]  # codes of previous sessions, the latest last
        self.cursors = ["0.0", ""]  # issued cursors

    def remember(self, response: dict) -> None:
        for name, values in (("code", self.codes), ("cursor", self.cursors)):
            if isinstance(response.get(name), str):
                values.append(response[name])
                del values[: max(0, len(values) - 50)]

    # Operations

    def operations(self, count: int) -> Input:
        """Return requests of some clients, in any order and with any parameters. Requests that may wait are last."""
        rng = self.rng
        requests = [self._operation() for _ in range(count - 1)]
        last = rng.choice([self._anything, functools.partial(self._operation, [*SUBSCRIPTIONS, POLL])])
        return Input([*requests, last()] if rng.random() < 0.3 else [b"".join([*requests, last()])], rng.random() < 0.2)

    def _operation(self, declared: Sequence = OPERATIONS) -> bytes:
        """Return a request for any operation, most often one about a session, or a file."""
        rng = self.rng
        if rng.random() < 0.05:
            return self._request("GET", rng.choice(FILES))
        chosen = rng.choice(declared)
        values, fields = self._values(), {}
        for parameter in chosen.parameters:
            each = rng.choice(parameter.alternatives or [parameter])
            if parameter.required or rng.random() < 0.15:
                fields[each.name] = values.get(each.name, "x")
        if "answer" in fields and rng.random() < 0.9:
            fields["side"] = "answerer"
        broken = rng.choice(["%", "%ff", "%C3"]) if rng.random() < 0.05 else ""
        path = chosen.path.replace("{topic}", broken or quote(fields.pop("topic", ""), safe=""))
        if chosen not in SUBSCRIPTIONS and chosen.method == "POST":
            return self._request("POST", path, self._fields(**fields))
        headers = [f"Last-Event-ID: {self._cursor()}"] if chosen in SUBSCRIPTIONS and rng.random() < 0.5 else []
        return self._request("GET", path + self._query(**fields), headers=headers)

    def _values(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "topic": rng.choice(TOPICS), "info": self._text()[:1024], "offer": self._text(), "answer": self._text(),
            "candidate": self._text(), "candidates": ["c", "d"], "ttl": rng.choice([1000, 5000, 300_000, 999]),
            "code": self._code(), "side": rng.choice(["offerer", "answerer"]), "secret": rng.choice(SECRETS),
            "wait": rng.choice([0, 0.01, 0.02]), "since": self._cursor(), "page": rng.choice([1, 2, 10**6]),
            "limit": rng.choice([1, 100, 1001]),
        }  # fmt: skip

    def _request(self, method: str, path: str, fields: object = None, headers: list[str] | None = None) -> bytes:
        rng = self.rng
        lines = ["Host: h", f"Origin: {ORIGINS[0] if rng.random() < 0.9 else rng.choice(ORIGINS)}"]
        if rng.random() < 0.02:
            lines.pop()
        lines += headers or []
        while rng.random() < 0.05:
            lines.append(rng.choice(HEADERS))
        if rng.random() < 0.005:
            method = rng.choice(METHODS)
        body = b""
        if fields is not None:
            body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
            if rng.random() < 0.1:
                lines.append("Transfer-Encoding: chunked")
                body = self._chunked(body)
            else:
                lines.append(f"Content-Length: {len(body)}")
        rng.shuffle(lines)
        return (f"{method} {path} HTTP/1.1\r\n" + "\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "replace") + body

    def _chunked(self, body: bytes) -> bytes:
        made, rest = b"", body
        while rest:
            size = min(len(rest), self.rng.choice([1, 7, 100, 5000]))
            made += b"%x%s\r\n" % (size, self.rng.choice([b"", b"", b";x=y"])) + rest[:size] + b"\r\n"
            rest = rest[size:]
        return made + b"0\r\n" + (b"X-Trailer: y\r\n" if self.rng.random() < 0.05 else b"") + b"\r\n"

    def _fields(self, **fields: object) -> object:
        """Return the parameters, of which some are omitted or replaced."""
        rng = self.rng
        for name in list(fields):
            luck = rng.random()
            if luck < 0.04:
                del fields[name]
            elif luck < 0.1:
                fields[name] = rng.choice(VALUES)
        if rng.random() < 0.05:
            fields[rng.choice(["wait", "since", "ttl", "secret", "hold", "candidates", "x"])] = rng.choice(VALUES)
        return rng.choice(BODIES) if rng.random() < 0.03 else fields

    def _code(self) -> str:
        code = self.rng.choice(self.codes[-8:])
        return code.upper() if self.rng.random() < 0.05 else code

    def _cursor(self) -> str:
        cursor = self.rng.choice(self.cursors)
        if self.rng.random() < 0.2 and cursor:
            place = self.rng.randrange(len(cursor))
            cursor = cursor[:place] + self.rng.choice("0f9.-x") + cursor[place + self.rng.randrange(2) :]
        return cursor

    def _text(self) -> str:
        return self.rng.choice(["t", "é", "x" * 1000, "v=0\r\n" * 20, "😀", "x" * 20_000])

    def _query(self, **fields: object) -> str:
        pairs = []
        for name, value in fields.items():
            luck = self.rng.random()
            other = self.rng.choice([*NUMBERS[:8], "", "x", "%00", "%ff", "1e3", "+1"])
            pairs += [f"{name}={quote(str(value)) if luck < 0.9 else other}"] * (1 + (self.rng.random() < 0.03))
        return "?" + "&".join(pairs) if pairs else ""

    def _anything(self) -> bytes:
        fields = self.rng.choice([None, self.rng.choice(BODIES), {"a": self.rng.choice(VALUES)}])
        if self.rng.random() < 0.02:
            fields = b"x" * (MAX_BODY + self.rng.choice([-1, 0, 1, 10]))
        return self._request(self.rng.choice(METHODS), self.rng.choice(PATHS), fields)

    def _operators(self) -> bytes:
        path = self.rng.choice(["/metrics", "/healthz", "/readyz", "/", "/nothing"])
        if self.rng.random() < 0.05:
            path = "/actions/unblock"
        method = "POST" if path.startswith("/actions") else self.rng.choice(["GET", "HEAD", "POST"])
        line = self.rng.choice(["", "Content-Length: 0\r\n", "Accept: application/openmetrics-text; version=1.0.0\r\n"])
        host = self.rng.choice(["localhost", "127.0.0.1", "x"])
        return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{line}\r\n".encode()

    # Bytes

    def broken(self) -> Input:
        """Return one to three requests in pieces, with some bytes changed."""
        rng = self.rng
        admin = rng.random() < 0.1
        count = rng.choice([1, 1, 2, 3])
        raw = bytearray().join([self._operators() for _ in range(count)] if admin else self.operations(count).pieces)
        if rng.random() < 0.2:
            raw = rng.choice(UNUSUAL) + raw
        for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
            # Most bugs are possible in the part before the body.
            reach = len(raw) if rng.random() < 0.3 else min(len(raw), 400)
            place = rng.randint(0, reach)
            end = min(len(raw), place + rng.choice([0, 1, 1, 2, 10, 100]))
            raw[place:end] = self._change(raw, place, end)
        if rng.random() < 0.1:
            del raw[rng.randint(0, len(raw)) :]
        cuts = sorted(rng.randint(0, len(raw)) for _ in range(rng.choice([0, 0, 0, 1, 2, 5])))
        pieces = [bytes(raw[start:end]) for start, end in itertools.pairwise([0, *cuts, len(raw)])]
        return Input([piece for piece in pieces if piece], rng.random() < 0.1, admin)

    def _change(self, raw: bytearray, place: int, end: int) -> bytes:
        rng = self.rng
        start = rng.randint(0, len(raw))
        changes = [
            (2, b""),
            (2, rng.randbytes(rng.choice([1, 1, 2, 4]))),
            (3, rng.choice(SPECIAL)),
            (1, bytes(raw[place:end]) * rng.choice([2, 3, 50])),
            (1, bytes(raw[start : start + rng.choice([10, 100])])),
            (1, bytes(byte ^ 1 << rng.randrange(8) for byte in raw[place:end])),
        ]
        weights, made = zip(*changes, strict=True)
        return rng.choices(made, weights)[0]
