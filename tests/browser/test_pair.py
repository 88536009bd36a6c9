"""`pair` of the browser module connects pages in pairs. `join` finds the live peer among dead ones."""

from support.browsers import listed, until

STRANGERS = "pair~strangers"
OFFER = """
  (async () => {
    const connection = new RTCPeerConnection();
    connection.createDataChannel("data");
    return JSON.stringify(await connection.createOffer());
  })()
"""
# The request by which a peer takes its own offer, with something before or after it.
TAKING = """
  () => {
    const asking = window.fetch;
    window.fetch = async (url, init) => {
      const request = new Request(url, init);
      if (!(await request.clone().text()).includes("taken back")) return asking(request);
      %s
    };
  }
"""
# The news of that offer come before the answer to the request.
LATE = (
    TAKING
    % """
      const response = await asking(request);
      while (!steps.some(([name]) => name === "answered")) await new Promise((resolve) => setTimeout(resolve, 10));
      return response;
"""
)
# It is sent as late as the test wants.
HELD = (
    TAKING
    % """
      await new Promise((resolve) => (window.release = resolve));
      return asking(request);
"""
)


def meet(page, **options):
    """Make a page call `pair`. It sends its info, 0."""
    begin = "(options) => { window.met = meet('strangers', {info: '0', ...options}); met.catch(() => {}); }"
    page.evaluate(begin, options)


def dead(server, site, page):
    """Put the offer of a peer that is no more under the topic. Return its code."""
    return server.offer(STRANGERS, "dead 0", page.evaluate(OFFER), origin=site.origin)


def test_dead_offers_delay_no_pair(server, site, alice, bob):
    dead(server, site, alice)
    meet(alice)
    until(lambda: [each["info"] for each in listed(server, site.origin, STRANGERS)] in (["0"], []))
    dead(server, site, alice)
    meet(bob)
    assert [page.evaluate("met")[1] for page in (alice, bob)] == ["0", "0"]


def test_peer_that_took_back_its_offer_continues(server, site, blocking, connect_page):
    page = connect_page(blocking(server))
    page.evaluate(LATE)
    meet(page)
    until(lambda: listed(server, site.origin, STRANGERS))
    dead(server, site, page)
    until(lambda: ["trying", "dead 0"] in page.evaluate("steps"))
    assert page.evaluate("Promise.race([met, null]).then((found) => found === null)")  # it is still alone


def test_answer_before_taking_back_the_offer_is_used(server, site, blocking, connect_page):
    alice, bob = connect_page(blocking(server)), connect_page(server)
    alice.evaluate(HELD)
    meet(alice)
    until(lambda: listed(server, site.origin, STRANGERS))
    code = dead(server, site, alice)
    until(lambda: alice.evaluate("'release' in window"))
    server.call("/withdraw", {"code": code, "side": "offerer"}, origin=site.origin)
    meet(bob)
    until(lambda: bob.evaluate("window.connection?.channel.bufferedAmount === 0"))
    alice.evaluate("release()")
    assert alice.evaluate("met") == ["offerer", "0"]


def test_pairs_meet_at_the_first_server_again(start, connect_page):
    first, second = start(data="one"), start(data="two")
    alice, bob = connect_page(second), connect_page(second)
    urls = [first.url, second.url]
    first.stop()
    meet(alice, url=urls, socket=False)
    until(lambda: listed(second, alice.evaluate("origin"), STRANGERS))
    start(data="one", port=first.url.rpartition(":")[2])
    alice.evaluate("dispatchEvent(new Event('online'))")  # it looks at once
    meet(bob, url=urls)
    assert [page.evaluate("met")[1] for page in (alice, bob)] == ["0", "0"]


def test_page_that_reloads_is_not_listed(server, site, page):
    meet(page)
    until(lambda: listed(server, site.origin, STRANGERS))
    page.reload()
    until(lambda: not listed(server, site.origin, STRANGERS))


def test_tracks_are_added_to_an_open_connection(server, connect_page, connect_firefox):
    page, firefox = connect_page(server), connect_firefox(server)
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
