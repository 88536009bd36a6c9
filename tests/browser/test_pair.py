"""`pair` of the browser module connects two and two; `join` finds the peer that lives among those that do not."""

import time

import pytest
from support.browsers import listed, until

pytest_plugins = ["support.browser_fixtures"]

# For a busy machine; less than an attempt that says nothing may take.
BESIDE_MS = 4500
MEET_AT = """
  ([topic, info, at, options]) => {
    const begun = new Promise((resolve) => setTimeout(resolve, at - Date.now()));
    window.met = begun.then(() => meet(topic, {info, ...options}));
    met.catch(() => {});
  }
"""
OFFER = """
  (async () => {
    const connection = new RTCPeerConnection();
    connection.createDataChannel("data");
    return JSON.stringify(await connection.createOffer());
  })()
"""

# Of a peer's own offer, which it takes, the news are here before the answer to that request.
LATE = """
  () => {
    const asking = window.fetch;
    window.fetch = async (url, init) => {
      const response = await asking(url, init);
      if (init?.body?.includes("taken back")) {
        while (!steps.some(([name]) => name === "answered")) await new Promise((resolve) => setTimeout(resolve, 10));
      }
      return response;
    };
  }
"""
# It is taken as late as the test wants.
HELD = """
  () => {
    const asking = window.fetch;
    window.fetch = async (url, init) => {
      if (init?.body?.includes("taken back")) await new Promise((resolve) => (window.release = resolve));
      return asking(url, init);
    };
  }
"""


@pytest.fixture(params=["socket", "http"])
def seen(request, server, blocking):
    """The server as pages reach it, itself or through a proxy that refuses the upgrade to a WebSocket."""
    return blocking(server) if request.param == "http" else server


def meet(pages, topic, **options):
    """Have pages call `pair` at the same instant; each says its number."""
    at_ms = time.time() * 1000 + 50 * len(pages)
    for number, page in enumerate(pages):
        page.evaluate(MEET_AT, [topic, str(number), at_ms, options])


def waits(page):
    """Whether a page is still alone."""
    return page.evaluate("Promise.race([met, null]).then((found) => found === null)")


def dead(server, site, page, topic, number):
    """Put offers of peers that are no more under a topic."""
    for each in range(number):
        fields = {"info": f"dead {each}", "offer": page.evaluate(OFFER)}
        assert server.call(f"/{topic}/offer", fields, origin=site.origin)[0] == 200


def test_two_at_once(server, site, seen, connect_page):
    """Two pages at the same instant are connected each time, and hear what the other one says at once."""
    pages = [connect_page(seen) for _ in range(2)]
    for number in range(10):
        meet(pages, f"topic {number}")
        sides, heard = zip(*[page.evaluate("met") for page in pages], strict=True)
        assert sorted(sides) == ["answerer", "offerer"]
        assert heard == ("1", "0")
        for page in pages:
            page.evaluate("connection.close()")
    until(lambda: server.call("/topics", origin=site.origin)[1]["topics"] == [])


def test_many_at_once(server, site, connect_page):
    """Of nine pages at once one is left, which is connected with the next one; each page has one other page."""
    pages = [connect_page(server) for _ in range(9)]
    meet(pages, "strangers")
    until(lambda: sum(waits(page) for page in pages) == 1)
    (last,) = [number for number, page in enumerate(pages) if waits(page)]
    assert len(listed(server, site.origin, "pair%2Fstrangers")) == 1
    heard = {number: page.evaluate("met")[1] for number, page in enumerate(pages) if number != last}
    assert all(heard[int(other)] == str(number) for number, other in heard.items())
    tenth = connect_page(server)
    assert tenth.evaluate("meet('strangers', {info: 'tenth'})") == ["answerer", str(last)]
    assert pages[last].evaluate("met") == ["offerer", "tenth"]
    assert all(page.evaluate("connection.channel.readyState") == "open" for page in pages)


def test_beside_the_dead(server, site, connect_page):
    """Offers of peers that are no more, before and after one that lives, hold a pair up for a few seconds at most."""
    alice, bob = connect_page(server), connect_page(server)
    dead(server, site, alice, "pair%2Fstrangers", 1)
    meet([alice], "strangers")
    until(lambda: [each["info"] for each in listed(server, site.origin, "pair%2Fstrangers")] in (["0"], []))
    dead(server, site, alice, "pair%2Fstrangers", 1)
    meet([bob], "strangers")
    assert bob.evaluate("met")[1] == "0"
    assert alice.evaluate("met")[1] == "0"


def test_own_offer_is_taken(server, site, blocking, connect_page):
    """A peer that takes its own offer goes on to another one, also if the news of that are faster than the answer."""
    page = connect_page(blocking(server))
    page.evaluate(LATE)
    meet([page], "strangers")
    until(lambda: listed(server, site.origin, "pair%2Fstrangers"))
    dead(server, site, page, "pair%2Fstrangers", 1)
    until(lambda: ["trying", "dead 0"] in page.evaluate("steps"))
    assert waits(page)


def test_answered_while_taken_back(server, site, blocking, connect_page):
    """What the other one says at once is heard also if it comes before the offer could not be taken back."""
    alice, bob = connect_page(blocking(server)), connect_page(server)
    alice.evaluate(HELD)
    meet([alice], "strangers")
    until(lambda: listed(server, site.origin, "pair%2Fstrangers"))
    dead(server, site, alice, "pair%2Fstrangers", 1)
    until(lambda: alice.evaluate("'release' in window"))
    (code,) = [each["code"] for each in listed(server, site.origin, "pair%2Fstrangers") if each["info"] == "dead 0"]
    server.call("/withdraw", {"code": code, "side": "offerer"}, origin=site.origin)
    meet([bob], "strangers")
    until(lambda: bob.evaluate("window.connection?.channel.bufferedAmount === 0"))
    alice.evaluate("release()")
    assert alice.evaluate("met") == ["offerer", "0"]


def test_the_first_server_is_back(start, connect_page):
    """What waits at the second server of its list meets the next one at the first, as soon as that works again."""
    first, second = start(data="one"), start(data="two")
    alice, bob = connect_page(second), connect_page(second)
    urls = [first.url, second.url]
    first.stop()
    meet([alice], "strangers", url=urls, socket=False)
    until(lambda: listed(second, alice.evaluate("origin"), "pair%2Fstrangers"))
    start(data="one", port=first.url.rpartition(":")[2])
    alice.evaluate("dispatchEvent(new Event('online'))")  # it looks at once
    meet([bob], "strangers", url=urls)
    assert [page.evaluate("met")[1] for page in (alice, bob)] == ["0", "0"]


def test_given_up(server, site, connect_page):
    """A page that gives up, or is reloaded, is not listed any more."""
    page = connect_page(server)
    page.evaluate("() => { window.stop = new AbortController(); }")
    page.evaluate("() => { window.met = failure(pair('strangers', {signal: stop.signal})); }")
    until(lambda: listed(server, site.origin, "pair%2Fstrangers"))
    page.evaluate("stop.abort()")
    assert page.evaluate("met")["name"] == "AbortError"
    until(lambda: not listed(server, site.origin, "pair%2Fstrangers"))
    meet([page], "strangers")
    until(lambda: listed(server, site.origin, "pair%2Fstrangers"))
    page.reload()
    until(lambda: not listed(server, site.origin, "pair%2Fstrangers"))


def test_tracks_of_a_connection(server, connect_page, firefox, site):
    """Tracks may be added to a connection when it is open, on either side and between browsers of two kinds."""
    page = connect_page(server)
    firefox.goto(f"{site.origin}/connect?{server.url}")
    until(lambda: firefox.evaluate("window.ready"))
    page.evaluate("listen('lobby', {info: 'alice'})")
    assert firefox.evaluate("call('lobby', {})") == ["alice", "alice: hello"]
    page.evaluate("() => { window.connection = connections[0]; }")
    hear = "connection.peerConnection.ontrack = ({streams}) => { window.heard = shown(streams[0]); }; 0"
    send = "window.sent = picture(%d); connection.peerConnection.addTrack(sent.getTracks()[0], sent); 0"
    for each in (page, firefox):
        each.evaluate(f"(() => {{ {hear} }})()")
    for each, width in ((page, 200), (firefox, 300)):
        each.evaluate(f"(() => {{ {send % width} }})()")
    for each, width in ((page, 300), (firefox, 200)):
        until(lambda each=each: each.evaluate("'heard' in window"))
        assert each.evaluate("heard") == width


def test_joining_beside_the_dead(server, site, connect_page):
    """Among offers of peers that are no more `join` finds the one that lives, soon, and `null` is not its answer."""
    alice, bob = connect_page(server), connect_page(server)
    alice.evaluate("listen('lobby', {info: 'alice'})")
    until(lambda: listed(server, site.origin))
    dead(server, site, bob, "lobby", 2)
    began = time.monotonic()
    last = "choose: (sessions) => sessions.sort((a, b) => (a.info === 'alice') - (b.info === 'alice'))"
    found = bob.evaluate(f"call('lobby', {{wait: false, {last}}})")
    assert found == ["alice", "alice: hello"]
    assert (time.monotonic() - began) * 1000 < 2 * BESIDE_MS
