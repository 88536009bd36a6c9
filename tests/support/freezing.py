"""A network between pages and a server that forgets its connections: nothing is forwarded, and nothing is closed."""

import contextlib
import socket
import socketserver
import threading


class Forgetting(socketserver.ThreadingTCPServer):
    """A proxy of a server, on a port of its own. `url` is its address."""

    daemon_threads = False
    request_queue_size = 100

    def __init__(self, url):
        host, _, port = url.removeprefix("http://").partition(":")
        self.upstream, self.age, self.kept, self.closed = (host, int(port)), 0, [], threading.Event()
        super().__init__(("127.0.0.1", 0), Forward)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        self._thread.start()

    def forget(self):
        """Forward nothing more over the current connections. New ones work."""
        self.age += 1

    def close(self):
        self.shutdown()
        self._thread.join()
        self.closed.set()
        for each in self.kept:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.server_close()


class Forward(socketserver.BaseRequestHandler):
    def handle(self):
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(self.server.upstream) as upstream:
            self.server.kept += [self.request, upstream]
            back = threading.Thread(target=self.copy, args=(upstream, self.request))
            back.start()
            self.copy(self.request, upstream)
            back.join()

    def copy(self, source, target):
        age = self.server.age
        with contextlib.suppress(OSError):  # the other side or the test has closed it
            while part := source.recv(1 << 16):
                if age != self.server.age:
                    self.server.closed.wait()
                    return
                target.sendall(part)
            target.shutdown(socket.SHUT_WR)
