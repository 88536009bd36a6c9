"""Streams by the browser module: in Chromium, Firefox and Node, while the server goes away and comes back."""

import contextlib
import itertools
import json
import signal
import socketserver
import threading
import time

import pytest
from support.browsers import until
from support.node import Node, fetch_module
from support.sse import REPLACED, REPORTED

SECRET = "0123456789abcdef0123456789abcdef"
WAYS = ("socket", "http")  # outside of browsers both are HTTP
# Streams of a page: the events of each, its end, and the number of failed attempts.
LISTEN = """
(() => {
  const asking = globalThis.fetch;
  globalThis.asked = 0;
  globalThis.failures = 0;
  globalThis.gate = Promise.resolve();
  globalThis.admit = () => {};
  globalThis.keepOut = () => (gate = new Promise((resolve) => {
    const {WebSocket} = globalThis;
    globalThis.WebSocket = undefined; // which nothing can be made of
    admit = () => resolve((globalThis.WebSocket = WebSocket));
  }));
  globalThis.fetch = async (...args) => {
    await gate;
    asked += 1;
    return asking(...args).catch((error) => {
      failures += 1;
      throw error;
    });
  };
  globalThis.stop = new AbortController();
  globalThis.told = {};
  globalThis.ended = {};
  globalThis.listen = (name, url, about, origin, way) => {
    const events = (told[`${name} ${way}`] = []);
    ended[`${name} ${way}`] = (async () => {
      const client = new SignalClient(url, globalThis.document ? {socket: way === "socket"} : {origin});
      for await (const {type, data} of client.events(about, {signal: stop.signal})) {
        events.push([type, data.code ?? data[type]]);
      }
      return "through";
    })().catch(({name, status}) => [name, status ?? null]);
  };
})()
"""


@pytest.fixture
def runtimes(connect_page, connect_firefox, tmp_path):
    started = []

    def starting(server):
        started.append(Node(fetch_module(server.url, tmp_path)))
        found = {"chromium": connect_page(server), "firefox": connect_firefox(server), "node": started[0]}
        for each in found.values():
            each.evaluate(LISTEN)
        return found

    yield starting
    for node in started:
        assert not node.close()


class Peers:
    """Actions of others at a server, and the streams of runtimes that must report them."""

    def __init__(self, server, origin, runtimes, ways=WAYS):
        self.server, self.origin, self.runtimes, self.ways = server, origin, runtimes, ways

    def call(self, path, **fields):
        status, found = self.server.call(path, fields, origin=self.origin)
        assert status == 200, found
        return found

    def come(self, **fields):
        return self.call("/lobby/offer", **{"info": "i", "offer": "o", **fields})["code"]

    def evaluate(self, expression):
        """The value of an expression, which is the same everywhere."""
        first, *others = found = [(name, each.evaluate(expression)) for name, each in self.runtimes.items()]
        assert all(value == first[1] for _, value in others), found
        return first[1]

    def listen(self, name, about):
        for way in self.ways:
            self.evaluate(f"listen({json.dumps([name, self.server.url, about, self.origin, way])[1:-1]})")

    def ended(self, name):
        """How a stream has ended, everywhere."""
        first, *others = [self.evaluate(f"ended[{json.dumps(f'{name} {way}')}]") for way in self.ways]
        assert all(each == first for each in others)
        return first

    def told(self, name, expected):
        """Wait until a stream has reported as many events. They must be these, in this order for each session.

        A topic's stream reports missed removals before missed additions.
        """
        for (runtime, each), way in itertools.product(self.runtimes.items(), self.ways):
            stream = f"{name} {way}"
            until(lambda each=each, stream=stream: len(each.evaluate("told")[stream]) >= len(expected))
            found = each.evaluate("told")[stream]
            as_told = sorted if name == "topic" else list
            assert as_told(found) == as_told(expected), (runtime, way)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_streams_lose_and_repeat_nothing_while_the_server_is_away(number, runtimes, start, site):
    server = start()
    peers = Peers(server, site.origin, runtimes(server))
    first = peers.come(secret=SECRET)
    peers.listen("topic", "lobby")
    peers.listen("session", {"code": first, "side": "offerer", "secret": SECRET})
    answerer = {"code": first, "side": "answerer"}
    peers.call("/answer", **answerer, candidates=["1", "2"])
    topic, session = [["session", first]], [["candidate", "1"], ["candidate", "2"]]
    peers.told("topic", topic)
    peers.told("session", session)
    second = peers.come()
    server.stop(number)
    until(lambda: all(each.evaluate("failures") >= 5 for each in peers.runtimes.values()))  # one of the streams twice
    peers.server = start(port=server.url.rpartition(":")[2])
    third = peers.come()
    peers.call("/answer", **answerer, candidate="3")
    peers.call("/answer", **answerer, answer="a")
    topic += [["session", second], ["session", third], ["gone", first]]
    session += [["candidate", "3"], ["answer", "a"]]
    peers.told("topic", topic)
    peers.told("session", session)
    peers.call("/withdraw", **answerer)
    assert peers.ended("session") == "through"
    peers.told("session", [*session, ["gone", first]])
    peers.call("/refresh", code=second, side="offerer")
    topic.append(["session", second])
    peers.told("topic", topic)
    peers.call("/withdraw", code=third, side="offerer")
    peers.told("topic", [*topic, ["gone", third]])
    peers.evaluate("stop.abort()")
    assert peers.ended("topic") == ["AbortError", None]


def test_streams_restart_or_end_after_the_server_lost_its_data(runtimes, start, site):
    server = start("--codes", "content")
    peers = Peers(server, site.origin, runtimes(server))
    codes = {name: peers.come(offer=name) for name in ("kept", "left")}
    for name, code in codes.items():
        peers.listen(name, {"code": code, "side": "offerer"})
        peers.call("/answer", code=code, side="answerer", candidate="old")
        peers.told(name, [["candidate", "old"]])
    peers.evaluate("(keepOut(), 0)")
    server.stop(signal.SIGKILL)
    peers.server = start("--codes", "content", port=server.url.rpartition(":")[2])
    for code in codes.values():
        peers.call("/withdraw", code=code, side="offerer")
    assert peers.come(offer="kept") == codes["kept"]
    peers.call("/answer", code=codes["kept"], side="answerer", candidate="new")
    peers.evaluate("(admit(), 0)")
    peers.told("kept", [["candidate", "old"], ["candidate", "new"]])
    assert peers.ended("left") == ["SignalError", 404]
    peers.evaluate("stop.abort()")


def test_sessions_that_another_store_does_not_have_are_reported_as_gone(runtimes, start, site):
    server = start("--codes", "content")
    peers = Peers(server, site.origin, runtimes(server))
    left, kept = peers.come(offer="left"), peers.come(offer="kept")
    peers.listen("topic", "lobby")
    topic = [["session", left], ["session", kept]]
    peers.told("topic", topic)
    peers.evaluate("(keepOut(), 0)")
    server.stop()
    peers.server = start("--codes", "content", port=server.url.rpartition(":")[2], data="other")
    assert peers.come(offer="kept") == kept
    new = peers.come()
    peers.evaluate("(admit(), 0)")
    topic += [["session", kept], ["gone", left], ["session", new]]
    peers.told("topic", topic)
    peers.call("/withdraw", code=kept, side="offerer")
    peers.told("topic", [*topic, ["gone", kept]])
    peers.evaluate("stop.abort()")


def test_stream_that_cannot_begin_fails_like_a_call(runtimes, server, site):
    peers = Peers(server, site.origin, runtimes(server))
    peers.listen("no session", {"code": "no-such", "side": "offerer"})
    assert peers.ended("no session") == ["SignalError", 404]
    peers.listen("no topic", "x" * 300)
    assert peers.ended("no topic") == ["SignalError", 400]
    server.stop()
    peers.listen("no server", "lobby")
    assert peers.ended("no server") == ["TypeError", None]


def test_stream_is_opened_again_after_20_s_of_silence(server, site, connect_page):
    page = connect_page(server)
    page.clock.install()
    page.evaluate(LISTEN)
    peers = Peers(server, site.origin, {"chromium": page}, ["http"])
    codes = [peers.come()]
    peers.listen("topic", "lobby")
    peers.told("topic", [["session", code] for code in codes])
    for _ in range(3):
        page.clock.run_for(18_000)
        codes.append(peers.come())
        peers.told("topic", [["session", code] for code in codes])
    assert page.evaluate("asked") == 1
    server.process.send_signal(signal.SIGSTOP)
    try:
        page.clock.run_for(21_000)
    finally:
        server.process.send_signal(signal.SIGCONT)
    until(lambda: page.clock.run_for(500) or page.evaluate("asked") > 2)  # a sign of life, and the stream
    codes.append(peers.come())
    peers.told("topic", [["session", code] for code in codes])


# Responses that this server never sends.

EVENT = 'event: gone\ndata: {"code": "%s"}\n\n'
# The responses in pieces. The first one starts with a byte order mark and ends within an event.
PIECES = [
    [
        "\ufeff: hello\r\nretry: 10\r",
        "\nid: 1\r\n",
        "event: gone\r\ndata: {\r\ndata",
        ':"code": "ü😀"}\r\n\r\n',
        'event:gone\rdata:{"code":""}\r\rid: 2\revent: session\rdata: {}',
    ],
    503,
    [EVENT % "a", "event: later\ndata: 1\n\nevent: session\n\nid: 3\n\n:", "\n\nid\n", EVENT % "b"],
    ["id: \nretry: x\n", EVENT % "c", 'event: gone\ndata: {"code": "d"}\n\n'],
]


class Scripted(socketserver.ThreadingTCPServer):
    """Responds to each request with the next of some responses, which are also cut within characters."""

    daemon_threads = True

    def __init__(self, responses):
        self.asked = []  # the Last-Event-ID of each request
        scripted = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                _, *lines = iter(lambda: self.rfile.readline().decode().strip(), "")
                head = dict(line.lower().split(": ", 1) for line in lines)
                pieces = responses[len(scripted.asked)]
                scripted.asked.append(head.get("last-event-id"))
                if pieces == 503:
                    self.wfile.write(b"HTTP/1.1 503 x\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}")
                    return
                self.wfile.write(b"HTTP/1.1 200 x\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
                for piece in pieces:
                    for part in (data[i : i + 7] for data in [piece.encode()] for i in range(0, len(data), 7)):
                        self.wfile.write(part)
                        self.wfile.flush()
                        time.sleep(0.002)

        super().__init__(("127.0.0.1", 0), Handler)

    @contextlib.contextmanager
    def serving(self):
        """Serve. Yield the URL."""
        with self:
            threading.Thread(target=self.serve_forever, args=(0.05,)).start()
            try:
                yield f"http://127.0.0.1:{self.server_address[1]}"
            finally:
                self.shutdown()


def test_listing_after_a_reset_replaces_what_was_known(server, tmp_path):
    node, scripted = Node(fetch_module(server.url, tmp_path)), Scripted([["retry: 10\n", text] for _, text in REPLACED])
    with scripted.serving() as url:
        told = node.evaluate(
            """(async () => {
              const told = [];
              for await (const {type, data} of new SignalClient(URL, {socket: false}).events("lobby")) {
                told.push([type, data.code]);
                if (type === "gone" && data.code === "a") return told;
              }
            })()""".replace("URL", json.dumps(url))
        )
    assert [tuple(each) for each in told] == REPORTED
    assert scripted.asked == [last and last.decode() for last, _ in REPLACED]
    assert node.close() == 0


def test_streams_split_at_any_byte_are_parsed(server, tmp_path):
    node, scripted = Node(fetch_module(server.url, tmp_path)), Scripted(PIECES)
    with scripted.serving() as url:
        told, pauses_ms = node.evaluate(
            """(async () => {
              const told = [];
              const pauses = [];
              const start = setTimeout;
              globalThis.setTimeout = (end, ms) => {
                const silence = ms >= 4000; // for so long a server may be silent
                if (new Error().stack.includes("/client/timing.js") && !silence) pauses.push(ms);
                return start(end, ms);
              };
              for await (const {type, data, id} of new SignalClient(URL, {socket: false}).events("lobby")) {
                told.push([type, data.code ?? "", id]);
                if (data.code === "d") return [told, pauses];
              }
            })()""".replace("URL", json.dumps(url))
        )
    assert told == [
        ["gone", "ü😀", "1"],
        ["gone", "", "1"],
        ["gone", "a", "1"],
        ["gone", "b", ""],
        ["gone", "c", ""],
        ["gone", "d", ""],
    ]
    assert scripted.asked == [None, "1", "1", None]
    assert [ms >= 1000 for ms in pauses_ms] == [False, True, False]
    assert node.close() == 0
