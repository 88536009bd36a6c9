"""A server whose responses no honest server sends. The path of its URL says which: `URL/NAME` is a client's URL."""

import contextlib
import gzip
import itertools
import json
import socketserver
import threading
import time
from http import HTTPStatus

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
SESSION = {"code": "c", "info": "i", "offer": "o", "offerCandidates": [], "createdAt": 0, "expiresAt": 0}
PAGE = {"page": 1, "limit": 1, "total": 1, "hasMore": True}
MIB = bytes(2**20)


def whole(body):
    return [OK + b"Content-Length: %d\r\n\r\n" % len(body), body]


def fields(value):
    return whole(json.dumps(value).encode())


def refusal(status, text, *lines):
    head = "\r\n".join((f"HTTP/1.1 {status} x", "Connection: close", *lines, "", ""))
    return [head.encode(), json.dumps({"error": text}).encode()]


def dripping():
    for byte in itertools.cycle(b" "):
        yield bytes([byte])
        time.sleep(0.05)


BOMB = gzip.compress(b'{"sessions": [' + b" " * 2**28, 9)
# The responses to every request, each a function that returns its parts.
RESPONSES = {
    "empty object": lambda: fields({}),
    "no object": lambda: fields(["sessions"]),
    "no list": lambda: fields({"sessions": "none", "topics": {}}),
    "empty entries": lambda: fields({"sessions": [{}], "topics": [{}]}),
    "wrong field": lambda: fields({"sessions": [SESSION | {"offer": 5}]}),
    "no number": lambda: fields({"sessions": [SESSION | {"createdAt": "soon"}]}),
    "too large a number": lambda: fields({"sessions": [SESSION | {"createdAt": 2**60}]}),
    "not a number": lambda: fields({"sessions": [SESSION | {"createdAt": float("nan")}]}),
    "cursor without text": lambda: fields({"sessions": [], "cursor": {}}),
    "compressed bomb": lambda: [OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB), BOMB],
    "many values": lambda: whole(b'{"sessions": [' + b"[]," * 2**22 + b"[]]}"),
    "nested": lambda: whole(b'{"sessions": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "endless body": lambda: itertools.chain([OK + b"\r\n{"], itertools.repeat(b" " * 2**20)),
    "endless error": lambda: itertools.chain([b"HTTP/1.1 500 x\r\n\r\n"], itertools.repeat(b" " * 2**20)),
    "endless head": lambda: itertools.chain([OK + b"X-Long: "], itertools.repeat(b"x" * 2**16)),
    "slow body": lambda: itertools.chain([OK + b"\r\n{"], dripping()),
    "slow head": lambda: itertools.chain([OK + b"X-Slow: "], dripping()),
    "control characters": lambda: refusal(400, "\x1b[2J\x07"),
    "long pause": lambda: refusal(503, "busy", f"Retry-After: {10**9}"),
    "wrong pause": lambda: refusal(503, "busy", "Retry-After: Fri, 31 Dec 99999 23:59:59 GMT"),
}
# The event streams for which a client reports an error.
STREAMS = {
    "endless line": lambda: itertools.chain([STREAM + b"data: "], itertools.repeat(b"x" * 2**20)),
    "endless event": lambda: itertools.chain([STREAM], itertools.repeat(b"data: x\n" * 2**17)),
    "empty event": lambda: [STREAM + b"event: session\ndata: {}\n\n"],
    "event without an object": lambda: [STREAM + b"event: gone\ndata: [1]\n\n"],
    "event without JSON": lambda: [STREAM + b"event: gone\ndata: {\n\n"],
}
# The responses to requests for all topics.
TOPICS = {
    "empty pages": lambda: fields({"topics": [], "pagination": PAGE}),
    "long topics": lambda: fields({"topics": [{"topic": "t" * 20_000, "count": 1}] * 999, "pagination": PAGE}),
    "long page": lambda: fields({"topics": [{"topic": "t", "count": 1}] * 1001, "pagination": PAGE}),
    "endless pages": lambda: fields({"topics": [{"topic": "t", "count": 1}] * 1000, "pagination": PAGE}),
}
# The responses to requests for ICE servers.
ICE = {
    "many ICE servers": lambda: fields({"iceServers": [{"urls": ["stun:127.0.0.1:9"] * 101}], "expiresAt": 0}),
    "wrong ICE port": lambda: fields({"iceServers": [{"urls": "stun:127.0.0.1:99999"}], "expiresAt": 0}),
    "control characters in ICE": lambda: fields({"iceServers": [{"urls": "stun:\x1b[2J:99999"}], "expiresAt": 0}),
}
# The responses of an admin listener.
ADMIN = {
    "wrong processes": lambda: fields({"processes": 5, "results": 5, "missing": 5, "before_bytes": 5}),
    "refusal with control characters": lambda: refusal(400, "\x1b[2J\x07"),
    "reason with control characters": lambda: [
        b"HTTP/1.1 503 x\r\nConnection: close\r\n\r\n",
        json.dumps({"reason": "\x1b[2J\ud800"}).encode(),
    ],
}
PARTS = RESPONSES | STREAMS | TOPICS | ICE | ADMIN

# Functions of the id of a request. They return the messages that a server sends after it.
MESSAGES = {
    "text": lambda id_: ["hello"],
    "list": lambda id_: ["[]"],
    "number": lambda id_: ["5"],
    "binary": lambda id_: [b"\xff\x00"],
    "null": lambda id_: ["null"],
    "no result": lambda id_: [json.dumps({"id": id_})],
    "empty result": lambda id_: [json.dumps({"id": id_, "result": {}})],
    "result without an object": lambda id_: [json.dumps({"id": id_, "result": 7})],
    "error without a code": lambda id_: [json.dumps({"id": id_, "error": {}})],
    "error without an object": lambda id_: [json.dumps({"id": id_, "error": "no"})],
    "error with another status": lambda id_: [json.dumps({"id": id_, "error": {"code": 200, "message": "no"}})],
    "text as a subscription": lambda id_: [json.dumps({"id": id_, "result": {"subscription": "1"}})],
    "list as a subscription": lambda id_: [json.dumps({"id": id_, "result": {"subscription": [1]}})],
    "unknown request": lambda id_: [json.dumps({"id": id_ + 1000, "result": {}})],
    "list as an id": lambda id_: [json.dumps({"id": [id_], "result": {}})],
    "notification without parameters": lambda id_: [json.dumps({"method": "event"})],
    "notification with a list": lambda id_: [json.dumps({"method": "event", "params": []})],
    "large message": lambda id_: ["x" * (2**25 + 1)],
}


class _Handler(socketserver.StreamRequestHandler):
    def handle(self):
        name, request = self.path_of(self.rfile.readline())
        name = self.server.kind or name
        if not name:
            return
        for line in self.rfile:
            if not line.strip():
                break
        self.server.counts[name] = self.server.counts.get(name, 0) + 1
        parts = PARTS[name]() if request != "ws" else [b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"]
        with contextlib.suppress(OSError):
            for part in parts:
                self.wfile.write(part)

    @staticmethod
    def path_of(line):
        parts = line.decode().split()[1:2]
        segments = parts[0].split("?")[0].split("/")[1:] if parts else [""]
        return segments[0].replace("-", " "), segments[-1]


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False


@contextlib.contextmanager
def http_server(kind=None):
    """Run the server and yield its URL. The parts of `PARTS` respond to every request, or only those of `kind`."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.kind = kind
        server.counts = {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextlib.contextmanager
def websocket_server():
    """Run a server for `MESSAGES` and yield its URL."""

    def handle(socket):
        name = socket.request.path.split("/")[1].replace("-", " ")
        with contextlib.suppress(ConnectionClosed):
            for request in socket:
                for message in MESSAGES[name](json.loads(request)["id"]):
                    socket.send(message)

    def only_websockets(socket, request):
        if not request.path.endswith("/ws"):
            return socket.respond(HTTPStatus.OK, '{"status": "ok", "timestamp": 0}')

    with serve(
        handle, "127.0.0.1", 0, process_request=only_websockets, subprotocols=["signal.v1"], select_subprotocol=_select
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()


def _select(socket, offered):
    return "signal.v1" if "signal.v1" in offered else None
