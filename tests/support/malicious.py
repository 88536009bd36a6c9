"""A server whose responses no honest server sends. The path of its URL says which: `URL/NAME` is a client's URL."""

import contextlib
import functools
import gzip
import itertools
import json
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

from .paths import TESTS

OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n"
SESSION = {"code": "c", "info": "i", "offer": "o", "offerCandidates": [], "createdAt": 0, "expiresAt": 0}
PAGE = {"page": 1, "limit": 1, "total": 1, "hasMore": True}
# The target of redirections to another host.
OTHER = socket.create_server(("127.0.0.2", 0)) if __name__ != "__main__" else None
OTHER_PORT = OTHER.getsockname()[1] if OTHER else sys.argv[1]
MAX_GROWTH_KIB = 64 * 1024
# Node.js grows by 100 MiB while it reads an endless response of which the module gets nothing.
MAX_NODE_GROWTH_KIB = 128 * 1024


def whole(body):
    return [OK + b"Content-Length: %d\r\n\r\n" % len(body), body]


def fields(value):
    return whole(json.dumps(value).encode())


def refusal(status, text, *lines):
    head = "\r\n".join((f"HTTP/1.1 {status} x", "Connection: close", *lines, "", ""))
    return [head.encode(), json.dumps({"error": text}).encode()]


def redirection(status):
    """Return a redirection to a server that must not get a request."""
    return [f"HTTP/1.1 {status} x\r\nLocation: http://127.0.0.2:{OTHER_PORT}/\r\nContent-Length: 0\r\n\r\n".encode()]


def dripping():
    for byte in itertools.cycle(b" "):
        yield bytes([byte])
        time.sleep(0.05)


@functools.cache
def bomb():
    return gzip.compress(b'{"sessions": [' + b" " * 2**28, 9)


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
    "compressed bomb": lambda: [OK + b"Content-Encoding: gzip\r\n\r\n", bomb()],
    "many values": lambda: whole(b'{"sessions": [' + b"[]," * 2**22 + b"[]]}"),
    "many objects": lambda: whole(b'{"sessions": [' + b",".join([b'{"a":' * 20 + b"0" + b"}" * 20] * 11_000) + b"]}"),
    "nested": lambda: whole(b'{"sessions": ' + b"[" * 10**5 + b"]" * 10**5 + b"}"),
    "endless body": lambda: itertools.chain([OK + b"\r\n{"], itertools.repeat(b" " * 2**20)),
    "endless error": lambda: itertools.chain([b"HTTP/1.1 500 x\r\n\r\n"], itertools.repeat(b" " * 2**20)),
    "endless head": lambda: itertools.chain([OK + b"X-Long: "], itertools.repeat(b"x" * 2**16)),
    "slow body": lambda: itertools.chain([OK + b"\r\n{"], dripping()),
    "slow head": lambda: itertools.chain([OK + b"X-Slow: "], dripping()),
    "control characters": lambda: refusal(400, "\x1b[2J\x07"),
    "long pause": lambda: refusal(503, "busy", f"Retry-After: {10**9}"),
    "wrong pause": lambda: refusal(503, "busy", "Retry-After: Fri, 31 Dec 99999 23:59:59 GMT"),
    "closed connection": lambda: [],
    "another protocol": lambda: [b"SSH-2.0-OpenSSH_9.2\r\n"],
    "cut head": lambda: [OK + b"Content-"],
    "cut body": lambda: [OK + b"Content-Length: 1000\r\n\r\n{}"],
    "no body": lambda: whole(b""),
    "negative length": lambda: [OK + b"Content-Length: -5\r\n\r\n{}"],
    "two lengths": lambda: [OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}}"],
    "wrong chunk": lambda: [OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"],
    "endless chunk length": lambda: itertools.chain(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n"], itertools.repeat(b"0" * 2**16)
    ),
    "endless trailer": lambda: itertools.chain(
        [OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n"], itertools.repeat(b"X-Long: x\r\n" * 2**12)
    ),
    "endless interim responses": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 2**10),
    "many header fields": lambda: [OK, b"".join(b"X-%d: x\r\n" % number for number in range(10**5)), b"\r\n{}"],
    "another protocol after a switch": lambda: [b"HTTP/1.1 101 x\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n{}"],
    "unknown status": lambda: [b"HTTP/1.1 999999 x\r\nContent-Length: 2\r\n\r\n{}"],
    "no content": lambda: [b"HTTP/1.1 204 x\r\nConnection: close\r\n\r\n"],
    "page": lambda: [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<p>Welcome</p>"],
    "error page": lambda: [b"HTTP/1.1 502 x\r\nConnection: close\r\nContent-Type: text/html\r\n\r\n<p>\x1b[2J</p>"],
    "object as an error": lambda: refusal(400, {"text": "\x1b[2J"}),
    "null": lambda: whole(b"null"),
    "invalid UTF8": lambda: whole(b'{"sessions": "\xff"}'),
    "two bytes a character": lambda: whole(json.dumps({"sessions": [{}]}).encode("utf-16")),
    "infinite number": lambda: whole(b'{"sessions": [{"createdAt": 1e999}]}'),
    "half of a surrogate pair": lambda: fields({"sessions": ["\ud800"]}),
    "broken compression": lambda: [OK + b"Content-Encoding: gzip\r\n\r\n", b"no gzip"],
    "bomb in a bomb": lambda: [OK + b"Content-Encoding: gzip, gzip\r\n\r\n", gzip.compress(bomb())],
    "redirection to itself": lambda: [b"HTTP/1.1 302 x\r\nLocation: ?\r\nContent-Length: 0\r\n\r\n"],
    "redirection to another host": lambda: redirection(307),
    "redirection of a page to another host": lambda: redirection(302),
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
PARTS = RESPONSES | TOPICS | ICE | ADMIN
# Those that are large, or for which a client needs more memory than their size.
LARGE = [name for name in RESPONSES if any(word in name for word in ("bomb", "endless", "many", "nested"))]

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
        parts = self.rfile.readline().decode().split()[1:2]
        segments = parts[0].split("?")[0].split("/")[1:] if parts else [""]
        name = self.server.kind or segments[0].replace("-", " ")
        if not name:
            return
        for line in self.rfile:
            if not line.strip():
                break
        response = PARTS[name]() if segments[-1] != "ws" else [b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n"]
        with contextlib.suppress(OSError):
            for part in response:
                self.wfile.write(part)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    block_on_close = False
    request_queue_size = 100


def _serve():
    """Serve on one port for each kind, and on one for all. Print their numbers, and wait for the end of the input."""
    ports = {}
    for kind in ("", *PARTS):
        server = _Server(("127.0.0.1", 0), _Handler)
        server.kind, ports[kind] = kind, server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(ports), flush=True)
    sys.stdin.read()


@contextlib.contextmanager
def http_servers():
    """Run the server in another process. Yield its URLs by the kind of `PARTS` that responds to every request.

    At the URL with the kind "" the path of the request says which. Afterwards it is checked that no client has followed
    a redirection to another host.
    """
    command = [sys.executable, "-m", "support.malicious", str(OTHER_PORT)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=TESTS, env={"PYTHONPATH": "."}, **pipes) as process:
        ports = json.loads(process.stdout.readline())
        yield {kind: f"http://127.0.0.1:{port}" for kind, port in ports.items()}
        process.stdin.close()
    assert requests_to_another_host() == []


def requests_to_another_host():
    """Return what clients have sent to the target of redirections since the last call."""
    requests = []
    OTHER.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, _ = OTHER.accept()
            with connection:
                connection.settimeout(60)
                requests.append(connection.recv(2**16))
    return requests


@contextlib.contextmanager
def bounded_memory(pid="self", most_kib=MAX_GROWTH_KIB):
    """Check that the memory of a process never grows by more than `most_kib` during the block."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the highest use starts again from the current one
    before_kib = _memory_kib(pid, "VmRSS")
    yield
    assert _memory_kib(pid, "VmHWM") - before_kib < most_kib


def _memory_kib(pid, name):
    return int(re.search(rf"^{name}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


if __name__ == "__main__":
    _serve()
