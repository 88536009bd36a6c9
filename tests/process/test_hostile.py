"""Ten thousand silent connections, slow senders and slow readers at once, while others are served in time."""

import contextlib
import os
import resource
import socket
import statistics
import threading
import time
from pathlib import Path

import pytest
from support.command import BOUND_S, ORIGIN
from support.processes import memory_bytes
from support.raw_http import silent_clients
from support.waiting import until

SILENT = 10_000
SLOW = 100  # of each kind
FLOWS = 40
MEDIAN_S, MOST_S = 0.5, 10  # for each request of the others, beyond ten times what it takes when all is quiet

READING = b"GET /openapi.json HTTP/1.1\r\nHost: h\r\nOrigin: o\r\n\r\n" * 20
HEAD = f"POST /lobby/offer HTTP/1.1\r\nHost: h\r\nOrigin: {ORIGIN}\r\n".encode()
# Input that is sent in one piece and then byte by byte. It is never complete, so it must have no effect.
SLOWLY = {
    "a request line": (b"GET /", b"a"),
    "a header": (HEAD + b"X-Slow: ", b"a"),
    "headers": (HEAD, b"X: y\r\n"),
    "a body": (HEAD + b"Content-Length: 200000\r\n\r\n{", b" "),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.fixture
def server(start):
    """A server that may have as many descriptors as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SILENT + 2000:
        pytest.skip("needs more open files than this machine allows")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hostile(port, stopping):
    """Drip, and ask without reading, until it is to stop."""
    slow = [each for each in (*SLOWLY.values(), (READING, READING)) for _ in range(SLOW)]
    with contextlib.ExitStack() as ends:
        clients = []
        for begin, drop in slow:
            clients.append((ends.enter_context(socket.create_connection(("127.0.0.1", port), timeout=BOUND_S)), drop))
            clients[-1][0].sendall(begin)
        for client, _ in clients:
            client.setblocking(False)
        while not stopping.wait(0.1):
            for client, drop in clients:
                with contextlib.suppress(OSError):  # the server had enough, or reads no more
                    client.send(drop)


@pytest.mark.slow
def test_large_exports_stall_nobody_and_free_their_memory(server):
    port = server.port
    server.offer("before")
    quiet_s = []
    for number in range(5):
        flow(server, f"quiet-{number}", quiet_s)
    usual_s = 10 * statistics.median(quiet_s)
    open_files = Path(f"/proc/{server.process.pid}/fd")
    idle = len(os.listdir(open_files))
    with silent_clients(port, SILENT):
        stopping = threading.Event()
        attacking = threading.Thread(target=hostile, args=(port, stopping))
        attacking.start()
        try:
            until(lambda: len(os.listdir(open_files)) >= idle + SILENT + len(SLOWLY) * SLOW)
            taken_s = []
            for number in range(FLOWS):
                flow(server, f"topic-{number}", taken_s)
            memory_mib = memory_bytes(server.process.pid) / 2**20
        finally:
            stopping.set()
            attacking.join(BOUND_S)
        print(f"median {statistics.median(taken_s):.4f} s, most {max(taken_s):.4f} s, {memory_mib:.0f} MiB")
        assert statistics.median(taken_s) < MEDIAN_S + usual_s
        assert max(taken_s) < MOST_S + usual_s
        assert memory_mib < 300
        assert server.codes("lobby") == []  # of all that was begun nothing was done
    until(lambda: len(os.listdir(open_files)) <= idle + 5)
    flow(server, "after", [])
    assert server.stop() == 0
    assert not [line for line in server.log if "ERROR" in line or "Traceback" in line]


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
