"""A provider of TURN servers: a real HTTP server whose responses a test chooses."""

import contextlib
import json
import threading

from .waiting import Handler, LocalServer

TURN = {"urls": ["turn:turn.example:3478?transport=udp"], "username": "a name", "credential": "a password"}


def responding(content, status=200, **headers):
    """Return a behaviour: respond with text or JSON."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda handler: handler.send(status, body, headers)


def hang(handler):
    """Do not respond."""
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
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, dict(self.headers), body))
        self.server.behaviour(self)

    do_GET = do_POST = do_PUT = respond


class Backend(LocalServer):
    """A provider in threads of its own, as a context manager.

    Attributes:
        requests: method, target, headers and body of each request.
        behaviour: the current behaviour.
    """

    daemon_threads = True

    def __init__(self):
        self.requests, self.closing = [], threading.Event()
        self.behaviour = responding({"iceServers": [TURN]})
        super().__init__(Responding)
        self.base = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.base}/ice?key=of-query"

    def close(self):
        self.closing.set()
        super().close()
