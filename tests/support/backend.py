"""Real HTTP servers that the server sends requests to. A test chooses their responses."""

import contextlib
import json
import threading
from collections import deque
from typing import NamedTuple

from .waiting import Handler, LocalServer

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
    """Send a response that never ends, a byte at a time."""
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


class Responding(Handler):
    def respond(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(Request(self.command, self.path, dict(self.headers), self.body))
        (self.server.behaviours.popleft() if self.server.behaviours else self.server.behaviour)(self)

    do_GET = do_POST = do_PUT = respond


class Backend(LocalServer):
    """A server in threads of its own, as a context manager. By default it is a provider of TURN servers.

    Attributes:
        requests: all requests.
        behaviours: the behaviours of the next requests, before `behaviour`.
        base: its address.
    """

    daemon_threads = True
    handler, behaviour = Responding, staticmethod(responding({"iceServers": [TURN]}))

    def __init__(self, port=0, tls=None):
        self.requests, self.behaviours, self.closing = [], deque(), threading.Event()
        super().__init__(self.handler, port, tls)
        self.base = f"{'https' if tls else 'http'}://127.0.0.1:{self.server_port}"
        self.url = f"{self.base}/ice?key=of-query"

    def close(self):
        self.closing.set()
        super().close()
