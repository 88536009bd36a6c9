"""A proxy that reduces a real server to the paths and fields of the original specification."""

import contextlib
import json
import re
import urllib.error
import urllib.request

from .waiting import Handler, LocalServer

GETS = "/|/topics|/health|/client.js|/client/[^/]+[.]js|/[^/]+/sessions"
FIELDS = {"offer": {"info", "offer"}, "answer": {"code", "answer", "candidate", "side"}, "poll": {"code", "side"}}
UNKNOWN = "/no/such"


class BareServer(LocalServer):
    def __init__(self, target):
        self.target, self.asked = target, []  # the address of the real server, and the paths of all requests
        super().__init__(Forwarding)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Forwarding(Handler):
    def do_GET(self):
        path = self.path.split("?")[0]
        self.server.asked.append(path)
        self.forward(path if re.fullmatch(GETS, path) else UNKNOWN)

    def do_POST(self):
        self.server.asked.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        names = FIELDS.get(self.path.rpartition("/")[2], ())
        fields = {name: value for name, value in body.items() if name in names}
        self.forward(self.path if names else UNKNOWN, json.dumps(fields).encode())

    def do_OPTIONS(self):
        self.forward(self.path)

    def forward(self, path, body=None):
        names = ("Origin", "Access-Control-Request-Headers", "Access-Control-Request-Method")
        headers = {name: self.headers[name] for name in names if name in self.headers}
        request = urllib.request.Request(self.server.target + path, body, headers, method=self.command)
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response, contextlib.suppress(ConnectionError):  # the client may have disconnected
            kept = [name for name in response.headers if name.startswith("Access-Control") or name == "Content-Type"]
            self.send(response.status, response.read(), {name: response.headers[name] for name in kept})
