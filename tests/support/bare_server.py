"""A server of the specification and nothing more: a real one with everything else taken away."""

import contextlib
import http.server
import json
import re
import threading
import urllib.error
import urllib.request

GETS = "/|/topics|/health|/client.js|/[^/]+/sessions"
FIELDS = {"offer": {"info", "offer"}, "answer": {"code", "answer", "candidate", "side"}, "poll": {"code", "side"}}
UNKNOWN = "/no/such"


class BareServer:
    """Stands before a server, and lets through only what the specification knows: paths, parameters and fields.

    Args:
        target: the address of the real server.

    Attributes:
        url: its own address.
        asked: the paths that were asked for.
    """

    def __init__(self, target):
        self.target, self.asked = target, []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self):
        bare = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.split("?")[0]
                bare.asked.append(path)
                self.forward(path if re.fullmatch(GETS, path) else UNKNOWN)

            def do_POST(self):
                bare.asked.append(self.path)
                found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                known = FIELDS.get(self.path.rpartition("/")[2], ())
                fields = {name: value for name, value in found.items() if name in known}
                self.forward(self.path if known else UNKNOWN, json.dumps(fields).encode())

            def do_OPTIONS(self):
                self.forward(self.path)

            def forward(self, path, body=None):
                wanted = ("Origin", "Access-Control-Request-Headers", "Access-Control-Request-Method")
                headers = {name: self.headers[name] for name in wanted if name in self.headers}
                request = urllib.request.Request(bare.target + path, body, headers, method=self.command)
                try:
                    response = urllib.request.urlopen(request, timeout=30)
                except urllib.error.HTTPError as error:
                    response = error
                with response, contextlib.suppress(ConnectionError):  # who asked may be gone
                    data = response.read()
                    self.send_response(response.status)
                    for name, value in response.headers.items():
                        if name.startswith("Access-Control") or name == "Content-Type":
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *args):
                """Say nothing."""

        return Handler
