"""WebSockets of the installed command: what becomes of them when it stops, is killed and starts again; TLS; numbers."""

import contextlib
import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

from support.certificates import client_context, make_pair
from support.command import BOUND_S, ORIGIN
from support.scraping import scrape
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect, unix_connect

SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


class Client:
    """A client with one connection, which reads in the order in which things come."""

    def __init__(self, server, **options):
        url = server.url.replace("http", "ws", 1) + "/ws"
        self._connecting = connect(url, origin=ORIGIN, compression=None, ping_interval=None, **options)
        self._id = 0

    def __enter__(self):
        self.socket = self._connecting.__enter__()
        return self

    def __exit__(self, *exc):
        self._connecting.__exit__(*exc)

    def send(self, method, **params):
        """Send a request."""
        self._id += 1
        self.socket.send(json.dumps({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}))

    def receive(self):
        """The next message."""
        return json.loads(self.socket.recv(BOUND_S))

    def call(self, method, **params):
        """The result of a request; events that come before it are lost."""
        self.send(method, **params)
        while "id" not in (found := self.receive()):
            pass
        assert "result" in found, found
        return found["result"]

    def event(self):
        """The next event that is more than a cursor: type, data, cursor."""
        while True:
            params = self.receive()["params"]
            if "type" in params:
                return params["type"], params["data"], params["cursor"]

    def closed(self):
        """Read to the end; the code of the close frame."""
        try:
            while True:
                self.socket.recv(BOUND_S)
        except ConnectionClosed as closed:
            return closed.rcvd and closed.rcvd.code


def test_a_restart_closes_all_with_1012_over_two_seconds_and_offers_and_cursors_stay_good(start):
    server = start("--admin-port", 0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Client(server)) for _ in range(30)]
        code = clients[0].call("offer", **OFFER, secret=SECRET, hold=True)["code"]
        clients[1].send("subscribe", topic="lobby")
        clients[1].receive()
        cursor = clients[1].event()[2]
        clients[2].send("poll", code=code, side="offerer", secret=SECRET, wait=60)
        found = scrape(server.admin_url)
        assert (found.one("websockets"), found.one("held_offers")) == (30, 1)
        assert found.one("requests", "/:topic/offer", "WS", "200") == 1
        server.process.send_signal(signal.SIGTERM)
        assert clients[2].receive()["result"]["answerCandidates"] == []

        def end(client):
            """The code that a client is closed with, and when."""
            return client.closed(), time.monotonic()

        with ThreadPoolExecutor(len(clients)) as threads:
            codes, times_s = zip(*threads.map(end, clients), strict=True)
        assert set(codes) == {1012}
        assert max(times_s) - min(times_s) > 1.2  # of two seconds, at random
    assert server.wait() == 0
    server = start("--hold-grace-ms", 100)
    with Client(server) as back, Client(server) as watching:
        back.call("hold", code=code, secret=SECRET)
        watching.send("subscribe", topic="lobby", since=cursor)
        watching.receive()
        other = back.call("offer", **OFFER)["code"]
        assert watching.event()[1]["code"] == other
        back.socket.close()
        assert watching.event()[:2] == ("gone", {"code": code, "reason": "withdrawn"})
    assert server.stop() == 0


def test_after_a_kill_nothing_is_lost_or_doubled_for_clients_with_a_cursor(start):
    server = start()
    told, cursor = [], None
    for round_ in range(3):
        with Client(server) as client:
            client.send("subscribe", topic="lobby", **({"since": cursor} if cursor else {}))
            client.receive()
            published = [server.offer(info=f"{round_}-{number}") for number in range(5)]
            for _ in published:
                kind, data, cursor = client.event()
                told.append((kind, data["code"]))
            assert [code for _, code in told[-5:]] == published
            missed = server.offer(info="not seen")
            server.process.kill()
            assert client.closed() is None
        server.wait()
        server = start()
        assert missed in server.codes()
        server.call("/withdraw", {"code": missed, "side": "offerer"})
    assert len(set(told)) == len(told)
    assert server.stop() == 0


def test_websockets_over_tls_and_a_unix_socket(start, tmp_path):
    pair = make_pair(tmp_path)
    server = start(*pair.flags)
    with Client(server, ssl=client_context(pair)) as client:
        assert client.call("health")["status"] == "ok"
        server.process.send_signal(signal.SIGTERM)
        assert client.closed() == 1012
    assert server.wait() == 0
    path = tmp_path / "socket"
    server = start("--address", f"unix:{path}", port=None)
    with unix_connect(str(path), uri="ws://localhost/ws", origin=ORIGIN) as client:
        client.send('{"jsonrpc": "2.0", "id": 1, "method": "version"}')
        assert "result" in json.loads(client.recv(BOUND_S))
    assert server.stop() == 0
