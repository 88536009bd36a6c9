"""Ten thousand silent connections, slow senders, slow readers and nonsense at once, while others are served in time."""

import contextlib
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest
from bench.processes import Target
from support.command import BOUND_S, ORIGIN, Server

SILENT = 10_000
SLOW = 100  # of each kind
FLOWS = 40
MEDIAN_S, MOST_S = 0.5, 10  # for each request of the others, beyond ten times what it takes when all is quiet

CLIENTS = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("ready", flush=True)
sys.stdin.readline()
"""

HEAD = f"POST /lobby/offer HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\n".encode()
# What is sent at once, and then byte by byte; none of it is ever whole, so none of it may have done anything.
SLOWLY = {
    "a request line": (b"GET /", b"a"),
    "a header": (HEAD + b"X-Slow: ", b"a"),
    "headers": (HEAD, b"X: y\r\n"),
    "a body": (HEAD + b"Content-Length: 200000\r\n\r\n{", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}
# What is hostile from its first bytes on, and how its answer may begin; closing without a word is an answer as well.
HUGE = b"x" * 2_000_000
NONSENSE = {
    "a huge request line": (b"GET /" + HUGE, (b"HTTP/1.1 414", b"HTTP/1.1 431", b"HTTP/1.1 400")),
    "a huge header": (HEAD + b"X: " + HUGE, (b"HTTP/1.1 431", b"HTTP/1.1 400")),
    "very many headers": (HEAD + b"X: y\r\n" * 300_000, (b"HTTP/1.1 431", b"HTTP/1.1 400")),
    "a huge body": (HEAD + b"Content-Length: 2000000\r\n\r\n" + HUGE, (b"HTTP/1.1 413",)),
    "an endless body": (
        HEAD + b"Content-Length: 999999999999999999\r\n\r\n" + HUGE,
        (b"HTTP/1.1 413", b"HTTP/1.1 400"),
    ),
    "endless chunks": (
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"fff\r\n" + HUGE[:4095] + b"\r\n" * 1,
        (b"HTTP/1.1 413", b"HTTP/1.1 400"),
    ),
    "deep JSON": (HEAD + b"Content-Length: 200000\r\n\r\n" + b"[" * 200_000, (b"HTTP/1.1 400",)),
    "two lengths": (HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", (b"HTTP/1.1 400",)),
    "noise": (random.Random(1).randbytes(100_000), (b"HTTP/1.1 400",)),
}


@pytest.fixture
def server(tmp_path):
    """A server that may have as many descriptors as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard > SILENT + 2000, "the machine allows too few open files for this test"
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    running = Server("--data-dir", tmp_path / "data")
    yield running
    running.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def silent(port):
    """Ten thousand connections that say nothing."""
    command = [sys.executable, "-c", CLIENTS, str(port), str(SILENT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        yield
        process.communicate("\n", BOUND_S)


class Hostile(threading.Thread):
    """Drips, and sends nonsense again and again, until it is told to stop.

    Attributes:
        sent: how often each nonsense was sent.
        wrong: answers that should not have been.
    """

    def __init__(self, port):
        super().__init__()
        self.sent = dict.fromkeys(NONSENSE, 0)
        self.wrong = []
        self.stopping = threading.Event()
        self._port = port

    def run(self):
        slow = []
        for begin, drop in SLOWLY.values():
            for _ in range(SLOW):
                slow.append((self._connect(), drop))
                slow[-1][0].sendall(begin)
        for _ in range(SLOW):  # who asks for ever and reads nothing
            slow.append((self._connect(), b"GET /openapi.json HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n\r\n" * 20))
        while not self.stopping.is_set():
            for client, drop in slow:
                with contextlib.suppress(OSError):  # the server had enough, or reads no more
                    client.setblocking(False)
                    client.send(drop)
            for name, (data, answers) in NONSENSE.items():
                self._send(name, data, answers)
        for client, _ in slow:
            client.close()

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self._port), timeout=BOUND_S)

    def _send(self, name, data, answers):
        with self._connect() as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(data)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                answer = client.recv(100)
                if answer and not answer.startswith(answers):
                    self.wrong.append(f"{name}: {answer}")
        self.sent[name] += 1


@pytest.mark.slow
def test_others_are_served(server):
    """Whole exchanges of others go on meanwhile, each request within its time; afterwards all is given back."""
    port = urlsplit(server.url).port
    target = Target(server.url, server.process.pid)
    server.offer("before")
    quiet_s = []
    for number in range(5):
        flow(server, f"quiet-{number}", quiet_s)
    usual_s = 10 * statistics.median(quiet_s)
    idle = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    with silent(port):
        hostile = Hostile(port)
        hostile.start()
        try:
            until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) >= idle + SILENT + len(SLOWLY) * SLOW)
            taken_s = []
            for number in range(FLOWS):
                flow(server, f"topic-{number}", taken_s)
            until(lambda: min(hostile.sent.values()) >= 2)
            memory_mib = target.memory_bytes() / 2**20
        finally:
            hostile.stopping.set()
            hostile.join(BOUND_S)
        assert hostile.wrong == []
        print(f"median {statistics.median(taken_s):.4f} s, most {max(taken_s):.4f} s, {memory_mib:.0f} MiB")
        assert statistics.median(taken_s) < MEDIAN_S + usual_s
        assert max(taken_s) < MOST_S + usual_s
        assert memory_mib < 300
        assert server.codes("lobby") == []  # of all that was begun nothing was done
    until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= idle + 5)
    flow(server, "after", [])
    assert server.stop() == 0
    assert not [line for line in server.log if "ERROR" in line or "Traceback" in line]


def until(true):
    deadline_s = time.monotonic() + BOUND_S
    while not true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def flow(server, topic, taken_s):
    """A whole exchange, each request of which is a success and on a connection of its own."""

    def ask(path, body=None):
        began_s = time.monotonic()
        status, found = server.call(path, body)
        taken_s.append(time.monotonic() - began_s)
        assert status == 200, found
        return found

    code = ask(f"/{topic}/offer", {"info": "i", "offer": "o"})["code"]
    assert [each["code"] for each in ask(f"/{topic}/sessions")["sessions"]] == [code]
    for body in ({"candidate": "c"}, {"answer": "a"}):
        ask("/answer", {"code": code, "side": "answerer", **body})
    assert ask("/poll", {"code": code, "side": "offerer"}) == {"answer": "a", "answerCandidates": ["c"]}
