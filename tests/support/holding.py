"""A network between pages and a server that treats WebSockets and streams as some networks do."""

import http.client
import select
import socket
import time
from pathlib import Path

from .waiting import Handler, LocalServer

REFUSED = {"connection", "upgrade", "transfer-encoding", "content-length", "keep-alive"}
CUT_S = 10
PAGE = Path(__file__).with_name("connect.html")


class Network(LocalServer):
    """A proxy of a server, on a port of its own. `url` is its address.

    Args:
        url: the server's address.
        websockets: `works`, `refused`, `hangs`, or `cut`, every 10 seconds.
        streams: `pass`, or `held`: a response is forwarded when it is complete.
    """

    daemon_threads = True  # the requests of streams that are held back wait until their server stops
    block_on_close = False
    request_queue_size = 100

    def __init__(self, url, websockets="works", streams="pass"):
        self.upstream = url.removeprefix("http://")
        self.websockets, self.streams = websockets, streams
        self.opened, self.ended = 0, 0  # WebSockets
        super().__init__(Passing)
        self.url = f"http://127.0.0.1:{self.server_port}"


class HoldingProxy(Network):
    """A proxy that forwards a response when it is complete, and no WebSocket."""

    def __init__(self, url):
        super().__init__(url, "refused", "held")


class Passing(Handler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers["Upgrade"]:
            return self.tunnel()
        if self.path.startswith("/connect?"):  # a page on the same host
            return self.send(200, PAGE.read_bytes(), {"Content-Type": "text/html; charset=utf-8"})
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        headers = {name: value for name, value in self.headers.items() if name.lower() not in REFUSED}
        upstream = http.client.HTTPConnection(self.server.upstream)
        try:
            upstream.request(self.command, self.path, body, headers)
            response = upstream.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in REFUSED}
            if self.server.streams == "held" or response.length is not None:
                self.send(response.status, response.read(), kept)
            else:
                self.stream(response, kept)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            upstream.close()

    do_POST = do_OPTIONS = do_GET

    def stream(self, response, headers):
        self.send_response(response.status)
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        while part := response.read1(1 << 16):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def tunnel(self):
        """Connect a WebSocket with the server, as far as this network lets it."""
        self.close_connection = True
        if self.server.websockets == "refused":
            return self.send(403, b"", {})
        if self.server.websockets == "hangs":
            return self.connection.recv(1)
        self.server.opened += 1
        host, _, port = self.server.upstream.partition(":")
        end_s = time.monotonic() + CUT_S if self.server.websockets == "cut" else None
        with socket.create_connection((host, int(port))) as upstream:
            head = [self.requestline, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]
            upstream.sendall("\r\n".join(head).encode())
            other = {upstream: self.connection, self.connection: upstream}
            while end_s is None or time.monotonic() < end_s:
                ready = select.select(list(other), [], [], end_s and max(0, end_s - time.monotonic()))[0]
                if not all([self.forward(one, other[one]) for one in ready]):
                    break
        self.server.ended += 1

    @staticmethod
    def forward(source, target):
        try:
            part = source.recv(1 << 16)
            target.sendall(part)
        except OSError:
            return False
        return bool(part)
