"""Rooms of the Python client: its members are connected to each other, and to browsers."""

import hashlib
import itertools
import json
import signal

import pytest
from support.browsers import launch_in, open_connect, until
from support.command import Server
from support.members import (
    SECRETS,
    Program,
    all_stayed,
    all_together,
    enter,
    enter_together,
    forking,
    happened,
    now_ms,
    with_others,
)
from support.waiting import end_all

from tornado_signal_client.names import Identity

from .test_messages import VALUES

pytestmark = pytest.mark.needs("aiortc")

PORTS = itertools.count(8000)  # of the origins
# Expressions for the members' sessions, and for the codes of those of one.
SESSIONS = "(await peers.client.sessions('room~lobby')).sessions"
ALICES = f"[each['code'] for each in {SESSIONS} if each['info'] == 'a']"
# How many connections a program has.
CONNECTIONS = """len([
    each for each in gc.get_objects() if type(each).__name__ == "RTCPeerConnection" and each.signalingState != "closed"
])"""


@pytest.fixture(scope="module")
def start(network, tmp_path_factory):
    """A function that starts a server in the network."""

    def starting(data="data", port=0):
        # Not on loopback: browsers protect it from pages that may come from elsewhere.
        options = ["--address", "192.0.2.1", "--data-dir", folder / data, "--rate-per-address", "100000"]
        return Server(*options, prefix=network, port=port)

    folder = tmp_path_factory.mktemp("data")
    with end_all(starting, Server.end) as start:
        yield start


@pytest.fixture(scope="module")
def server(start):
    """A server for the whole file. Each test has its own origin."""
    return start()


@pytest.fixture(scope="module")
def template(network):
    with forking(network) as template:
        yield template


@pytest.fixture
def origin():
    """The origin of the test's pages. Names need a secure context."""
    return f"http://localhost:{next(PORTS)}"


@pytest.fixture
def python(template, server, origin, tmp_path):
    def starting(info, *urls):
        return Program(template, urls or [server.url], origin, info, tmp_path)

    with end_all(starting, Program.end) as start:
        yield start


@pytest.fixture(scope="module")
def browser(network, playwright, tmp_path_factory):
    browser = launch_in(playwright.chromium, network, tmp_path_factory.mktemp("browser") / "chromium")
    yield browser
    browser.close()


@pytest.fixture
def page(server, browser, origin):
    errors = []

    def new_page():
        page = open_connect(browser.new_context(permissions=["microphone"]), server, origin)
        page.on("pageerror", lambda error: errors.append(str(error)))
        return page

    with end_all(new_page, lambda page: page.context.close()) as opening:
        yield opening
    assert errors == []


def sees(program, *events):
    until(lambda: all([*event] in program.evaluate("seen") for event in events))


def test_programs_and_pages_join_each_other(page, python):
    program, tab = python("p"), page()
    tab.evaluate("listen('page', {info: 'x'})")
    joined = "(await (joined := await peers.join('page')).send('hello'), joined.info, await joined.receive())"
    assert program.evaluate(joined) == [None, "x", "x: hello"]
    program.evaluate("begin(anext(aiter(peers.publish('program'))))")
    tab.evaluate("void (window.called = call('program', {info: 'x'}))")
    published = "(await (published := await begun[0]).send('welcome'), published.info, await published.receive())"
    assert program.evaluate(published) == [None, "x", "hello"]
    assert tab.evaluate("called") == ["p", "welcome"]


def heard(page, sender):
    """The messages of a page from a member, of which bytes are numbers."""
    events = page.evaluate("seen.map(([name, info, data]) => [name, info, data?.byteLength ?? data])")
    return [data for name, info, data in events if (name, info) == ("message", sender)]


def test_programs_and_pages_in_one_room(page, python):
    programs = {info: python(info) for info in "ab"}
    pages = {info: page() for info in "xyz"}
    enter_together(programs | pages)
    (a, b), (x, y, z) = programs.values(), pages.values()
    a.evaluate(f"[await room.send(value) for value in {VALUES!r}]")
    a.evaluate("room.send(bytes(300_000))")  # in parts
    x.evaluate("(values) => values.forEach((value) => here.send(value))", VALUES)
    x.evaluate("here.send(new Uint8Array(300_000).fill(7))")
    for program, sender, last in ((b, "a", bytes(300_000)), (a, "x", b"\7" * 300_000), (b, "x", b"\7" * 300_000)):
        sees(program, ("Message", sender, repr(last)))
        got = [event[2] for event in program.evaluate("seen") if event[:2] == ["Message", sender]]
        assert got == [*VALUES, repr(last)]
    for each in pages.values():
        until(lambda each=each: heard(each, "a") == [*VALUES, 300_000])
    a.evaluate("begin(hear(room.channel('cursor', ordered=False).messages()))")
    moved = "({peer, data}) => (window.moved = [peer.info, data])"
    x.evaluate(f"here.channel('cursor').addEventListener('message', {moved})")
    to = "next(each for each in room.peers.values() if each.info == {!r})"
    a.evaluate(f"room.channel('cursor').send({{'x': 1}}, {to.format('x')})")
    b.evaluate(f"room.send(b'\\x00to a', {to.format('a')})")
    x.evaluate("here.channel('cursor', {ordered: false}).send({y: 2})")
    until(lambda: x.evaluate("window.moved") == ["a", {"x": 1}])
    sees(a, ("Heard", "x", {"y": 2}), ("Message", "b", repr(b"\x00to a")))
    x.reload()
    for program in programs.values():
        sees(program, ("Left", "x"))
    x.wait_for_function("() => window.ready")
    x.evaluate("enter('lobby', {info: 'again'})")
    all_together(programs | {"again": x, "y": y, "z": z})
    a.evaluate("asyncio.gather(room.send('x' * 300_000), room.send('bye'))")
    a.evaluate("room.leave()")
    for each in pages.values():
        until(lambda each=each: happened(each)[-2:] == [["message", "a", "bye"], ["leave", "a", None]])
        assert happened(each, "error") == []
    assert a.evaluate("[seen[-1], [*room.peers], await room.closed()]") == [["End"], [], None]
    assert a.evaluate("failure(lambda: room.send('x', 'absent'))") == "peer-left"
    sees(b, ("Message", "a", "bye"), ("Left", "a"))
    assert len(b.evaluate(SESSIONS)) == 4
    a.evaluate("enter()")
    a.evaluate("room.ready()")
    y.evaluate("here.leave()")
    sees(b, ("Left", "y"))
    all_together(programs | {"again": x, "z": z})


def test_names_are_signed_and_a_taken_one_is_refused(page, python):
    alice, bob, carol = python("a"), page(), python("c")
    id = alice.evaluate("enter(me='Alice 世界', secret='of Alice')")
    bob.evaluate("enter('lobby', {info: 'b', me: 'Bob', secret: 'of Bob'})")
    carol.evaluate("enter()")
    all_together({"a": alice, "b": bob, "c": carol})
    names = "sorted([each.info, each.name] for each in room.peers.values())"
    assert alice.evaluate(names) == [["b", "Bob"], ["c", None]]
    assert carol.evaluate(names) == [["a", "Alice 世界"], ["b", "Bob"]]
    assert bob.evaluate(f"here.peers.get({id!r}).name") == "Alice 世界"
    number = bob.evaluate(f"here.peers.get({id!r}).verification()")
    of = "[peer.verification._asdict() for peer in room.peers.values() if peer.info == {!r}]"
    assert alice.evaluate(of.format("b")) == [number]
    assert alice.evaluate(of.format("c")) == carol.evaluate(of.format("a")) != [number]
    taken = python("t")
    taken.evaluate("enter(me='Bob', secret='another')")
    assert taken.evaluate("failure(room.ready)") in (None, "name-taken")
    assert "another member has the name Bob" in taken.evaluate("room.closed()")
    sees(taken, ("name-taken", "another member has the name Bob"))
    again = python("again")
    assert again.evaluate("enter(me='Alice 世界', secret='of Alice')") == id
    sees(alice, ("replaced", "another peer is in this room with the same secret"))
    all_together({"again": again, "b": bob, "c": carol})


def test_server_decides_which_member_is_newer(page, python):
    older, newer, mallory = python("older"), page(), python("m")
    older.evaluate("setattr(sys.modules['time'], 'time_ns', lambda ns=sys.modules['time'].time_ns: ns() + 25 * 10**9)")
    id = older.evaluate("enter(secret='of both')")
    (first,) = until(lambda: mallory.evaluate(SESSIONS))
    newer.evaluate("enter('lobby', {info: 'newer', secret: 'of both'})")
    sees(older, ("replaced", "another peer is in this room with the same secret"))
    newest = python("newest")
    assert newest.evaluate("enter(secret='of both')") == id
    until(lambda: newer.evaluate("seen.some(([name]) => name === 'close')"))
    # A copy of the first beacon, and another one with that entry.
    beacon = {"v": 2, "id": id, "at": 10**14, "now": now_ms()}
    sealed = "Identity(sys.argv[2], 'room~lobby', None, 'of both').seal"
    offers = f"[{first['offer']!r}, {sealed}({beacon | {'since': first['createdAt']}})]"
    codes = mallory.evaluate(f"[await peers.client.offer('room~lobby', 'm', each) for each in {offers}]")
    mallory.evaluate("enter()")
    all_together({"newest": newest, "m": mallory})
    # Beacons with a later entry than that of `newest` are asked for a sign of life. They end nothing without one.
    late = f"{sealed}({beacon | {'since': now_ms() + 50_000}})"
    codes.append(mallory.evaluate(f"peers.client.offer('room~lobby', 'm', {late})"))
    asked = [f"len((await peers.client.poll({code!r}, 'offerer')).candidates)" for code in codes]
    until(lambda: [mallory.evaluate(each) for each in asked] == [2, 0, 2])
    assert newest.evaluate("seen") == [["Joined", "m"]]
    (own,) = [each["code"] for each in mallory.evaluate(SESSIONS) if each["info"] == "newest"]
    mail = {"from": id, "info": "m", "code": codes[2], "alive": "yes"}
    life = f"{sealed}({mail}, {id!r}, {own!r})"
    mallory.evaluate(f"peers.client.candidates({own!r}, 'answerer', [{life}])")
    sees(newest, ("replaced", "another peer is in this room with the same secret"))


def test_member_with_a_wrong_clock_corrects_it(python):
    members = {info: python(info) for info in "abc"}
    hour_ns = 3600 * 10**9
    for info, wrong_ns in (("a", hour_ns), ("b", -hour_ns)):
        ahead = f"lambda ns=sys.modules['time'].time_ns: ns() + {wrong_ns}"
        members[info].evaluate(f"setattr(sys.modules['time'], 'time_ns', {ahead})")
    for member in members.values():
        member.evaluate("enter('game', max=3)")
        until(lambda member=member: member.evaluate("room._settled.is_set()"))
    all_together(members)
    # All agree on the order of the entries.
    others = "[[*each.order] for each in room._roster.members.values()]"
    orders = f"sorted([[room._mail.current.entry_ms, room.id], *{others}])"
    first, *others = [member.evaluate(orders) for member in members.values()]
    assert others == [first] * 2
    assert [id for _, id in first] == [member.evaluate("room.id") for member in members.values()]


def test_listing_of_more_than_16_mib_is_read_with_a_smaller_limit(page, python):
    a, x = python("a"), page()
    a.evaluate("[await peers.client.offer('room~lobby', 'm', 'x' * 120_000) for _ in range(160)] and None")
    for listing in ("peers.client.sessions('room~lobby')", "anext(peers.client.listings('room~lobby'))"):
        assert len(a.evaluate(listing)[0]) == 125
    a.evaluate("setattr(peers.client, '_max_listing', 1000)")
    script = (
        "async (socket) => (await new client.SignalClient(undefined, {socket}).sessions('room~lobby')).sessions.length"
    )
    assert [x.evaluate(script, socket) for socket in (True, False)] == [125, 125]
    a.evaluate("enter(me='Ada', secret='of Ada')")  # reads the listing for the name
    x.evaluate("enter('lobby', {info: 'x'})")
    all_together({"a": a, "x": x})


def test_programs_and_pages_share_the_places_of_a_room(page, python):
    members = {info: python(info) for info in "ab"} | {"x": page(), "y": page()}
    sessions = "(await peers.client.sessions('room~game')).sessions"
    entered = []
    for info, member in members.items():
        enter(member, info, "game", max=3)
        entered.append(info)
        until(lambda: [each["info"] for each in members["a"].evaluate(sessions)] == entered[::-1])
    all_together({info: members[info] for info in "abx"})
    until(lambda: members["y"].evaluate("here.full"))
    last = python("last")
    last.evaluate("enter('game', max=3)")
    until(lambda: last.evaluate("seen") == [["Full", True]])
    members["b"].evaluate("room.leave()")
    all_together({info: members[info] for info in "axy"})
    assert last.evaluate("[room.full, seen]") == [True, [["Full", True]]]
    members["x"].evaluate("here.leave()")
    all_together({"a": members["a"], "y": members["y"], "last": last})
    assert last.evaluate("seen")[:2] == [["Full", True], ["Full", False]]
    assert last.evaluate("failure(lambda: peers.room('game', max=0))") == "ValueError"


def test_streams_of_browsers_are_tracks(page, python):
    pages = [page() for _ in range(2)]
    program = python("p")
    program.evaluate("enter()")
    peer = "[...here.peers.values()].find(({info}) => info === 'p').peerConnection"
    for number, each in enumerate(pages):
        each.evaluate(f"enter('lobby', {{info: '{number}'}})")
        with_others(program, *map(str, range(number + 1)))
        with_others(each, "p", *map(str, range(number)))
        each.evaluate(f"here.addStream(window.stream = picture({320 + number}))")
    until(lambda: program.evaluate("len(tracks)") == 2)
    assert sorted(program.evaluate("[(await each.recv()).width for each in tracks]")) == [320, 321]
    for number, each in enumerate(pages):
        offers = each.evaluate(
            f"""async () => {{
              const connection = {peer};
              const stable = () => new Promise((resolve) => {{
                connection.onsignalingstatechange = () => connection.signalingState === "stable" && resolve();
              }});
              here.removeStream(stream);
              await stable();
              here.addStream(stream);
              await stable();
              connection.restartIce();
              await stable();
              here.send("more");
              return connection.remoteDescription.type;
            }}"""
        )
        assert offers == "answer"
        sees(program, ("Message", str(number), "more"))
    program.evaluate("room.send('here, too')")
    for each in pages:
        until(lambda each=each: "here, too" in heard(each, "p"))
    assert all_stayed(program)


@pytest.mark.parametrize(
    ("number", "data", "socket"), [(signal.SIGKILL, "another", False), (signal.SIGTERM, "data", True)]
)
def test_members_do_not_notice_a_restart(number, data, socket, start, page, python, tmp_path):
    server = start(tmp_path / "data")
    a, b = python("a", server.url), python("b", server.url)
    x, y = page(), page()
    way = {"url": server.url, "socket": socket}
    a.evaluate("enter()")
    enter(x, "x", **way)
    all_together({"a": a, "x": x})
    server.stop(number)
    a.evaluate("room.send('are you there?')")
    x.evaluate("here.send('and you?')")
    sees(a, ("Message", "x", "and you?"))
    until(lambda: "are you there?" in heard(x, "a"))
    start(tmp_path / data, port=server.url.rpartition(":")[2])
    b.evaluate("enter()")
    enter(y, "y", **way)
    all_together({"a": a, "b": b, "x": x, "y": y})
    assert all_stayed(a, b, x, y)


def test_members_fail_over_to_the_next_server_and_return(start, page, python, tmp_path):
    server, second = start(tmp_path / "data"), start(tmp_path / "another")
    urls = ["http://192.0.2.1:9", server.url, second.url]
    a, c, last = (python(info, *urls) for info in ("a", "c", "last"))
    x, y = page(), page()
    for each in (a, c, last):
        each.evaluate("setattr(sys.modules['tornado_signal_client.servers'], 'PREFERRED_CHECK_S', 0.5)")
        each.evaluate("setattr(peers.client, 'retry_timeout_s', 1)")
    a.evaluate("enter()")
    enter(x, "x", url=urls)
    all_together({"a": a, "x": x})
    server.stop()
    c.evaluate("enter()")
    enter(y, "y", url=urls)
    all_together({"a": a, "c": c, "x": x, "y": y})
    start(tmp_path / "data", port=server.url.rpartition(":")[2])
    for each in (x, y):
        each.evaluate("dispatchEvent(new Event('online'))")  # it looks at once
    last.evaluate("enter()")
    all_together({"a": a, "c": c, "last": last, "x": x, "y": y})
    assert all_stayed(a, c, x, y)


# Of these two members the first one leads.
LEADS = "me='Bob', secret='of Bob'"
FOLLOWS = "me='Alice', secret='of Alice'"
# Forged messages: unsigned, signed by another key, or signed for another room, member, beacon or application.
FORGED = """(lambda fields, to="", code="": [
    json.dumps(fields),
    Identity(sys.argv[2], "room~lobby", None, "of Mallory").seal(fields, to, code),
    Identity(sys.argv[2], "room~other", "Bob", "of Bob").seal(fields, to, code),
    Identity(sys.argv[2], "room~lobby", "Bob", "of Bob").seal(fields, f"{to}other", code),
    Identity(sys.argv[2], "room~lobby", "Bob", "of Bob").seal(fields, to, f"{code}other"),
    Identity("https://other.example", "room~lobby", "Bob", "of Bob").seal(fields, to, code),
])"""


def test_forged_messages_are_ignored(page, python):
    bob, alice, mallory = map(python, "bam")
    first = bob.evaluate(f"enter({LEADS})")
    second = alice.evaluate(f"enter({FOLLOWS})")
    assert first < second
    members = {"a": alice, "b": bob, "c": python("c"), "x": page()}
    enter(members["c"], "c")
    enter(members["x"], "x")
    all_together(members)
    found = mallory.evaluate(SESSIONS)
    beacons = {each["code"]: json.loads(each["offer"][86:]) for each in found}
    mail = {"info": "m", "connection": "another", "of": 1, "description": {"type": "offer", "sdp": "x"}}
    for victim in beacons.values():
        later = victim | {"at": 10**14}
        mallory.evaluate(f"[await peers.client.offer('room~lobby', 'm', each) for each in {FORGED}({later})]")
        for code, member in beacons.items():
            forged = f"{FORGED}({mail | {'from': victim['id'], 'code': code}}, {member['id']!r}, {code!r})"
            mallory.evaluate(f"peers.client.candidates({code!r}, 'answerer', {forged})")
    last = python("l")
    last.evaluate("enter()")  # which sees the beacons of before, and whose mail comes after all that
    all_together(members | {"l": last})
    assert all_stayed(last, *members.values())
    # A signed offer of Bob starts an attempt, but the open connection stays until the new one is open.
    (code,) = [code for code, beacon in beacons.items() if beacon["id"] == second]
    fields = mail | {"from": first, "code": code}
    signed = f"Identity(sys.argv[2], 'room~lobby', 'Bob', 'of Bob').seal({fields}, {second!r}, {code!r})"
    mallory.evaluate(f"peers.client.candidates({code!r}, 'answerer', [{signed}])")
    until(lambda: alice.evaluate(f"room._roster.members[{first!r}].peer._attempt") == "another")
    bob.evaluate("room.send('still here')")
    sees(alice, ("Message", "b", "still here"))
    assert all_stayed(alice, bob)


def test_members_say_that_a_connection_is_closed_and_replace_it(page, python, origin):
    tab, program, mallory = page(), python("p"), python("m")
    identities = [Identity(origin, "room~lobby", None, secret) for secret in (*SECRETS, "of a third one")]
    asker, leads, follows = sorted(identities, key=lambda identity: identity.id)
    secret = {identity.id: secret for identity, secret in zip(identities, (*SECRETS, "of a third one"), strict=True)}
    tab.evaluate(f"enter('lobby', {{info: 't', secret: '{secret[leads.id]}'}})")
    program.evaluate(f"enter(secret={secret[follows.id]!r})")
    all_together({"t": tab, "p": program})
    beacon = asker.seal({"v": 2, "id": asker.id, "at": 1, "now": now_ms()})
    own = mallory.evaluate(f"peers.client.offer('room~lobby', 'm', {beacon!r})")
    sessions = mallory.evaluate(SESSIONS)
    codes = {each["info"]: each["code"] for each in sessions}

    def send(sender, recipient, to, **fields):
        mail = sender.seal({"from": sender.id, "info": "m", "code": own, **fields}, recipient.id, codes[to])
        mallory.evaluate(f"peers.client.candidates({codes[to]!r}, 'answerer', [{mail!r}])")

    send(asker, leads, "t", connection="of t", of=2)
    send(asker, follows, "p", connection="of p", of=2)

    def closed():
        mails = mallory.evaluate(f"(await peers.client.poll({own!r}, 'offerer')).candidates")
        found = [json.loads(each[each.index("{") :]) for each in mails]
        return sorted(each["connection"] for each in found if each.get("closed") is True)

    until(lambda: closed() == ["of p", "of t"])
    connection = program.evaluate(f"room.peers[{leads.id!r}]._attempt")
    send(follows, leads, "t", connection=connection, closed=True)
    until(lambda: program.evaluate("[name for name, *_ in seen]") == ["Joined", "Left", "Joined"])
    all_together({"t": tab, "p": program})


def test_mail_of_hundreds_of_strangers_changes_nothing(page, python):
    alice, bob, mallory = map(python, "abm")
    x = page()
    alice.evaluate("enter()")
    x.evaluate("enter('lobby', {info: 'x'})")
    with_others(alice, "x")
    codes = mallory.evaluate(f"[each['code'] for each in {SESSIONS}]")
    assert len(codes) == 2
    mail = {"info": "m", "code": "c", "connection": "c", "of": 1, "description": {"type": "offer", "sdp": "x"}}
    beacon = json.dumps({"v": 2, "id": "nothing", "at": 1, "now": now_ms()})
    mallory.evaluate(f"peers.client.offer('room~lobby', 'm', {beacon!r})")
    for code in codes:
        mallory.evaluate(f"peers.client.candidates({code!r}, 'answerer', ['no JSON', '[' * 50_000])")
        mallory.evaluate(f"peers.client.answer({code!r}, 'an answer')")
    # Another beacon comes in the place of one that is answered, and of one with much mail.
    (again,) = until(lambda: mallory.evaluate(ALICES))
    texts = [json.dumps(mail | {"from": f"!{number}"}) for number in range(300)]
    mallory.evaluate(f"peers.client.candidates({again!r}, 'answerer', {texts})")
    until(lambda: mallory.evaluate(ALICES) not in ([], [again]))
    assert alice.evaluate(CONNECTIONS) <= 60
    # Junk does so only when the mailbox is nearly full.
    (code,) = until(lambda: len(found := mallory.evaluate(ALICES)) == 1 and found)
    junk = f"peers.client.candidates({code!r}, 'answerer', {FORGED}({{'from': 'x'}}) * 100)"
    mallory.evaluate(junk)
    bob.evaluate("enter()")  # whose mail comes after that
    all_together({"a": alice, "b": bob, "x": x})
    assert mallory.evaluate(ALICES) == [code]
    mallory.evaluate(junk.replace("100", "50"))
    # The next beacon is listed before this one is withdrawn, which is read a little longer.
    assert len(until(lambda: len(found := mallory.evaluate(ALICES)) > 1 and found)) == 2
    until(lambda: (found := mallory.evaluate(ALICES)) and code not in found)
    assert {name for name, *_ in alice.evaluate("seen") + bob.evaluate("seen")} == {"Joined"}
    assert x.evaluate("seen.filter(([name]) => name !== 'join').length") == 0


# Messages that no honest member sends over its open connections, by the name of the kind, with their channel. The unit
# tests of both languages try JSON with any value at any place.
DEEP = "[" * 50_000
HEADER = "\x1e\x1e" + '{"size": %d, "text": %s}'
DESCRIPTION = '{"description": %s, "of": 2}'
FILE = '{"name": "%s", "type": "", "size": %d}'
NO_MEDIA = r'{"type": "offer", "sdp": "v=0\r\no=- 0 0 IN IP4 0.0.0.0\r\ns=-\r\nt=0 0\r\n"}'
NONSENSE = {
    "deep JSON": ("room", ["\x1e" + DEEP, "\x1e" + "[" * 10_000 + "]" * 10_000]),
    "wide JSON": ("room", ["\x1e[" + "0," * 100_000 + "0]"]),
    "prototype": ("room", ['\x1e{"__proto__": {"then": 1}, "constructor": 1, "toString": 1}']),
    "empty and binary messages": ("room", ["", b"", b"\xff\x00" * 1000, "\x1b[2J\x07\r\n\x00"]),
    "size beyond the limit": ("room", [HEADER % (2**26 + 1, "false"), *[b"x" * 65_536] * 8]),
    "too many bytes, and no UTF-8": ("room", [HEADER % (10, "true"), b"x" * 11, HEADER % (10, "true"), b"\xff" * 10]),
    "unfinished message": ("room", [HEADER % (2**26, "false"), *[b"x" * 65_536] * 8]),
    "many messages": ("room", ["x"] * 1000),
    "binary description": ("negotiation", [b"\xff", b"{}"]),
    "deep description": ("negotiation", [DEEP, '{"description": ' + DEEP]),
    "offer without media": ("negotiation", [DESCRIPTION % NO_MEDIA]),
    "long offer": ("negotiation", [DESCRIPTION % json.dumps({"type": "offer", "sdp": "v=0\r\n" + "a=x\r\n" * 30_000})]),
    "wrong descriptions": (
        "negotiation",
        [
            DESCRIPTION % json.dumps({"type": kind, "sdp": sdp})
            for kind, sdp in itertools.product(("offer", "answer", "rollback", "pranswer", "x", {}), ("x", "", 7, None))
        ],
    ),
    "wrong candidates": (
        "negotiation",
        ['{"candidates": [null, 7, {}, {"candidate": "x"}, {"candidate": "candidate:x"}]}'],
    ),
    "many candidates": (
        "negotiation",
        [json.dumps({"candidates": [{"candidate": f"candidate:{n}"} for n in range(4000)]})],
    ),
    "many descriptions": ("negotiation", ["{}"] * 1000),
    "binary and deep headers of files": ("file", [b"\xff", DEEP]),
    "huge file": ("file", [FILE % ("a", 2**60)]),
    "path as a name": ("file", [FILE % (r"../../a\u0000\u001b[2J", 0)]),
    "bytes before the acceptance": ("file", [FILE % ("a", 10), b"x"]),
    "too many bytes of a file": ("file", [FILE % ("a", 10), b"x" * 11]),
    "cancelled at once": ("file", [FILE % ("a", 10), '{"cancel": {}}', '{"cancel": "refused"}']),
    "accepted by the sender": ("file", [FILE % ("a", 10), '{"accept": true, "received": true}']),
}


def test_nonsense_of_a_member_changes_nothing_between_others(page, python):
    members = {info: python(info) for info in "abm"} | {"x": page()}
    alice, bob, mallory, x = members.values()
    for member in (alice, bob, mallory):
        member.evaluate("enter(files=True)")
    x.evaluate("enter('lobby', {info: 'x'})")
    x.evaluate("receive(here)")
    all_together(members)
    memory_kib = "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"  # the most so far
    before_kib = alice.evaluate(memory_kib)
    for name, (channel, messages) in NONSENSE.items():
        all_together(members)
        mallory.evaluate(f"send_raw({channel!r}, {messages!r})")
        bob.evaluate(f"room.send({name!r})")
        sees(alice, ("Message", "b", name))
        until(
            lambda name=name: x.evaluate("(name) => seen.some(([, info, data]) => info === 'b' && data === name)", name)
        )
    assert alice.evaluate(memory_kib) - before_kib < 64 * 1024
    events = alice.evaluate("seen")
    assert {("Joined", "m"), ("Message", "m"), ("FileOffered", "m")} <= {(name, info) for name, info, *_ in events}
    assert [info for name, info, *_ in events if name == "Left"] == []
    assert x.evaluate("files.length") > 1
    # The page ends some connections with the sender.
    assert x.evaluate("seen.filter(([name, info]) => name === 'leave' && info !== 'm').length") == 0
    assert x.evaluate("Object.prototype.then") is None


def test_programs_and_pages_exchange_files(page, python, tmp_path):
    a, b, x = python("a"), python("b"), page()
    for program in (a, b):
        program.evaluate("enter(files=True)")
    x.evaluate("() => { enter('lobby', {info: 'x'}); receive(here); }")
    all_together({"a": a, "b": b, "x": x})
    content = bytes(range(256)) * 8000 + b"end"
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / "notes.txt").write_bytes(content)
    assert a.evaluate("send_file(Path('notes.txt'))") is None
    assert a.evaluate("send_file(b'')") is None
    nothing = ["", "application/octet-stream", 0, hashlib.sha256().hexdigest()]
    expected = [["notes.txt", "text/plain", len(content), digest], nothing]
    for member in (b, x):
        until(lambda member=member: member.evaluate("files") == expected)
    to_a = "{to: [...here.peers.values()].find(({info}) => info === 'a')}"
    for name in ("read", "save"):
        assert x.evaluate(f"outcome(here.sendFile(make(2_000_001, '{name}'), {to_a}))") == "sent"
    digest = x.evaluate("make(2_000_001).arrayBuffer().then(digest)")
    until(lambda: a.evaluate("files") == [[name, "video/x-test", 2_000_001, digest] for name in ("read", "save")])


def test_transfers_that_fail_are_errors_at_both_ends(page, python, tmp_path):
    a, b, x = python("a"), python("b"), page()
    a.evaluate("enter(files=True)")
    b.evaluate("enter()")  # a program that takes no files refuses them
    x.evaluate("() => { enter('lobby', {info: 'x'}); receive(here); }")
    all_together({"a": a, "b": b, "x": x})
    for file, code in (("10, 'refuse'", "file-refused"), ("9_000_000, 'break'", "file-cancelled")):
        outcome = x.evaluate(f"outcome(here.sendFile(make({file})))")
        assert (outcome[0], sorted(outcome[1:], key=lambda each: each[1])) == (
            "file-incomplete",
            [[code, "a"], ["file-refused", "b"]],
        )
    b.evaluate("room.leave()")
    all_together({"a": a, "x": x})
    x.evaluate("void (accept = (file) => (file.cancel(), file.accept()))")
    assert a.evaluate("send_file(b'abc')") == ["file-refused"]
    assert a.evaluate("send_file(Path('missing'))") == ["FileNotFoundError"]
    x.evaluate(
        "void (accept = (file) => {"
        " const close = () => here.peers.forEach((peer) => peer.peerConnection.close());"
        " file.addEventListener('progress', () => file.received > 1_000_000 && close());"
        " return file.accept(); })"
    )
    assert a.evaluate("send_file(bytes(9_000_000))") == ["file-interrupted"]
    until(lambda: x.evaluate("files").count(["", "file-interrupted"]) == 1)


def test_programs_and_pages_in_a_room_with_a_password(page, python):
    members = {"a": python("a"), "b": python("b"), "x": page()}
    for info, member in members.items():
        enter(member, info, password="päss", me={"x": "Xavier"}.get(info, info), secret=info)
    other, open_ = python("other"), python("open")
    other.evaluate("enter(password='another')")
    open_.evaluate("enter()")
    all_together(members)
    members["a"].evaluate("room.send('psst')")
    sees(members["b"], ("Message", "a", "psst"))
    until(lambda: "psst" in heard(members["x"], "a"))
    assert members["a"].evaluate("sorted(each.name for each in room.peers.values())") == ["Xavier", "b"]
    topics = until(lambda: len(found := open_.evaluate("peers.client.topics()")["topics"]) == 3 and found)
    assert sorted(each["count"] for each in topics) == [1, 1, 3]
    assert [each["topic"] for each in topics if "lobby" in each["topic"]] == ["room~lobby"]
    assert other.evaluate("others()") == open_.evaluate("others()") == []
    assert [each.evaluate("room.ignored") for each in (members["a"], members["b"], other, open_)] == [0] * 4
    assert members["x"].evaluate("here.ignored") == 0
    assert all_stayed(members["a"], members["b"])


def test_copies_of_a_beacon_take_no_place_and_no_name(python):
    first, alice, bob, mallory = map(python, "fabm")
    options = "'game', password='p', max=2"
    first.evaluate(f"enter({options}, me='Bob', secret='of Bob')")
    (topic,) = until(lambda: [each["topic"] for each in mallory.evaluate("peers.client.topics()")["topics"]])
    offers = f"[each['offer'] for each in (await peers.client.sessions({topic!r})).sessions]"
    (offer,) = mallory.evaluate(offers)
    copy = f"peers.client.offer({topic!r}, '-', {offer!r})"
    mallory.evaluate(copy)
    first.evaluate("room.leave()")
    for member, name in ((alice, ""), (bob, ", me='Bob', secret='of another one'")):
        member.evaluate(f"enter({options}{name})")
        until(lambda member=member: member.evaluate("room._mail.current is not None"))
    # The copy has the earliest entry, so that bob waits until it is known that the room is empty.
    all_together({"a": alice, "b": bob})
    mallory.evaluate(copy)
    until(lambda: len(mallory.evaluate(offers)) == 4)
    until(lambda: {len(each.evaluate("[*room._listed]")) for each in (alice, bob)} == {3})
    alice.evaluate("room.send('still here')")
    sees(bob, ("Message", "a", "still here"))
    assert all_stayed(alice, bob)
    assert [each.evaluate("room.full") for each in (alice, bob)] == [False, False]
    assert alice.evaluate("[each.name for each in room.peers.values()]") == ["Bob"]
