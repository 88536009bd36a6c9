"""Rooms of the browser module: everybody in one is connected to everybody, and stays so."""

import contextlib
import json
import signal
import string
import threading
import time

import pytest
from support.browsers import launch_in, listed, open_connect, until
from support.networks import Lan, own_network
from support.searches import some

from tornado_signal_client.names import Identity

pytest_plugins = ["support.browser_fixtures"]

# The bounds are for a busy machine; tests/bench measures.
AWAY_S = 10
SIGNATURE = string.ascii_letters + string.digits + "-_"
ROOM = "room~lobby"
DESCRIPTION = {"type": "offer", "sdp": "x"}
VALID = json.dumps({"from": "!", "info": "m", "code": "c"})  # mail of a page that cannot sign
# Enter at a time by the clock. `entered` resolves when `count` others are there.
ENTER_AT = """
  ([topic, info, number, options, at]) => {
    window.entered = new Promise((resolve) => setTimeout(resolve, at - Date.now())).then(async () => {
      enter(topic, {info, ...options});
      await new Promise((resolve) => here.addEventListener("join", () => here.peers.size === number && resolve()));
    });
  }
"""
# Secrets, sorted by the ids that are made from them: of two members the first one leads.
SECRETS = sorted(("of one member", "of another one"), key=lambda secret: Identity("", "", None, secret).id)
# Connections which are counted: how many there are, and the most there were.
COUNTED = """
  (() => {
    window.there = window.most = window.made = 0;
    window.Counted = class extends RTCPeerConnection {
      constructor(...options) {
        super(...options);
        most = Math.max(most, there += 1);
        made += 1;
      }
      close() {
        if (this.signalingState !== "closed") there -= 1;
        super.close();
      }
    };
  })()
"""
# Let one message of the negotiation over data channels fail.
FAIL_ONCE = """
  (() => {
    const {send} = RTCDataChannel.prototype;
    RTCDataChannel.prototype.send = function (data) {
      if (this.label !== "negotiation") return send.call(this, data);
      RTCDataChannel.prototype.send = send;
      throw new DOMException("full", "OperationError");
    };
  })()
"""
# Let the first connection wait for the answer forever.
IGNORE_FIRST_ANSWER = """
  (() => {
    let first;
    const {setRemoteDescription} = RTCPeerConnection.prototype;
    RTCPeerConnection.prototype.setRemoteDescription = function (description) {
      first ??= this;
      return this === first ? new Promise(() => {}) : setRemoteDescription.call(this, description);
    };
  })()
"""
# Count the entries of maps and sets that the page iterates over.
COUNT_ENTRIES = """
  (() => {
    window.entries = 0;
    for (const collection of [new Map(), new Set()]) {
      const iterator = Object.getPrototypeOf(collection.values());
      const {next} = iterator;
      iterator.next = function () {
        entries += 1;
        return next.call(this);
      };
    }
  })()
"""
# List beacons of members that are not there.
FAKE = """
  async (ids) => {
    const server = new client.SignalClient();
    const offers = ids.map((id) => JSON.stringify({v: 2, id, at: 1, now: Date.now()}));
    await Promise.all(offers.map((offer) => server.offer("room~lobby", {info: "mallory", offer})));
  }
"""
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


def now_ms():
    return int(time.time() * 1000)


def together(pages, topic, **options):
    """Make pages enter a room simultaneously, and wait until each has all others."""
    at_ms = time.time() * 1000 + 50 * len(pages)
    for number, page in enumerate(pages):
        page.evaluate(ENTER_AT, [topic, str(number), len(pages) - 1, options, at_ms])
    for page in pages:
        page.evaluate("entered")


def happened(page, *names):
    """The events of a page's room: name, info of the peer or message of the error, and data."""
    return [[name, about, data] for name, about, data, _ in page.evaluate("seen") if not names or name in names]


def enter(page, info, topic="lobby", **options):
    """Have a page enter a room."""
    page.evaluate(f"enter({json.dumps(topic)}, {json.dumps({'info': info, **options})})")


def with_others(page, *infos, bound_s=60):
    until(lambda: page.evaluate("others()") == sorted(infos), bound_s)


def hears(page, sender, text):
    until(lambda: ["message", sender, text] in happened(page, "message"))


def beacons(server, site, topic="lobby"):
    """The beacons in a room: info by the id of the member."""
    found = listed(server, site.origin, f"room~{topic}")
    return {json.loads(each["offer"].lstrip(SIGNATURE))["id"]: each["info"] for each in found}


def test_two_simultaneous_members_connect_exactly_once(server, reached, site, connect_page):
    pages = [connect_page(reached(server)) for _ in range(2)]
    for number in range(10):
        together(pages, f"room {number}")
        topics = server.call("/topics", origin=site.origin)[1]["topics"]
        assert {"topic": f"room~room {number}", "count": 2} in topics
        assert [happened(page) for page in pages] == [[["join", "1", None]], [["join", "0", None]]]
        for page in pages:
            page.evaluate("here.leave()")
    until(lambda: server.call("/topics", origin=site.origin)[1]["topics"] == [])


def test_ten_simultaneous_members_send_to_all_or_to_one(server, connect_page):
    pages = [connect_page(server) for _ in range(10)]
    for number in range(2):
        together(pages, f"room {number}")
        for page in pages:
            page.evaluate("here.send('to all')")
            page.evaluate("here.send('to the last', [...here.peers.keys()].at(-1))")
        until(lambda: sum(len(happened(page, "message")) for page in pages) == 10 * 9 + 10)
        for place, page in enumerate(pages):
            others = [str(other) for other in range(10) if other != place]
            assert sorted(about for _, about, _ in happened(page, "join")) == others
            assert sorted(about for _, about, data in happened(page, "message") if data == "to all") == others
            assert happened(page, "leave", "error") == []
        for page in pages:
            page.evaluate("() => { here.leave(); }")


def test_firefox_and_chromium_in_one_room(server, reached, connect_page, connect_firefox):
    seen = reached(server)
    pages = [connect_page(seen), connect_page(seen), connect_firefox(seen)]
    for page, info in zip(pages, "abf", strict=True):
        enter(page, info)
    for page, info in zip(pages, "abf", strict=True):
        with_others(page, *({*"abf"} - {info}))
        page.evaluate("here.send(new Uint8Array(10_000).fill(7))")
        page.evaluate("here.send('text')")
    sizes = "seen.filter(([name]) => name === 'message').map(([, info, data]) => [info, data.byteLength ?? data])"
    for page, info in zip(pages, "abf", strict=True):
        wanted = sorted([other, what] for other in {*"abf"} - {info} for what in ("10000", "text"))
        until(lambda page=page, wanted=wanted: sorted([a, str(b)] for a, b in page.evaluate(sizes)) == wanted)


def test_rooms_and_offers_of_one_topic_are_separate(server, connect_page):
    alice, bob = connect_page(server), connect_page(server)
    enter(alice, "alice")
    until(lambda: server.call("/topics", origin=alice.evaluate("origin"))[1]["topics"])
    assert bob.evaluate("join('lobby', {wait: false})") is None
    alice.evaluate("listen('lobby', {info: 'publisher'})")
    assert bob.evaluate("call('lobby', {})") == ["publisher", "publisher: hello"]
    enter(bob, "bob")
    with_others(alice, "bob")
    assert alice.evaluate("connections.length") == 1


def test_messages_before_leaving_arrive(server, reached, site, connect_page):
    seen = reached(server)
    alice, bob = connect_page(seen), connect_page(seen)
    together([alice, bob], "lobby")
    alice.evaluate("() => { here.send('x'.repeat(200_000)); here.send('bye'); here.leave(); }")
    until(lambda: happened(bob)[-2:] == [["message", "0", "bye"], ["leave", "0", None]])
    until(lambda: happened(alice)[-1] == ["close", None, None])
    assert [page.evaluate("here.peers.size") for page in (alice, bob)] == [0, 0]
    until(lambda: [*beacons(server, site).values()] == ["1"])
    alice.evaluate("() => { window.stop = new AbortController(); enter('lobby', {info: '0', signal: stop.signal}); }")
    with_others(bob, "0")
    alice.evaluate("stop.abort()")
    with_others(bob)
    until(lambda: happened(alice)[-1] == ["close", None, None])
    until(lambda: [*beacons(server, site).values()] == ["1"])
    alice.evaluate("enter('lobby', {signal: AbortSignal.abort()})")
    assert [*beacons(server, site).values()] == ["1"]


def test_listed_dead_member_delays_nobody(server, site, connect_page, windowed):
    bob, carol = connect_page(server), connect_page(server)
    alice, browser = windowed(server)
    together([alice, bob], "lobby")
    browser.kill()
    assert sorted(beacons(server, site).values()) == ["0", "1"]
    carol.clock.install()
    carol.clock.pause_at(time.time() + 1)  # no attempt ends for lack of a response
    enter(carol, "carol")
    with_others(bob, "carol")
    with_others(carol, "1")


@pytest.mark.parametrize(
    ("number", "data", "over"), [(signal.SIGKILL, "same", "http"), (signal.SIGTERM, "another", "socket")]
)
def test_members_do_not_notice_a_restart(number, data, start, reached, connect_page):
    server = start(data="same")
    seen = reached(server)
    alice, bob, carol = (connect_page(seen) for _ in range(3))
    together([alice, bob], "lobby")
    server.stop(number)
    alice.evaluate("here.send('is anybody there?')")
    hears(bob, "0", "is anybody there?")
    start(data=data, port=server.url.rpartition(":")[2])
    enter(carol, "carol")
    with_others(carol, "0", "1")
    with_others(alice, "1", "carol")
    assert happened(alice, "leave") == happened(bob, "leave") == []


def test_members_fail_over_to_the_next_server_and_return(start, connect_page):
    first, second = start(data="one"), start(data="two")
    alice, bob, carol, dave = (connect_page(second) for _ in range(4))
    urls = ["http://127.0.0.1:9", first.url, second.url]
    together([alice, bob], "lobby", url=urls)
    first.stop()
    enter(carol, "carol", url=urls)
    with_others(carol, "0", "1")
    start(data="one", port=first.url.rpartition(":")[2])
    enter(dave, "dave", url=urls)
    for page in (alice, bob, carol):
        page.evaluate("dispatchEvent(new Event('online'))")  # it looks at once
    with_others(dave, "0", "1", "carol")
    assert happened(alice, "leave", "close") == happened(bob, "leave", "close") == []


@contextlib.contextmanager
def three_machines(chromium, start, tmp_path):
    """A server, three machines in its network, and a page of a browser on each of them."""
    with own_network(), contextlib.ExitStack() as stack:
        lan = Lan()
        stack.callback(lan.close)
        server = start("--address", lan.address)
        machines = [lan.machine() for _ in range(3)]
        pages = []
        for number, machine in enumerate(machines):
            browser = launch_in(chromium(0).browser_type, machine.enter, tmp_path / f"chromium{number}")
            stack.callback(browser.close)
            pages.append(open_connect(browser, server, "http://app.example"))
        yield server, machines, pages


@pytest.mark.slow
@pytest.mark.needs("root")
def test_nothing_is_lost_while_networks_change(chromium, start, tmp_path):
    with three_machines(chromium, start, tmp_path) as (_, machines, pages):
        together(pages, "lobby")
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


def test_malformed_messages_of_strangers_change_nothing(server, site, publish, connect_page):
    alice, bob = connect_page(server), connect_page(server)
    enter(alice, "alice")
    until(lambda: beacons(server, site))
    (beacon,) = listed(server, site.origin, ROOM)
    made = {"v": 2, "id": "nobody", "now": now_ms()}
    beaconed = [{"id": 7}, {"id": "nobody"}, made | {"at": {"toString": 0, "valueOf": 0}}]
    deep = json.dumps(made)[:-1] + f', "at": {"[" * 20_000}{"]" * 20_000}}}'
    for offer in ("no JSON", "null", "{}", deep, *map(json.dumps, beaconed)):
        publish(server, ROOM, info="mallory", offer=offer)
    mail = {"from": "!", "number": 1, "connection": "c", "of": 1, "description": DESCRIPTION}
    texts = ["no JSON", "null", *map(json.dumps, ({"from": 7}, {"from": "!"}, mail))]
    answerer = {"code": beacon["code"], "side": "answerer"}
    for fields in (*({"candidate": text} for text in texts), {"answer": "a"}):
        assert server.call("/answer", answerer | fields, origin=site.origin)[0] == 200
    enter(bob, "bob")
    with_others(alice, "bob")
    with_others(bob, "alice")
    forged = json.dumps({"id": alice.evaluate("here.id"), "v": 2, "at": now_ms() + 60_000, "now": now_ms()})
    publish(server, ROOM, info="alice", offer=forged)
    carol = connect_page(server)
    enter(carol, "carol")
    with_others(bob, "alice", "carol")
    assert happened(alice, "error", "close") == happened(bob, "error", "close") == []


def test_one_failed_attempt_is_no_error(server, connect_page):
    alice, bob = connect_page(server), connect_page(server)
    alice.evaluate(IGNORE_FIRST_ANSWER)
    for page, info, secret in zip((alice, bob), ("alice", "bob"), SECRETS, strict=True):
        enter(page, info, secret=secret)
    with_others(alice, "bob")
    with_others(bob, "alice")
    assert happened(alice, "error") == happened(bob, "error") == []


def names(page):
    """The names of a page's peers, by their ids."""
    return page.evaluate("Object.fromEntries(Array.from(here.peers.values(), ({id, name}) => [id, name]))")


def test_name_survives_a_reload_and_cannot_be_taken(server, reached, connect_page):
    seen = reached(server)
    ada, bob, eve = (connect_page(seen) for _ in range(3))
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
    enter(eve, "e", me="Ada")
    until(lambda: happened(eve) == [["error", "Another member has the name Ada", None], ["close", None, None]])
    enter(eve, "e")
    with_others(eve, "a", "b")
    assert sorted(names(eve).values()) == ["Ada", "Bob"]
    with_others(ada, "b", "e")
    enter(eve, "e", me="Robert", secret="of Bob, and of nothing else")
    until(lambda: happened(bob)[-1] == ["close", None, None])
    assert happened(bob, "error") == [["error", "Another member has the same secret", None]]


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


@pytest.mark.parametrize("ahead_ms", [0, 60_000, -60_000])
def test_newer_page_replaces_the_older_one_with_the_same_secret(ahead_ms, server, connect_page):
    older, newer = connect_page(server), connect_page(server)
    older.evaluate(f"(() => {{ const {{now}} = Date; Date.now = () => now() + {ahead_ms}; }})()")
    for page, info in ((older, "older"), (newer, "newer")):
        enter(page, info, secret="of both pages")
        until(lambda page=page: page.evaluate("here.listed") or happened(page, "close"))
    until(lambda: any(happened(page, "close") for page in (older, newer)))
    replaced = [["error", "Another member has the same secret", None], ["close", None, None]]
    assert [happened(page, "error", "close") for page in (older, newer)] == [replaced, []]


def test_server_decides_which_page_is_newer(server, site, publish, connect_page):
    pages = older, newer, carol = [connect_page(server) for _ in range(3)]
    secret = "of both pages"
    enter(older, "older", secret=secret)
    (first,) = until(lambda: listed(server, site.origin, ROOM))
    enter(newer, "newer", secret=secret)
    until(lambda: happened(older, "close"))
    until(lambda: [*beacons(server, site).values()] == ["newer"])
    identity = Identity(site.origin, ROOM, None, secret)
    said = {"v": 2, "id": identity.id, "at": now_ms() + 60_000, "now": now_ms()}
    # A copy of the older page's beacon, and another beacon of that page, which was offline for a while.
    publish(server, ROOM, info="copy", offer=first["offer"])
    publish(server, ROOM, info="older", offer=identity.seal({**said, "since": first["createdAt"]}))
    enter(carol, "carol")
    with_others(newer, "carol")
    with_others(carol, "newer")
    assert [happened(page, "error", "close") for page in pages[1:]] == [[], []]
    (own,) = [each["code"] for each in listed(server, site.origin, ROOM) if each["info"] == "newer"]
    code = publish(server, ROOM, info="newest", offer=identity.seal({**said, "since": now_ms() + 30_000}))
    poll = {"code": code, "side": "offerer"}
    until(lambda: server.call("/poll", poll, origin=site.origin)[1]["answerCandidates"])  # a request for a sign of life
    assert happened(newer, "error", "close") == []
    life = identity.seal({"from": identity.id, "info": "newest", "code": code, "alive": "yes"}, identity.id, own)
    server.call("/answer", {"code": own, "side": "answerer", "candidate": life}, origin=site.origin)
    until(lambda: happened(newer, "close"))


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


def test_invalid_name_is_an_error(server, connect_page):
    page = connect_page(server)
    for me in ("", "x" * 257, {"name": "x"}):
        enter(page, "1", me=me)
        error = ["error", "A name has one to 256 characters", None]
        until(lambda error=error: happened(page) == [error, ["close", None, None]])


def test_forged_names_are_ignored(server, site, publish, connect_page):
    ada, bob = connect_page(server), connect_page(server)
    enter(ada, "ada", me="Ada")
    until(lambda: beacons(server, site))
    (beacon,) = listed(server, site.origin, ROOM)
    signature, json_text = beacon["offer"][:86], beacon["offer"][86:]
    said = json.loads(json_text)
    for offer in (
        json_text,
        "x" * 86 + json_text,
        signature + json.dumps({**said, "at": said["at"] + 1}),
        json.dumps({**said, "id": "mallory"}),  # a name without a secret
        beacon["offer"],  # again: of that member, but mail to it is read by nothing
    ):
        publish(server, ROOM, info="mallory", offer=offer)
    enter(bob, "bob", me="Bob")
    with_others(bob, "ada")
    with_others(ada, "bob")
    # An offer in Bob's name does not take the place of Bob's connection.
    mail = {"from": bob.evaluate("here.id"), "connection": "c", "of": 1, "description": DESCRIPTION}
    for each in some(listed(server, site.origin, ROOM)):
        fields = {"code": each["code"], "side": "answerer", "candidate": json.dumps(mail)}
        assert server.call("/answer", fields, origin=site.origin)[0] == 200
    ada.evaluate("here.send('here')")
    hears(bob, "ada", "here")
    assert happened(ada, "leave", "error") == happened(bob, "leave", "error") == []


# Make a page like one over plain HTTP.
INSECURE = "Object.defineProperty(Crypto.prototype, 'subtle', {value: undefined})"


def forge(server, site, publish, beacons):
    """Send mail, and beacons if asked, under the ids of all members: without a key, and with another key."""
    members = {each["code"]: json.loads(each["offer"].lstrip(SIGNATURE)) for each in listed(server, site.origin, ROOM)}
    mallory = Identity(site.origin, ROOM, None, None)
    for victim in members.values():
        forged = {"v": 2, "id": victim["id"], "at": victim["at"] + 60_000, "now": now_ms()}
        for offer in (json.dumps(forged), mallory.seal(forged)) if beacons else ():
            publish(server, ROOM, info="mallory", offer=offer)
        mail = {"from": victim["id"], "info": "m", "code": "c", "connection": "c", "of": 1, "description": DESCRIPTION}
        for code, member in members.items():
            texts = [json.dumps(mail), mallory.seal(mail, member["id"], code)]
            fields = {"code": code, "side": "answerer", "candidates": texts}
            assert server.call("/answer", fields, origin=site.origin)[0] == 200


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("number", [2, 4])
def test_forged_messages_end_no_connection_of_members_without_names(
    number, secure, server, site, publish, connect_page
):
    pages = [connect_page(server) for _ in range(number)]
    for place, page in enumerate(pages):
        if not secure:
            page.evaluate(INSECURE)
        page.evaluate(COUNTED)
        page.evaluate(f"enter('lobby', {{info: '{place}', RTCPeerConnection: Counted}})")
        assert page.evaluate("here.id[0] === '$'") == secure  # known from the start
    for place, page in enumerate(pages):
        with_others(page, *({*map(str, range(number))} - {str(place)}))
    made = [page.evaluate("made") for page in pages]
    for _ in range(3):
        forge(server, site, publish, secure)  # newcomers would believe forged beacons
    last = connect_page(server)
    enter(last, "last")  # whose mail comes after all that
    with_others(last, *map(str, range(number)))
    for page, before in zip(pages, made, strict=True):
        until(lambda page=page: len(page.evaluate("others()")) == number)
        assert happened(page, "leave", "error", "close") == []
        if secure:
            assert page.evaluate("made") == before + 1
    assert happened(last, "leave", "error", "close") == []


def test_pages_with_and_without_signatures_connect(server, connect_page):
    pages = [connect_page(server) for _ in range(3)]
    pages[0].evaluate(INSECURE)
    for page, options in zip(pages, ({"info": "0"}, {"info": "1"}, {"info": "2", "me": "Ada"}), strict=True):
        page.evaluate("(options) => enter('lobby', options)", options)
    for place, page in enumerate(pages):
        with_others(page, *({*"012"} - {str(place)}))
    assert {*names(pages[0]).values()} == {None}  # it cannot verify the name
    assert "Ada" in names(pages[1]).values()


def test_streams_are_shown_to_all_without_the_server(start, connect_page):
    server = start()
    pages = [connect_page(server) for _ in range(3)]
    together(pages[:2], "lobby")
    for number, page in enumerate(pages[:2]):
        page.evaluate(f"() => {{ window.sent = picture({200 + 100 * number}); here.addStream(sent); }}")
    shown = "(number) => shown([...here.peers.values()][number].streams[0])"
    for number, page in enumerate(pages[:2]):
        until(lambda page=page: page.evaluate("[...here.peers.values()][0].streams.length") == 1)
        assert page.evaluate(shown, 0) == 300 - 100 * number
        assert len(happened(page, "stream")) == 1
    enter(pages[2], "2")
    for number, page in enumerate(pages):
        with_others(page, *({*"012"} - {str(number)}))
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


LOADED = "performance.getEntriesByType('resource').map(({name}) => name).join()"


def test_stream_added_during_an_outage_arrives_later(start, connect_page):
    server = start()
    alice, bob = connect_page(server), connect_page(server)
    together([alice, bob], "lobby")
    until(lambda: all("/client/media-" in page.evaluate(LOADED) for page in (alice, bob)))
    server.stop()
    become = """
      (state) => {
        const {peerConnection} = [...here.peers.values()][0];
        Object.defineProperty(peerConnection, "connectionState", {value: state, configurable: true});
        peerConnection.dispatchEvent(new Event("connectionstatechange"));
      }
    """
    alice.evaluate(become, "disconnected")
    alice.evaluate("new Promise((resolve) => { here.addStream(picture(200)); setTimeout(resolve, 200); })")
    alice.evaluate(become, "connected")
    until(lambda: happened(bob, "stream"))
    assert happened(bob, "leave") == happened(alice, "leave") == []


def test_repeated_streams_do_not_enlarge_the_description(server, connect_page, connect_firefox):
    pages = [connect_page(server), connect_firefox(server)]
    for page, info in zip(pages, "ab", strict=True):
        enter(page, info)
        page.evaluate("(() => { window.sent = picture(200); window.peer = () => [...here.peers.values()][0]; })()")
    for page in pages:
        until(lambda page=page: page.evaluate("here.peers.size") == 1)
    sizes = []
    for _ in range(5):
        for page in pages:
            page.evaluate("here.addStream(sent)")
        for page in pages:
            until(lambda page=page: page.evaluate("peer().streams.length") == 1)
            assert page.evaluate("shown(peer().streams[0])") == 200
        for page in pages:
            page.evaluate("here.removeStream(sent)")
        for page in pages:
            until(lambda page=page: page.evaluate("peer().streams.length") == 0)
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
    for page in pages:
        until(lambda page=page: page.evaluate("here.peers.size") == 1)
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


def test_unusable_offer_makes_another_connection(server, connect_page):
    pages = [connect_page(server) for _ in range(2)]
    together(pages, "lobby")
    pages[0].evaluate(
        """() => {
          const {peerConnection} = [...here.peers.values()][0];
          peerConnection.setRemoteDescription = () => Promise.reject(new Error("no"));
        }"""
    )
    pages[1].evaluate("here.addStream(picture(200))")
    until(lambda: happened(pages[0], "stream"))
    for page in pages:
        assert [name for name, *_ in happened(page, "join", "leave", "error")] == ["join", "leave", "join"]


def test_failed_negotiation_message_is_sent_again(server, connect_page):
    pages = [connect_page(server) for _ in range(2)]
    together(pages, "lobby")
    pages[0].evaluate(FAIL_ONCE)
    for number in range(2):
        pages[0].evaluate(f"here.addStream(picture({200 + number}))")
        until(lambda number=number: len(happened(pages[1], "stream")) == number + 1)
    assert happened(pages[0], "leave", "error") == happened(pages[1], "leave", "error") == []


def most_peers(page):
    """The largest number of peers that a page had at a time."""
    sizes = [0]
    for name, *_ in happened(page, "join", "leave"):
        sizes.append(sizes[-1] + (1 if name == "join" else -1))
    return max(sizes)


def test_first_members_have_the_places(server, site, connect_page, windowed):
    places = 4
    pages = {str(number): connect_page(server) for number in range(9)}
    dead, browser = windowed(server)
    pages["9"] = dead
    ids = {
        info: page.evaluate("(info) => { enter('game', {info, max: 4}); return here.id; }", info)
        for info, page in pages.items()
    }
    assert len({*ids.values()} - {None}) == 10  # known from the start

    def order():
        sessions = listed(server, site.origin, "room~game")
        return [each["info"] for each in sorted(sessions, key=lambda each: (each["createdAt"], ids[each["info"]]))]

    until(lambda: len(order()) == 10)

    def settled(infos):
        """Wait until the first members are connected, and all others wait."""
        inside = infos[:places]
        for info in infos:
            with_others(pages[info], *({*inside} - {info} if info in inside else ()))
            until(lambda info=info: pages[info].evaluate("here.full") == (info not in inside))

    infos = order()
    settled(infos)
    # One of them reloads the page. It enters again as the last one.
    pages[infos[1]].reload()
    pages[infos[1]].wait_for_function("() => window.ready")
    enter(pages[infos[1]], infos[1], "game", max=places)
    infos.append(infos.pop(1))
    settled(infos)
    # Those before the one whose browser is killed leave, so that it has a place.
    while infos.index("9") >= places:
        pages[infos[0]].evaluate("here.leave()")
        del infos[0]
        settled(infos)
    browser.kill()
    infos.remove("9")
    settled(infos)
    # Another beacon, as after a failure of the server, changes no place.
    for each in some(listed(server, site.origin, "room~game")):
        mail = {"code": each["code"], "side": "answerer", "answer": "x"}
        server.call("/answer", mail, origin=site.origin)
    until(lambda: sorted(order()) == sorted(infos))
    settled(infos)
    for info in infos:
        assert most_peers(pages[info]) <= places - 1
        assert happened(pages[info], "error", "close") == []


@pytest.mark.slow
@pytest.mark.needs("root")
def test_member_returns_to_its_place_after_an_outage(chromium, start, tmp_path):
    with three_machines(chromium, start, tmp_path) as (server, machines, pages):
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
        assert [most_peers(page) for page in pages] == [1, 1, 1]


def test_full_beacon_is_replaced(server, site, connect_page):
    pages = [connect_page(server) for _ in range(3)]
    together(pages[:2], "lobby")
    found = {each["code"] for each in listed(server, site.origin, ROOM)}
    for code in found:
        for _ in range(3):
            mail = {"code": code, "side": "answerer", "candidates": [VALID] * 100}
            assert server.call("/answer", mail, origin=site.origin)[0] == 200
    until(lambda: not found & {each["code"] for each in listed(server, site.origin, ROOM)})
    until(lambda: len(beacons(server, site)) == 2)
    enter(pages[2], "2")
    with_others(pages[2], "0", "1")
    for page in pages[:2]:
        until(lambda page=page: len(page.evaluate("others()")) == 2)
        assert happened(page, "leave", "error") == []


def test_junk_mail_to_all_beacons_delays_nobody(server, site, connect_page):
    pages = [connect_page(server) for _ in range(3)]
    together(pages[:2], "lobby")
    found = {each["code"] for each in listed(server, site.origin, ROOM)}
    over = threading.Event()

    def send():
        while not over.wait(1 / 25):
            for each in listed(server, site.origin, ROOM):
                mail = {"code": each["code"], "side": "answerer", "candidate": "junk"}
                server.call("/answer", mail, origin=site.origin)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        time.sleep(5)  # in which 125 junk mails arrive at each beacon
        enter(pages[2], "2")
        with_others(pages[2], "0", "1")
        assert found <= {each["code"] for each in listed(server, site.origin, ROOM)}
    finally:
        over.set()
        sender.join()
    assert [happened(page, "leave", "error", "close") for page in pages] == [[], [], []]


# List beacons whose signatures are wrong.
FORGE = """
  async (number) => {
    const server = new client.SignalClient();
    const id = `$${"A".repeat(43)}`;
    const offers = Array.from({length: number}, (_, at) => JSON.stringify({v: 2, id, at, now: Date.now()}));
    const sealed = offers.map((offer) => `${"A".repeat(86)}${offer}`);
    while (sealed.length) // at once, they would wait for each other until they have waited too long
      await Promise.all(sealed.splice(0, 100).map((offer) => server.offer("room~lobby", {info: "m", offer})));
  }
"""


def test_members_meet_among_thousands_of_wrongly_signed_beacons(start, connect_page):
    server = start("--rate-per-address", "100000")
    alice, bob = connect_page(server), connect_page(server)
    bob.evaluate(FORGE, 1500)
    enter(alice, "alice", secret=SECRETS[1])
    until(lambda: alice.evaluate("here.listed"))
    bob.evaluate(FORGE, 1500)
    enter(bob, "bob", secret=SECRETS[0])
    with_others(alice, "bob")
    with_others(bob, "alice")


def test_hundreds_of_dead_beacons_delay_nobody(server, connect_page):
    pages = [connect_page(server) for _ in range(3)]
    for page, info, secret in zip(pages[:2], "ab", reversed(SECRETS), strict=True):
        pages[2].evaluate(FAKE, [f"~{info}{number}" for number in range(260)])  # which every member leads
        page.evaluate(COUNTED)
        page.evaluate(COUNT_ENTRIES)
        page.evaluate(f"enter('lobby', {{info: '{info}', secret: '{secret}', RTCPeerConnection: Counted}})")
        until(lambda page=page: page.evaluate("there") >= 50)
    began_s = time.monotonic()
    together([connect_page(server) for _ in range(2)], "a room without dead members")
    bound_s = max(60, 20 * (time.monotonic() - began_s))  # at this load
    with_others(pages[0], "b", bound_s=bound_s)
    with_others(pages[1], "a", bound_s=bound_s)
    for page in pages[:2]:
        assert page.evaluate("most") <= 60
        # Some for each attempt. Attempts are repeated for as long as the test takes. All members would be thousands.
        assert page.evaluate("entries / made") < 500
        assert happened(page, "close", "leave") == []


def test_mail_of_hundreds_makes_few_connections(server, site, connect_page):
    alice, bob = connect_page(server), connect_page(server)
    leads, follows = SECRETS
    alice.evaluate(COUNTED)
    alice.evaluate(f"enter('lobby', {{info: 'alice', me: 'Alice', secret: '{follows}', RTCPeerConnection: Counted}})")
    names = [[f"{batch}-{number}" for number in range(100)] for batch in range(6)]
    bob.evaluate(FAKE, names[0] + names[1])
    mail = {"code": "c", "info": "i", "connection": "c", "of": 1, "description": DESCRIPTION}
    seen = set()

    def alices():
        found = listed(server, site.origin, ROOM)
        return {each["code"] for each in found if each["info"] == "alice"}

    for batch in range(6):
        (code,) = until(lambda: alices() - seen)
        mails = [json.dumps({**mail, "from": name}) for name in names[batch]]
        fields = {"code": code, "side": "answerer", "candidates": mails}
        assert server.call("/answer", fields, origin=site.origin)[0] == 200
        if batch % 3 == 2:
            seen.add(code)  # there will be another one
    until(lambda: not alices() & seen)
    enter(bob, "bob", secret=leads)
    with_others(alice, "bob")
    with_others(bob, "alice")
    assert alice.evaluate("most") <= 60
    assert happened(alice, "error", "close", "leave") == []


def test_members_beyond_the_connection_limit_join_later(server, connect_page):
    alice, bob, carol = (connect_page(server) for _ in range(3))
    leads, follows = SECRETS
    enter(alice, "alice", secret=leads)
    enter(bob, "bob")
    with_others(alice, "bob")
    # As many as Chromium can create. Closed connections count until it frees them.
    alice.evaluate("() => { try { for (;;) new RTCPeerConnection().close(); } catch {} }")
    enter(carol, "carol", secret=follows)
    with_others(alice, "bob", "carol")
    with_others(carol, "alice", "bob")
    (error, *_) = happened(alice, "error", "close", "leave")
    assert "Cannot create so many PeerConnections" in error[1]
    assert {name for name, *_ in happened(alice, "error", "close", "leave")} == {"error"}


def test_permanent_errors_close_the_room(server, connect_page):
    alice, bob = connect_page(server), connect_page(server)
    leads, follows = SECRETS
    enter(bob, "bob", secret=follows)
    alice.evaluate(f"enter('lobby', {{secret: '{leads}', prepare() {{ throw new Error('no camera'); }}}})")
    until(lambda: happened(alice) == [["error", "no camera", None], ["close", None, None]])
    code = "name => { try { client.room(name); } catch ({ code }) { return code; } }"
    module = "async () => { window.client = await import(`${location.search.slice(1)}/client.js`); }"
    alice.evaluate(module)
    assert [alice.evaluate(code, name) for name in ("x" * 300, "", None)] == ["topic-invalid"] * 3
