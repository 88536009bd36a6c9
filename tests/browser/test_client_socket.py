"""The WebSocket of the browser module: what goes over it, and what happens when it breaks or does not open."""

import signal

import pytest
from support.browsers import Traffic, listed, until
from support.scraping import scrape

API = "new SignalClient(location.search.slice(1))"
OPEN = f"(async () => (await {API}.open())?.readyState ?? null)()"
# The events of a topic: the type, the session and the reason.
WATCH = """
  (topic) => {
    window.received = [];
    window.stop = new AbortController();
    const {signal} = stop;
    (async () => {
      for await (const {type, data} of new SignalClient(location.search.slice(1)).events(topic, {signal})) {
        received.push([type, data.code, data.reason]);
      }
    })().catch(({name}) => received.push([name]));
  }
"""


def held(server):
    return scrape(server.admin_url).one("held_offers")


def codes(server, site, topic="lobby"):
    """Wait for sessions of a topic. Return their codes."""
    return [each["code"] for each in until(lambda: listed(server, site.origin, topic))]


def later(server, site, first):
    """Wait until the only offer has been replaced or refreshed."""
    return until(
        lambda: (found := listed(server, site.origin)) and found[0]["expiresAt"] > first["expiresAt"] and found
    )[0]


def test_one_websocket_carries_all_requests_of_a_page(server, site, alice, bob):
    traffic = Traffic(alice)
    assert alice.evaluate(OPEN) == 1
    alice.evaluate(WATCH, "lobby")
    alice.evaluate("listen('lobby', {info: 'alice'})")
    assert bob.evaluate("call('lobby', {info: 'bob'})") == ["alice", "alice: hello"]
    alice.wait_for_function("() => received.length >= 3")
    alice.evaluate("publication.close()")
    until(lambda: not listed(server, site.origin))
    assert [type for type, *_ in alice.evaluate("received")][:2] == ["session", "gone"]
    until(lambda: "withdraw" in traffic.now().methods)
    assert {"subscribe", "iceServers", "offer", "poll"} < set(traffic.now().methods)
    assert "refresh" not in traffic.now().methods
    assert len(traffic.now().sockets) == 1
    assert not [each for each in traffic.now().requests if "/client/" not in each]  # but for parts of the module


def test_offer_closed_while_the_server_is_away_is_withdrawn_later(start, reached, site, connect_page):
    server = start()
    page = connect_page(reached(server))
    page.evaluate("listen('lobby', {info: 'alice'})")
    code = codes(server, site)[0]
    page.wait_for_function("code => steps.some(([, detail]) => detail === code)", arg=code)
    server.stop(signal.SIGKILL)
    page.evaluate("publication.close()")
    server = start(port=server.url.rpartition(":")[2])
    until(lambda: listed(server, site.origin) == [])


def test_six_publications_leave_connections_for_other_requests(server, site, alice):
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


def test_offers_are_held_after_restarts(start, site, connect_page, connect_firefox):
    settings = ["--admin-port", 0, "--hold-grace-ms", 300_000]  # on a busy machine a browser takes long to come back
    server = start(*settings)
    alice, bob, firefox = connect_page(server), connect_page(server), connect_firefox(server)
    alice.evaluate("listen('lobby', {info: 'alice'})")
    firefox.evaluate("listen('other', {info: 'firefox'})")
    first = codes(server, site), codes(server, site, "other")
    assert until(lambda: held(server) == 2)
    assert firefox.evaluate(OPEN) == 1
    for number in (signal.SIGKILL, signal.SIGTERM):
        server.stop(number)
        server = start(*settings, port=server.url.rpartition(":")[2])
        until(lambda server=server: held(server) == 2)
        assert (codes(server, site), codes(server, site, "other")) == first
    assert bob.evaluate("call('lobby', {info: 'bob'})") == ["alice", "alice: hello"]
    assert bob.evaluate("call('other', {info: 'bob'})") == ["firefox", "firefox: hello"]
    assert firefox.evaluate("errors") == alice.evaluate("errors") == []


def test_new_websocket_takes_over_an_offer_or_publishes_another(start, site, connect_page):
    server = start("--admin-port", 0, "--hold-grace-ms", 60_000)
    strict = start("--admin-port", 0, "--hold-grace-ms", 0, data="strict")
    page = connect_page(server)
    traffic = Traffic(page)
    for each in (server, strict):
        page.evaluate("url => listen('lobby', {info: 'alice', url})", each.url)
        (first,) = until(lambda each=each: listed(each, site.origin))
        page.wait_for_function("code => steps.some(([, detail]) => detail === code)", arg=first["code"])
        page.evaluate("async url => (await new SignalClient(url).open()).close()", each.url)
        second = later(each, site, first)
        assert (second["code"] == first["code"]) == (each is server)
        until(lambda each=each: held(each) == 1)
    assert traffic.now().methods.count("offer") == 3
    assert page.evaluate("errors") == []


def test_offer_of_a_killed_browser_ends_after_the_grace_period(start, connect_page, windowed):
    server = start("--hold-grace-ms", 1000)
    bob = connect_page(server)
    bob.evaluate(WATCH, "lobby")
    alice, browser = windowed(server)
    alice.evaluate("listen('lobby', {info: 'alice'})")
    bob.wait_for_function("() => received.length === 1")
    browser.kill()
    bob.wait_for_function("() => received.length === 2")
    (_, code, _), gone = bob.evaluate("received")
    assert gone == ["gone", code, "withdrawn"]  # its time ends later


def test_events_and_offers_continue_over_http(start, site, connect_page):
    server = start("--hold-grace-ms", 60_000)
    page = connect_page(server)
    page.evaluate(WATCH, "other")
    page.evaluate("listen('lobby', {info: 'alice'})")
    (first,) = until(lambda: listed(server, site.origin))
    found = [server.offer("other", origin=site.origin)]
    page.wait_for_function("() => received.length === 1")
    traffic = Traffic(page)
    page.evaluate(f"async () => {{ const open = await {API}.open(); WebSocket = null; open.close(); }}")
    found.append(server.offer("other", origin=site.origin))
    page.wait_for_function("() => received.length === 2")
    assert [each[:2] for each in page.evaluate("received")] == [["session", code] for code in found]
    assert later(server, site, first)["code"] == first["code"]
    assert any("/other/sessions?" in each for each in traffic.now().requests)
    assert page.evaluate("errors") == []


def test_http_is_used_at_once_if_a_policy_forbids_websockets(server, site, profiles):
    policy = "<meta http-equiv=Content-Security-Policy content='connect-src http:'>"
    site.pages["/policy"] = policy + site.pages["/connect"]
    page = profiles.open(f"{site.origin}/policy?{server.url}")
    page.wait_for_function("() => window.ready")
    page.clock.install()  # no time passes
    assert page.evaluate(f"{API}.health()")["status"] == "ok"


@pytest.mark.parametrize("locks", [True, False])
def test_seven_tabs_join_a_room_over_the_six_connections_of_a_browser(server, site, blocking, profiles, locks):
    context = profiles.context()
    if not locks:  # as over plain HTTP
        context.add_init_script("Object.defineProperty(Navigator.prototype, 'locks', {value: undefined});")
    tabs = [context.new_page() for _ in range(7)]
    address = f"{site.origin}/connect?{blocking(server).url}"
    for tab in tabs:
        tab.goto(address)
        tab.wait_for_function("() => window.ready")
        tab.evaluate("() => { window.lobby = room('lobby', {url: location.search.slice(1)}); }")
    for tab in tabs:
        tab.wait_for_function("() => window.lobby.peers.size === 6")
