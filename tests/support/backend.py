"""Real HTTP servers that the server sends requests to. A test chooses their responses."""

import contextlib
import http.server
import json
import threading
from collections import deque
from typing import NamedTuple

TURN = {"urls": ["turn:turn.example:3478?transport=udp"], "username": "a name", "credential": "a password"}


class Request(NamedTuple):
    method: str
    target: str
    headers: dict
    body: bytes


def responding(content, status=200, **headers):
    """Return a behaviour: respond with text or JSON. Names of headers have underscores for hyphens."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.send(status, body, named)


def hang(handler):
    handler.server.closing.wait()


def drip(handler):
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.closing.wait(0.05):
            handler.wfile.write(b" ")


def flood(handler):
    """Send a response that never ends, as fast as it is read."""
    handler.send_response(200)
    handler.end_headers()
    with contextlib.suppress(OSError):
        while not handler.server.closing.is_set():
            handler.wfile.write(b" " * 65_536)


class Responding(http.server.BaseHTTPRequestHandler):
    """A handler that logs nothing, and leaves the response to a behaviour of the server."""

    def respond(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(Request(self.command, self.path, dict(self.headers), self.body))
        (self.server.behaviours.popleft() if self.server.behaviours else self.server.behaviour)(self)

    do_GET = do_POST = do_PUT = do_OPTIONS = respond

    def send(self, status, data, headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


class Backend(http.server.ThreadingHTTPServer):
    """A server in threads of this process, as a context manager. By default it is a provider of TURN servers.

    Its port is by default a free one. For HTTPS, `tls` is its SSLContext.

    Attributes:
        requests: all requests.
        behaviour: a function of the handler of a request.
        behaviours: those of the next requests, before `behaviour`.
        base: its address.
    """

    handler, behaviour = Responding, staticmethod(responding({"iceServers": [TURN]}))

    def __init__(self, port=0, tls=None):
        self.requests, self.behaviours, self.closing = [], deque(), threading.Event()
        super().__init__(("127.0.0.1", port), self.handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        self.url = f"{self.base}/ice?key=of-query"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def __exit__(self, *exc):
        self.close()

    def close(self):
        self.closing.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
