"""A proxy that reduces a real server to the paths and fields of the original specification."""

import contextlib
import json
import re
import urllib.error
import urllib.request

from .backend import Backend

GETS = "/|/topics|/health|/client.js|/client/[^/]+[.]js|/[^/]+/sessions"
FIELDS = {"offer": {"info", "offer"}, "answer": {"code", "answer", "candidate", "side"}, "poll": {"code", "side"}}
FORWARDED = ("Origin", "Access-Control-Request-Headers", "Access-Control-Request-Method")
UNKNOWN = "/no/such"


class BareServer(Backend):
    def __init__(self, target):
        super().__init__()
        self._target, self.url = target, self.base  # the address of the real server, and its own

    @property
    def asked(self):
        """The paths of all requests."""
        return [each.target.split("?")[0] for each in self.requests]

    def behaviour(self, handler):
        path, body = handler.path.split("?")[0], None
        if handler.command == "POST":
            names = FIELDS.get(path.rpartition("/")[2], ())
            fields = {name: value for name, value in json.loads(handler.body).items() if name in names}
            path, body = path if names else UNKNOWN, json.dumps(fields).encode()
        elif handler.command == "GET" and not re.fullmatch(GETS, path):
            path = UNKNOWN
        headers = {name: handler.headers[name] for name in FORWARDED if name in handler.headers}
        request = urllib.request.Request(self._target + path, body, headers, method=handler.command)
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response, contextlib.suppress(ConnectionError):  # the client may have disconnected
            kept = [name for name in response.headers if name.startswith("Access-Control") or name == "Content-Type"]
            handler.send(response.status, response.read(), {name: response.headers[name] for name in kept})
