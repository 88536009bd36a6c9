"""Streams by the browser module: in Chromium, Firefox and Node, while the server goes away and comes back."""

import itertools
import json
import signal

import pytest
from support.browsers import until
from support.node import Node
from support.paths import ROOT

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
  globalThis.received = {};
  globalThis.ended = {};
  globalThis.listen = (name, url, about, origin, way) => {
    const events = (received[`${name} ${way}`] = []);
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
def runtimes(connect_page, connect_firefox):
    started = []

    def starting(server):
        started.append(Node(ROOT / "tornado_signal/web/client.js"))
        found = {"chromium": connect_page(server), "firefox": connect_firefox(server), "node": started[0]}
        for each in found.values():
            each.evaluate(LISTEN)
        return found

    yield starting
    for node in started:
        assert not node.close()


class Peers:
    """Actions of others at a server, and the streams of runtimes that must report them."""

    def __init__(self, server, origin, runtimes):
        self.server, self.origin, self.runtimes = server, origin, runtimes

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
        for way in WAYS:
            self.evaluate(f"listen({json.dumps([name, self.server.url, about, self.origin, way])[1:-1]})")

    def ended(self, name):
        """How a stream has ended, everywhere."""
        first, *others = [self.evaluate(f"ended[{json.dumps(f'{name} {way}')}]") for way in WAYS]
        assert all(each == first for each in others)
        return first

    def received(self, name, expected):
        """Wait until a stream has reported these events and no others.

        Missed removals precede missed additions. A poll has a description before the candidates, and does not repeat
        what was listed before, as a listing after a restart does.
        """
        for (runtime, each), way in itertools.product(self.runtimes.items(), WAYS):
            stream = f"{name} {way}"
            until(lambda each=each, stream=stream: distinct(each.evaluate("received")[stream]) >= distinct(expected))
            found = each.evaluate("received")[stream]
            assert distinct(found) == distinct(expected), (runtime, way)


def distinct(events):
    return {tuple(event) for event in events}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_streams_lose_nothing_while_the_server_is_away(number, runtimes, start, site):
    server = start()
    peers = Peers(server, site.origin, runtimes(server))
    first = peers.come(secret=SECRET)
    peers.listen("topic", "lobby")
    peers.listen("session", {"code": first, "side": "offerer", "secret": SECRET})
    answerer = {"code": first, "side": "answerer"}
    peers.call("/answer", **answerer, candidates=["1", "2"])
    topic, session = [["session", first]], [["candidate", "1"], ["candidate", "2"]]
    peers.received("topic", topic)
    peers.received("session", session)
    second = peers.come()
    server.stop(number)
    until(lambda: all(each.evaluate("failures") >= 5 for each in peers.runtimes.values()))  # one of the streams twice
    peers.server = start(port=server.url.rpartition(":")[2])
    third = peers.come()
    peers.call("/answer", **answerer, candidate="3")
    peers.call("/answer", **answerer, answer="a")
    topic += [["session", second], ["session", third], ["gone", first]]
    session += [["candidate", "3"], ["answer", "a"]]
    peers.received("topic", topic)
    peers.received("session", session)
    peers.call("/withdraw", **answerer)
    assert peers.ended("session") == "through"
    peers.received("session", [*session, ["gone", first]])
    peers.call("/withdraw", code=third, side="offerer")
    peers.received("topic", [*topic, ["gone", third]])
    peers.evaluate("stop.abort()")
    assert peers.ended("topic") == ["AbortError", None]


def test_streams_restart_or_end_after_the_server_lost_its_data_and_fail_like_a_call_at_first(runtimes, start, site):
    server = start("--codes", "content")
    peers = Peers(server, site.origin, runtimes(server))
    codes = {name: peers.come(offer=name) for name in ("kept", "left")}
    for name, code in codes.items():
        peers.listen(name, {"code": code, "side": "offerer"})
        peers.call("/answer", code=code, side="answerer", candidate="old")
        peers.received(name, [["candidate", "old"]])
    peers.evaluate("(keepOut(), 0)")
    server.stop(signal.SIGKILL)
    peers.server = start("--codes", "content", port=server.url.rpartition(":")[2])
    for code in codes.values():
        peers.call("/withdraw", code=code, side="offerer")
    assert peers.come(offer="kept") == codes["kept"]
    peers.call("/answer", code=codes["kept"], side="answerer", candidate="new")
    peers.evaluate("(admit(), 0)")
    peers.received("kept", [["candidate", "old"], ["candidate", "new"]])
    assert peers.ended("left") == ["SignalError", 404]
    peers.listen("no session", {"code": "no-such", "side": "offerer"})
    assert peers.ended("no session") == ["SignalError", 404]
    peers.listen("no topic", "x" * 300)
    assert peers.ended("no topic") == ["SignalError", 400]
    peers.server.stop()
    peers.listen("no server", "lobby")
    assert peers.ended("no server") == ["SignalError", None]
    peers.evaluate("stop.abort()")
