"""The WebSocket of the browser module: what goes over it, and what happens when it breaks or does not open."""

import json
import signal
import socket

import pytest
from support.browsers import Windowed, listed, until
from support.scraping import scrape

pytest_plugins = ["support.browser_fixtures"]

GRACE_MS = 1000
MORE_MS = 2000  # until the others have been told
API = "new SignalClient(location.search.slice(1))"
# The events of a topic: what came, of which session, and when.
WATCH = """
  (topic) => {
    window.told = [];
    window.stop = new AbortController();
    const {signal} = stop;
    (async () => {
      for await (const {type, data} of new SignalClient(location.search.slice(1)).events(topic, {signal})) {
        told.push([type, data.code, Date.now()]);
      }
    })().catch(({name}) => told.push([name]));
  }
"""


class Traffic:
    """What a page asks for from now on.

    Args:
        page: the page.
    """

    def __init__(self, page):
        self._page, self._requests, self._sockets, self._methods = page, [], [], []
        page.on("request", lambda request: self._requests.append(request.url))
        page.on("websocket", self._opened)

    def _opened(self, found):
        self._sockets.append(found)
        found.on("framesent", lambda text: self._methods.append(json.loads(text)["method"]))

    def _until_now(self, found):
        self._page.evaluate("0")  # events come while the page is asked for something
        return found

    @property
    def requests(self):
        """The addresses of its HTTP requests."""
        return self._until_now(self._requests)

    @property
    def sockets(self):
        """Its WebSockets."""
        return self._until_now(self._sockets)

    @property
    def methods(self):
        """What it has called over these."""
        return self._until_now(self._methods)


def held(server):
    """How many offers are held there."""
    return scrape(server.admin_url).one("held_offers")


def codes(server, site, topic="lobby"):
    """Wait for sessions of a topic; their codes."""
    return [each["code"] for each in until(lambda: listed(server, site.origin, topic))]


def later(server, site, first):
    """Wait for an offer in the place of another one, or for that to be refreshed; it is the only one."""
    return until(
        lambda: (found := listed(server, site.origin)) and found[0]["expiresAt"] > first["expiresAt"] and found
    )[0]


# What goes over it.


def test_all_goes_over_one(server, site, connect_page):
    """Calls, events, offers and connections of a page go over one WebSocket, and nothing else is asked for."""
    alice, bob = connect_page(server), connect_page(server)
    traffic = Traffic(alice)
    assert alice.evaluate(f"(async () => (await {API}.open()).readyState)()") == 1
    alice.evaluate(WATCH, "lobby")
    alice.evaluate("listen('lobby', {info: 'alice'})")
    assert bob.evaluate("call('lobby', {info: 'bob'})") == ["alice", "alice: hello"]
    alice.wait_for_function("() => told.length >= 3")
    alice.evaluate("publication.close()")
    until(lambda: not listed(server, site.origin))
    assert [type for type, *_ in alice.evaluate("told")][:2] == ["session", "gone"]
    until(lambda: "withdraw" in traffic.methods)
    assert {"subscribe", "iceServers", "offer", "poll"} < set(traffic.methods)
    assert "refresh" not in traffic.methods
    assert len(traffic.sockets) == 1
    assert traffic.requests == []


def test_closed_when_nothing_needs_it(server, connect_page):
    """A page that asks nothing more has no connection; one that waits or listens keeps it; the next call opens it."""
    page = connect_page(server)
    page.clock.install()
    traffic = Traffic(page)
    page.evaluate(WATCH, "lobby")
    page.evaluate(f"async () => {{ window.api = {API}; await api.version(); }}")
    page.evaluate(
        "() => { window.waiting = failure(api.sessions('lobby', {wait: 60, since: '', signal: stop.signal})); }"
    )
    page.clock.fast_forward(20_000)
    page.evaluate("api.health()")
    assert [each.is_closed() for each in traffic.sockets] == [False]
    page.evaluate("stop.abort()")
    until(lambda: "unsubscribe" in traffic.methods)
    assert page.evaluate("told") == [["AbortError"]]
    until(lambda: page.clock.fast_forward(20_000) or traffic.sockets[0].is_closed())
    assert page.evaluate("api.health()")["status"] == "ok"
    assert [each.is_closed() for each in traffic.sockets] == [True, False]


def test_what_is_too_large(start, connect_page):
    """What the server takes neither way is refused as over HTTP, and others may go on."""
    large, small = start(data="large"), start("--max-body-bytes", 1024, data="small")
    ask = """
      async ([url, length]) => {
        const api = new SignalClient(url);
        const fail = () => failure(api.offer("lobby", {info: "i", offer: "o".repeat(length)}));
        return [await fail(), await fail(), await api.health()];
      }
    """
    page = connect_page(large)
    traffic = Traffic(page)
    first, second, health = page.evaluate(ask, [large.url, 300_000])
    assert (first["status"], second["status"], health["status"]) == (413, 413, "ok")
    assert not traffic.sockets[0].is_closed()
    first, second, health = page.evaluate(ask, [small.url, 2000])
    assert (first["name"], second["status"], health["status"]) == ("TypeError", 413, "ok")


def test_six_publications(server, site, connect_page):
    """Pages that publish under six topics keep no other request of their browser from the server."""
    alice = connect_page(server)
    topics = [f"topic {number}" for number in range(6)]
    alice.evaluate("topics => topics.forEach((topic) => listen(topic, {info: topic}))", topics)
    until(lambda: {each["topic"] for each in server.call("/topics", origin=site.origin)[1]["topics"]} == set(topics))
    other = alice.context.new_page()
    other.goto(alice.url)
    other.wait_for_function("() => window.ready")
    soon = "fetch(location.search.slice(1) + '/health', {signal: AbortSignal.timeout(20_000)}).then(({ok}) => ok)"
    assert other.evaluate(f"Promise.all(Array.from({{length: 6}}, () => {soon}))") == [True] * 6
    for topic in topics:
        assert other.evaluate("topic => call(topic, {info: 'other'})", topic) == [topic, f"{topic}: hello"]


# When it breaks.


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_held_by_the_next_server(number, start, site, connect_page, firefox):
    """Offers of pages are the same after a restart, and held again, in Chromium and in Firefox."""
    server = start("--admin-port", 0)
    alice, bob = connect_page(server), connect_page(server)
    firefox.goto(f"{site.origin}/connect?{server.url}")
    until(lambda: firefox.evaluate("window.ready"))
    alice.evaluate("listen('lobby', {info: 'alice'})")
    firefox.evaluate("listen('other', {info: 'firefox'})")
    first = codes(server, site), codes(server, site, "other")
    assert until(lambda: held(server) == 2)
    assert firefox.evaluate(f"(async () => (await {API}.open()).readyState)()") == 1
    server.stop(number)
    server = start("--admin-port", 0, port=server.url.rpartition(":")[2])
    until(lambda: held(server) == 2)
    assert (codes(server, site), codes(server, site, "other")) == first
    assert bob.evaluate("call('lobby', {info: 'bob'})") == ["alice", "alice: hello"]
    assert bob.evaluate("call('other', {info: 'bob'})") == ["firefox", "firefox: hello"]
    assert firefox.evaluate("errors") == alice.evaluate("errors") == []


def test_taken_over(start, site, connect_page):
    """A new connection takes an offer over in time; if it comes too late, another offer is published."""
    server = start("--admin-port", 0, "--hold-grace-ms", 60_000)
    strict = start("--admin-port", 0, "--hold-grace-ms", 0, data="strict")
    page = connect_page(server)
    traffic = Traffic(page)
    for each in (server, strict):
        page.evaluate("url => listen('lobby', {info: 'alice', url})", each.url)
        (first,) = until(lambda each=each: listed(each, site.origin))
        until(lambda each=each: held(each) == 1)
        page.evaluate("async url => (await new SignalClient(url).open()).close()", each.url)
        second = later(each, site, first)
        assert (second["code"] == first["code"]) == (each is server)
        until(lambda each=each: held(each) == 1)
    assert traffic.methods.count("offer") == 3
    assert page.evaluate("errors") == []


def test_a_killed_browser(start, connect_page, site, chromium, tmp_path):
    """The offer of a browser that is killed is gone for the others within the grace period and two seconds."""
    server = start("--hold-grace-ms", GRACE_MS)
    bob = connect_page(server)
    bob.evaluate(WATCH, "lobby")
    windowed = Windowed(chromium(0).browser_type, tmp_path / "profile")
    try:
        alice = windowed.context.pages[0]
        alice.goto(f"{site.origin}/connect?{server.url}")
        alice.wait_for_function("() => window.ready")
        alice.evaluate("listen('lobby', {info: 'alice'})")
        bob.wait_for_function("() => told.length === 1")
    finally:
        killed_ms = windowed.kill() * 1000
    bob.wait_for_function("() => told.length === 2")
    (_, code, _), (type, left, at_ms) = bob.evaluate("told")
    assert (type, left) == ("gone", code)
    assert at_ms - killed_ms < GRACE_MS + MORE_MS


def test_a_server_that_says_nothing(start, site, connect_page):
    """A WebSocket on which nothing comes any more is given up, and its events go on over another one."""
    server = start()
    page = connect_page(server)
    page.clock.install()
    traffic = Traffic(page)
    page.evaluate(WATCH, "lobby")
    found = []

    def offer():
        fields = {"info": "i", "offer": "o"}
        found.append(server.call("/lobby/offer", fields, origin=site.origin)[1]["code"])

    offer()
    page.wait_for_function("() => told.length === 1")
    server.process.send_signal(signal.SIGSTOP)
    try:
        page.clock.fast_forward(70_000)  # it is asked whether it is there
        until(lambda: "health" in traffic.methods)
        page.clock.fast_forward(16_000)
        until(lambda: page.clock.fast_forward(1000) or len(traffic.sockets) > 1)
    finally:
        server.process.send_signal(signal.SIGCONT)
    offer()
    until(lambda: page.clock.fast_forward(1000) or len(page.evaluate("told")) == 2)
    assert [told[:2] for told in page.evaluate("told")] == [["session", code] for code in found]


# When it does not open.


def test_refused(server, blocking, site, connect_page, firefox):
    """Where the upgrade is refused the page uses HTTP, and does not try again for each call, but some minutes later."""
    proxy = blocking(server)
    page = connect_page(proxy)
    page.clock.install()
    traffic = Traffic(page)
    page.evaluate(f"() => {{ window.api = {API}; }}")
    assert page.evaluate("Promise.all([api.open(), api.open(), api.version()])")[:2] == [None, None]
    page.evaluate("listen('lobby', {info: 'alice'})")
    codes(server, site)
    firefox.goto(f"{site.origin}/connect?{proxy.url}")
    until(lambda: firefox.evaluate("window.ready"))
    assert firefox.evaluate(f"(async () => await {API}.open() ?? null)()") is None
    assert firefox.evaluate("call('lobby', {info: 'firefox'})") == ["alice", "alice: hello"]
    assert len(traffic.sockets) == 1
    page.clock.fast_forward(310_000)
    page.evaluate("api.health()")
    assert len(traffic.sockets) == 2


def test_goes_on_over_http(start, site, connect_page):
    """If no other one opens, events go on over HTTP where they were, and offers are refreshed over HTTP in time."""
    server = start("--hold-grace-ms", 60_000)
    page = connect_page(server)
    page.evaluate(WATCH, "other")
    page.evaluate("listen('lobby', {info: 'alice'})")
    (first,) = until(lambda: listed(server, site.origin))

    def offer():
        return server.call("/other/offer", {"info": "i", "offer": "o"}, origin=site.origin)[1]["code"]

    found = [offer()]
    page.wait_for_function("() => told.length === 1")
    traffic = Traffic(page)
    page.evaluate(f"async () => {{ const open = await {API}.open(); WebSocket = null; open.close(); }}")
    found.append(offer())
    page.wait_for_function("() => told.length === 2")
    assert [told[:2] for told in page.evaluate("told")] == [["session", code] for code in found]
    assert later(server, site, first)["code"] == first["code"]
    assert any(each.endswith("/other/events") for each in traffic.requests)
    assert page.evaluate("errors") == []


def test_no_answer_to_the_handshake(server, blocking, connect_page):
    """Where a WebSocket neither opens nor fails the page uses HTTP after a few seconds."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        page = connect_page(blocking(server, handshakes=silent.getsockname()[1]))
        page.clock.install()
        page.evaluate(f"() => {{ window.asked = {API}.health(); }}")
        with silent.accept()[0]:
            page.clock.fast_forward(5000)
            assert page.evaluate("asked")["status"] == "ok"


def test_only_http(server, connect_page):
    """A page may do without the WebSocket."""
    page = connect_page(server)
    traffic = Traffic(page)
    page.evaluate("listen('lobby', {info: 'alice', socket: false})")
    assert page.evaluate("call('lobby', {info: 'bob', socket: false})") == ["alice", "alice: hello"]
    assert traffic.sockets == []
