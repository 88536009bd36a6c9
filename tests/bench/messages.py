"""Requests with the sizes that browsers send for a data channel."""

from urllib.parse import urlsplit

import orjson

ORIGIN = "http://bench.example"
CODE = "@" * 36  # the placeholder for a code in a template
INFO = "i" * 36  # the length of a UUID
# Text without JSON escapes that no store compresses away.
NOISE = "".join(f"{number * 2654435761 % 2**32:08x}" for number in range(125))
OFFER, ANSWER = NOISE[:500], NOISE[500:]


def request(base: str, method: str, path: str, fields: dict | None = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: {urlsplit(base).netloc}\r\nOrigin: {ORIGIN}\r\n"
    body = b"" if fields is None else orjson.dumps(fields)
    if fields is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def offer(base: str, topic: str) -> bytes:
    return request(base, "POST", f"/{topic}/offer", {"info": INFO, "offer": OFFER})


def answer(base: str, code: str) -> bytes:
    return request(base, "POST", "/answer", {"code": code, "side": "answerer", "answer": ANSWER})
