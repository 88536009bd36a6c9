"""Rooms of the browser module: everybody in one is connected to everybody, and stays so."""

import itertools
import json
import string
import time

import pytest
from support.browsers import launch_in, listed, open_connect, reach, until
from support.members import SECRETS, all_together, enter, enter_together, happened, with_others
from support.waiting import end_all

from tornado_signal_client.names import Identity

# The bounds are for a busy machine; tests/bench measures.
AWAY_S = 10
SIGNATURE = string.ascii_letters + string.digits + "-_"
ROOM = "room~lobby"
DESCRIPTION = {"type": "offer", "sdp": "x"}
# Enter with an id that is made from a number.
ENTER_AS = """
  (() => {
    crypto.getRandomValues = (array) => array.fill(%d);
    enter("lobby");
    delete crypto.getRandomValues;
  })()
"""
# Keep what a page negotiates over data channels until it is released.
HOLD = """
  (() => {
    window.held = [];
    window.heard = 0;
    const {send} = RTCDataChannel.prototype;
    RTCDataChannel.prototype.send = function (data) {
      if (this.label !== "negotiation") return send.call(this, data);
      if (!held.length) this.addEventListener("message", () => (heard += 1));
      held.push(() => send.call(this, data));
    };
    window.release = () => {
      RTCDataChannel.prototype.send = send;
      for (const each of held) each();
    };
  })()
"""


def test_messages_before_leaving_arrive(server, site, alice, bob):
    enter_together({"0": alice, "1": bob})
    alice.evaluate("() => { here.send('x'.repeat(200_000)); here.send('bye'); here.leave(); }")
    until(lambda: happened(bob)[-2:] == [["message", "0", "bye"], ["leave", "0", None]])
    until(lambda: happened(alice)[-1] == ["close", None, None])
    assert [page.evaluate("here.peers.size") for page in (alice, bob)] == [0, 0]
    until(lambda: [each["info"] for each in listed(server, site.origin, ROOM)] == ["1"])
    alice.evaluate("() => { window.stop = new AbortController(); enter('lobby', {info: '0', signal: stop.signal}); }")
    with_others(bob, "0")
    alice.evaluate("stop.abort()")
    with_others(bob)
    until(lambda: happened(alice)[-1] == ["close", None, None])
    until(lambda: [each["info"] for each in listed(server, site.origin, ROOM)] == ["1"])
    alice.evaluate("enter('lobby', {signal: AbortSignal.abort()})")
    assert [each["info"] for each in listed(server, site.origin, ROOM)] == ["1"]


@pytest.fixture
def three_machines(chromium, start, lan, tmp_path):
    """A server, three machines in its network, and a page of a browser on each of them."""
    server = start("--address", lan.address)
    machines = [lan.machine() for _ in range(3)]
    pages = []
    with end_all(launch_in, lambda browser: browser.close()) as launch:
        for number, machine in enumerate(machines):
            browser = launch(chromium(0).browser_type, machine.enter, tmp_path / f"chromium{number}")
            pages.append(open_connect(browser, server, "http://app.example"))
        yield server, machines, pages


@pytest.mark.slow
@pytest.mark.needs("root")
def test_nothing_is_lost_while_networks_change(three_machines):
    _, machines, pages = three_machines
    enter_together(dict(zip("012", pages, strict=True)))
    # Two members move, so that they can find each other only through the server. The third one notices nothing.
    for machine in machines[:2]:
        machine.unplug()
    with machines[2].cut():
        time.sleep(AWAY_S)
    for machine in machines[:2]:
        machine.plug(moved=100)
    for page in pages:
        page.evaluate("here.send('here again')")
    until(lambda: all(len(happened(page, "message")) == 2 for page in pages))
    assert [happened(page, "leave", "error") for page in pages] == [[]] * 3


def names(page):
    """The names of a page's peers, by their ids."""
    return page.evaluate("Object.fromEntries(Array.from(here.peers.values(), ({id, name}) => [id, name]))")


def test_name_survives_a_reload(server, connect_page):
    ada, bob = connect_page(server), connect_page(server)
    enter(ada, "a", me="Ada")
    until(lambda: ada.evaluate("here.id"))
    enter(bob, "b", me="Bob", secret="of Bob, and of nothing else")
    with_others(ada, "b")
    with_others(bob, "a")
    before = names(bob)
    assert [*before.values()] == ["Ada"]
    assert [*names(ada).values()] == ["Bob"]
    ada.reload()
    until(lambda: happened(bob)[-1] == ["leave", "a", None])
    ada.wait_for_function("() => window.ready")
    enter(ada, "a", me="Ada")
    with_others(ada, "b")
    until(lambda: len(happened(bob, "join")) == 2)
    until(lambda: names(bob) == before)


def test_copied_tab_does_not_replace_the_first_one(server, connect_page):
    first = connect_page(server)
    enter(first, "1", me="Ada")
    until(lambda: first.evaluate("here.listed"))
    copied = first.context.new_page()
    copied.goto(first.url)
    copied.wait_for_function("() => window.ready")
    secret = first.evaluate("({...sessionStorage})")
    copied.evaluate("(secret) => { Object.assign(sessionStorage, secret); }", secret)
    enter(copied, "2", me="Ada")
    until(lambda: happened(copied) == [["error", "Another member has the name Ada", None], ["close", None, None]])
    assert copied.evaluate("here.id") != first.evaluate("here.id")
    assert happened(first) == []
    copied.close()


def test_firefox_has_the_same_id_with_a_secret(server, connect_page, connect_firefox):
    """In spite of WebCrypto without the public key of a secret."""
    chromium, firefox = connect_page(server), connect_firefox(server)
    enter(chromium, "c", me="Bob", secret="of Bob, and of nothing else")
    for number in range(2):  # of either sign
        secret = f"of Ada, and of nothing else, {number}"
        enter(firefox, "f", me="Ada", secret=secret)
        with_others(chromium, "f")
        assert names(chromium) == {Identity("", "", None, secret).id: "Ada"}
        with_others(firefox, "c")
        assert [*names(firefox).values()] == ["Bob"]
        firefox.evaluate("here.leave()")
        with_others(chromium)


# Make a page like one over plain HTTP.
INSECURE = "Object.defineProperty(Crypto.prototype, 'subtle', {value: undefined})"


def forge(server, site):
    """Send mail under the ids of all members: without a key, and with another key."""
    members = {each["code"]: json.loads(each["offer"].lstrip(SIGNATURE)) for each in listed(server, site.origin, ROOM)}
    mallory = Identity(site.origin, ROOM, None, None)
    for victim in members.values():
        mail = {"from": victim["id"], "info": "m", "code": "c", "connection": "c", "of": 1, "description": DESCRIPTION}
        for code, member in members.items():
            texts = [json.dumps(mail), mallory.seal(mail, member["id"], code)]
            fields = {"code": code, "side": "answerer", "candidates": texts}
            assert server.call("/answer", fields, origin=site.origin)[0] == 200


def test_pages_with_and_without_signatures_connect_and_forged_messages_end_nothing(server, site, connect_page):
    members = {info: connect_page(server) for info in "012"}
    for page in members.values():
        page.evaluate(INSECURE)
    enter_together(members)
    for page in members.values():
        assert page.evaluate("here.id[0]") != "$"
    for _ in range(3):
        forge(server, site)
    for info, options in (("3", {}), ("4", {"me": "Ada"})):  # their mail comes after all that
        members[info] = connect_page(server)
        enter(members[info], info, **options)
    all_together(members)
    assert {*names(members["0"]).values()} == {None}  # it cannot verify the name
    assert "Ada" in names(members["3"]).values()
    for page in members.values():
        assert happened(page, "leave", "error", "close") == []


def test_streams_are_shown_to_all_without_the_server(start, connect_page):
    server = start()
    pages = [connect_page(server) for _ in range(3)]
    enter_together({"0": pages[0], "1": pages[1]})
    for number, page in enumerate(pages[:2]):
        page.evaluate(f"() => {{ window.sent = picture({200 + 100 * number}); here.addStream(sent); }}")
    shown = "(number) => shown([...here.peers.values()][number].streams[0])"
    for number, page in enumerate(pages[:2]):
        until(lambda page=page: page.evaluate("[...here.peers.values()][0].streams.length") == 1)
        assert page.evaluate(shown, 0) == 300 - 100 * number
        assert len(happened(page, "stream")) == 1
    enter(pages[2], "2")
    all_together(dict(zip("012", pages, strict=True)))
    until(lambda: len(happened(pages[2], "stream")) == 2)
    assert sorted(pages[2].evaluate(shown, number) for number in (0, 1)) == [200, 300]
    server.stop()
    pages[0].evaluate("here.removeStream(sent)")
    for page in pages[1:]:
        until(lambda page=page: [about for _, about, _ in happened(page, "streamend")] == ["0"])
    pages[2].evaluate("here.addStream(picture(400))")
    for page in pages[:2]:
        until(lambda page=page: "2" in [about for _, about, _ in happened(page, "stream")])
    pages[0].evaluate("here.addStream(sent)")
    for page in pages[1:]:
        until(lambda page=page: [about for _, about, _ in happened(page, "stream")].count("0") == 2)
    assert [happened(page, "leave") for page in pages] == [[]] * 3


def test_repeated_streams_do_not_enlarge_the_description(server, connect_page, connect_firefox):
    pages = [connect_page(server), connect_firefox(server)]
    for page, info in zip(pages, "ab", strict=True):
        enter(page, info)
        page.evaluate("(() => { window.sent = picture(200); window.peer = () => [...here.peers.values()][0]; })()")
    reach(pages, "here.peers.size", 1)
    sizes = []
    for _ in range(5):
        for page in pages:
            page.evaluate("here.addStream(sent)")
        for page in pages:
            until(lambda page=page: page.evaluate("peer().streams.length") == 1)
            assert page.evaluate("shown(peer().streams[0])") == 200
        for page in pages:
            page.evaluate("here.removeStream(sent)")
        reach(pages, "peer().streams.length", 0)
        sizes.append(pages[0].evaluate("peer().peerConnection.getTransceivers().length"))
    assert max(sizes) <= 2
    assert [happened(page, "leave", "error") for page in pages] == [[], []]


@pytest.mark.parametrize(
    "numbers", [(2_000_000_000, 1_000_000_000), (1_000_000_000, 2_000_000_000)], ids=["chromium-leads", "firefox-leads"]
)
def test_streams_whose_offers_cross_are_shown(numbers, server, connect_page, connect_firefox):
    pages = [connect_page(server), connect_firefox(server)]
    for page, number in zip(pages, numbers, strict=True):
        page.evaluate(ENTER_AS % number)
    reach(pages, "here.peers.size", 1)
    pages[0].evaluate(HOLD)
    pages[0].evaluate("here.addStream(picture(300))")
    until(lambda: pages[0].evaluate("held.length"))
    pages[1].evaluate("here.addStream(picture(200))")
    until(lambda: pages[0].evaluate("heard"))
    pages[0].evaluate("release()")
    for page, width in zip(pages, (200, 300), strict=True):
        until(lambda page=page: page.evaluate("[...here.peers.values()][0]?.streams.length") == 1)
        assert page.evaluate("shown([...here.peers.values()][0].streams[0])") == width
        assert happened(page, "leave", "error") == []


@pytest.mark.slow
@pytest.mark.needs("root")
def test_member_returns_to_its_place_after_an_outage(three_machines):
    server, machines, pages = three_machines
    for number, page in enumerate(pages):
        enter(page, str(number), "game", max=2)
        until(lambda number=number: len(listed(server, "http://app.example", "room~game")) == number + 1)
    with_others(pages[0], "1")
    with_others(pages[1], "0")
    until(lambda: pages[2].evaluate("here.full"))
    with machines[0].cut():
        until(lambda: pages[2].evaluate("others()") == ["1"], 180)
    with_others(pages[0], "1")
    with_others(pages[1], "0")
    until(lambda: pages[2].evaluate("here.full"))
    for page in pages:
        changes = [1 if name == "join" else -1 for name, *_ in happened(page, "join", "leave")]
        assert max(itertools.accumulate(changes)) == 1  # never more peers than that


def test_members_beyond_the_connection_limit_join_later(server, connect_page):
    alice, bob, carol = (connect_page(server) for _ in range(3))
    leads, follows = SECRETS
    enter(alice, "alice", secret=leads)
    enter(bob, "bob")
    with_others(alice, "bob")
    # As many as Chromium can create. Closed connections count until it frees them.
    alice.evaluate("() => { try { for (;;) new RTCPeerConnection().close(); } catch {} }")
    enter(carol, "carol", secret=follows)
    all_together({"alice": alice, "bob": bob, "carol": carol})
    (error, *_) = happened(alice, "error", "close", "leave")
    assert "Cannot create so many PeerConnections" in error[1]
    assert {name for name, *_ in happened(alice, "error", "close", "leave")} == {"error"}
