"""The requests of all parts, with the sizes that browsers send for a data channel."""

from urllib.parse import urlsplit

import orjson

ORIGIN = "http://bench.example"
CODE = "@" * 36  # the placeholder for a code in a template
TOPIC = "@" * 10  # the placeholder for a topic
INFO = "i" * 36  # the length of a UUID
# Text without JSON escapes that no store compresses away.
NOISE = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(256))
OFFER = NOISE[:500]
ANSWER = NOISE[500:1000]
CANDIDATE = NOISE[1000:1120]


def request(base: str, method: str, path: str, fields: dict | None = None, origin: str = ORIGIN) -> bytes:
    host = urlsplit(base).netloc
    body = orjson.dumps(fields) if fields is not None else b""
    head = f"{method} {urlsplit(base).path}{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n"
    if fields is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def offer(base: str, topic: str, **rest: str) -> bytes:
    return request(base, "POST", f"/{topic}/offer", {"info": INFO, "offer": OFFER}, **rest)


def sessions(base: str, topic: str, **rest: str) -> bytes:
    return request(base, "GET", f"/{topic}/sessions", **rest)


def answer(base: str, code: str, **rest: str) -> bytes:
    return request(base, "POST", "/answer", {"code": code, "side": "answerer", "answer": ANSWER}, **rest)


def candidate(base: str, code: str, side: str, **rest: str) -> bytes:
    return request(base, "POST", "/answer", {"code": code, "side": side, "candidate": CANDIDATE}, **rest)


def poll(base: str, code: str, side: str, origin: str = ORIGIN, **fields: object) -> bytes:
    return request(base, "POST", "/poll", {"code": code, "side": side, **fields}, origin)


def template(made: bytes) -> bytes:
    """Return a request with `@` in place of `CODE` or `TOPIC`. The lengths stay correct."""
    return made.replace(CODE.encode(), b"@").replace(TOPIC.encode(), b"@")
