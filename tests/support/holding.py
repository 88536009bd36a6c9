"""A proxy that forwards a response when it is complete, and no WebSocket."""

import http.client

from .waiting import Handler, LocalServer

REFUSED = {"connection", "upgrade", "transfer-encoding", "content-length", "keep-alive"}


class HoldingProxy(LocalServer):
    """The proxy of a server, on a port of its own. `url` is its address."""

    daemon_threads = True  # the requests of streams that are held back wait until their server stops
    block_on_close = False

    def __init__(self, url):
        self.upstream = url.removeprefix("http://")
        super().__init__(Holding)
        self.url = f"http://127.0.0.1:{self.server_port}"


class Holding(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers["Upgrade"]:
            return self.send(403, b"", {})
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in REFUSED}
        upstream = http.client.HTTPConnection(self.server.upstream)
        try:
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in REFUSED}
            self.send(response.status, response.read(), kept)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            upstream.close()

    do_POST = do_OPTIONS = do_GET
