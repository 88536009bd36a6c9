"""A receiver of webhooks that verifies signatures with the original library."""

import base64
import time

from standardwebhooks import Webhook

from .backend import Backend, Responding, responding
from .waiting import until

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(32, 64))).decode()


def write_secret(folder, secret=SECRET):
    """Write a secret to a file of this folder, and return the flags for it."""
    path = folder / "webhook.secret"
    path.write_text(secret + "\n")
    return ["--webhook-secret-file", path]


def status(code, **headers):
    return responding(b"", code, **headers)


class Receiving(Responding):
    def send(self, status, data, headers):
        """Respond, and before that note what is accepted."""
        receiver = self.server
        receiver.times.append(time.monotonic())
        try:
            content = Webhook(receiver.secret).verify(self.body, dict(self.headers))
        except Exception as error:
            receiver.problems.append(error)
            status = 401
        if 200 <= status < 300:
            receiver.bodies.append(self.body)
            receiver.contents.append(content)
            receiver.events += content["events"]
        super().send(status, data, headers)


class Receiver(Backend):
    """A receiver that expects a secret, as a context manager. Path and query of its URL must stay out of the log.

    `times` has when requests came, by the monotonic clock. `bodies`, `contents` and `events` are of accepted ones.
    """

    handler, behaviour = Receiving, staticmethod(status(204))

    def __init__(self, secret=SECRET, port=0, tls=None):
        self.secret, self.times, self.problems = secret, [], []
        self.bodies, self.contents, self.events = [], [], []
        super().__init__(port, tls)
        self.url = f"{self.base}/hook/path-of-hook?key=query-of-hook"

    def of(self, kind):
        return [event for event in self.events if event["type"] == kind]

    def wait(self, reached):
        return until(reached, complaint=lambda: f"{len(self.requests)} requests, {self.problems}: {self.events}")

    def wait_for(self, *kinds):
        """Wait until as many events as these have arrived, and return them. They must be these, in any order."""
        self.wait(lambda: len(self.events) >= len(kinds))
        assert sorted(event["type"] for event in self.events) == sorted(kinds), self.events
        return self.events
