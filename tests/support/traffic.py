"""Requests of every kind to the installed command, with words that no log line and no label may contain."""

import socket
from urllib.parse import urlsplit

from .command import BOUND_S, ORIGIN
from .raw_http import read_all
from .service import NO_SUCH_CODE

SECRETS = ["hidden", "5ec1e7", "127.0.0.1"]


def send(server, data):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=BOUND_S) as client:
        client.sendall(data)
        return read_all(client)


def request(server, method, path, body=None, origin="https://hidden.example"):
    return server.exchange(path, body, origin=origin, method=method)[0]


def offer(server, topic="hidden-topic", **more):
    return server.call(f"/{topic}/offer", {"info": "hidden", "offer": "hidden"} | more, origin=ORIGIN)[1]["code"]


def traffic(server):
    """Send requests of every kind. Return endpoint, method, status, reason and path of each, and a session's code."""
    code, other, third = offer(server), offer(server), offer(server, "hidden-other")
    answer = {"code": code, "side": "answerer", "answer": "hidden-answer"}
    send(server, b"hidden\r\n\r\n")
    send(server, b"GET /hidden HTTP/1.1\r\nHost: x\r\nX-Hidden: " + b"h" * 60_000 + b"\r\n\r\n")
    asked = [("/:topic/offer", "POST", 200, "", None)] * 3
    for endpoint, method, status, reason, path, *body in [
        ("/", "GET", 200, "", "/"),
        ("/", "HEAD", 200, "", "/?hidden=query"),
        ("/", "OPTIONS", 204, "", "/"),
        ("/", "POST", 405, "method not allowed", "/", {}),
        ("/health", "GET", 200, "", "/health"),
        ("/health", "other", 405, "method not allowed", "/health"),
        ("/openapi.json", "GET", 200, "", "/openapi.json"),
        ("/topics", "GET", 200, "", "/topics"),
        ("/topics", "GET", 400, "page", "/topics?page=hidden"),
        ("/topics", "GET", 400, "limit", "/topics?limit=0"),
        ("/:topic/sessions", "GET", 200, "", "/hidden-topic/sessions"),
        ("/:topic/sessions", "GET", 400, "topic", f"/{'hidden' * 50}/sessions"),
        ("/:topic/offer", "POST", 400, "body", "/hidden-topic/offer"),
        ("/:topic/offer", "POST", 400, "info", "/hidden-topic/offer", {"offer": "hidden"}),
        ("/:topic/offer", "POST", 413, "body too large", "/hidden-topic/offer", {"offer": "hidden" * 50_000}),
        ("/answer", "POST", 200, "", "/answer", answer),
        ("/answer", "POST", 200, "", "/answer", answer),
        ("/answer", "POST", 409, "already answered", "/answer", answer | {"answer": "hidden too"}),
        ("/answer", "POST", 400, "answer or candidate", "/answer", {"code": code, "side": "offerer"}),
        ("/answer", "POST", 404, "session not found", "/answer", answer | {"code": NO_SUCH_CODE}),
        ("/poll", "POST", 200, "", "/poll", {"code": code, "side": "offerer"}),
        ("/poll", "POST", 404, "session not found", "/poll", {"code": "5ec1e700", "side": "offerer"}),
        ("/refresh", "POST", 200, "", "/refresh", {"code": other, "side": "offerer"}),
        ("/withdraw", "POST", 200, "", "/withdraw", {"code": other, "side": "offerer"}),
        ("/events", "GET", 400, "code", "/events?side=offerer"),
        ("unknown", "GET", 404, "path not found", "/hidden/path/that/is/long"),
        ("unknown", "POST", 404, "path not found", "/hidden", {}),
        ("unknown", "OPTIONS", 204, "", "/hidden/hidden"),
    ]:
        assert request(server, "PUT" if method == "other" else method, path, *body, origin=ORIGIN) == status, path
        asked.append((endpoint, method, status, reason, path))
    assert request(server, "GET", "/", origin=None) == 400
    asked.append(("/", "GET", 400, "Origin", "/"))
    return asked, third


def hammer(server, address, number):
    """Send requests that are refused, as if a proxy forwarded them for a client."""
    for _ in range(number):
        server.exchange("/topics?page=0", origin="https://broken.example", X_Forwarded_For=address)
