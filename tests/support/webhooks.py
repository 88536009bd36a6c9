"""A receiver of webhooks: a real HTTP server that verifies signatures with the original library."""

import asyncio
import base64
import collections
import json
import threading
import time

from standardwebhooks import Webhook
from tornado import httpserver, iostream, netutil, web

from .waiting import until

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(32, 64))).decode()


def write_secret(folder, secret=SECRET):
    """Write a secret to a file of this folder, and return the flags for it."""
    path = folder / "webhook.secret"
    path.write_text(secret + "\n")
    return ["--webhook-secret-file", path]


def status(code, **headers):
    """Return a behaviour: respond with a status and headers."""

    async def respond(handler):
        handler.set_status(code)
        for name, value in headers.items():
            handler.set_header(name.replace("_", "-"), value)

    return respond


async def hang(handler):
    """Do not respond until the receiver is closed. Nothing is accepted."""
    await handler.receiver.closing.wait()
    handler.set_status(503)


async def huge(handler):
    """Respond with 200 and an endless body. Nothing is accepted."""
    try:
        while not handler.receiver.closing.is_set():
            handler.write(b"x" * 65_536)
            await handler.flush()
    except iostream.StreamClosedError:
        handler.set_status(503)


class Receive(web.RequestHandler):
    def initialize(self, receiver):
        self.receiver = receiver

    async def post(self):
        receiver = self.receiver
        receiver.times.append(time.monotonic())
        receiver.attempts.append(self)
        body, headers = self.request.body, dict(self.request.headers)
        try:
            content = Webhook(receiver.secret).verify(body, headers)
        except Exception as error:
            receiver.problems.append(error)
            self.set_status(401)
            return
        behaviour = receiver.behaviours.popleft() if receiver.behaviours else receiver.usual
        await behaviour(self)
        if 200 <= self.get_status() < 300:
            receiver.bodies.append(body)
            receiver.contents.append(content)
            receiver.events += content["events"]

    async def get(self):
        self.receiver.attempts.append(self)


class Receiver:
    """A receiver in a thread of its own, as a context manager.

    Attributes:
        url: its URL. The path and query must arrive, and stay out of the log.
        secret: the secret that it expects.
        behaviours: the behaviours of the next requests, before `usual`.
        attempts, times: all requests, and when they came, in seconds of the monotonic clock.
        bodies, contents, events: those of the accepted requests.
        problems: errors of signatures.
    """

    def __init__(self, secret=SECRET, port=0, tls=None):
        self.secret, self.usual = secret, status(204)
        self.behaviours = collections.deque()
        self.attempts, self.bodies, self.contents, self.events, self.problems = [], [], [], [], []
        self.times = []
        self._started = threading.Event()
        self._tls, self._wanted = tls, port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *exc):
        self.close()

    def close(self):
        """Close all connections and stop listening. Further calls do nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.closing.set)
            self._thread.join()

    async def _serve(self):
        self._loop, self.closing = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application(
            [("/hook/path-of-hook", Receive, {"receiver": self})], log_function=lambda _: None
        )
        server = httpserver.HTTPServer(application, ssl_options=self._tls)
        sockets = netutil.bind_sockets(self._wanted, "127.0.0.1")
        server.add_sockets(sockets)
        self.port = sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook/path-of-hook?key=query-of-hook"
        self._started.set()
        await self.closing.wait()
        server.stop()
        await server.close_all_connections()

    def next(self, *behaviours):
        self.behaviours += behaviours

    def of(self, kind):
        """Return the events of one type."""
        return [event for event in self.events if event["type"] == kind]

    def wait(self, reached, **options):
        """Wait for a condition."""
        return until(reached, complaint=self._complaint, **options)

    def wait_for(self, *kinds):
        """Wait until as many events as these have arrived, and return them. They must be these, in any order."""
        self.wait(lambda: len(self.events) >= len(kinds))
        assert sorted(event["type"] for event in self.events) == sorted(kinds), self.events
        return self.events

    def _complaint(self):
        return f"{len(self.attempts)} requests, {self.problems}: {json.dumps(self.events)}"
