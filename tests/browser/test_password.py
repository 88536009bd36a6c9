"""Rooms with a password: who is in them, and what others can read and do."""

import json
import random

import pytest
from support.browsers import before, listed, until
from support.webhooks import Receiver, write_secret

pytest_plugins = ["support.browser_fixtures"]

NAME, PASSWORD = "a private place", "of these members"
EVENTS = ["session.created", "session.answered", "session.expired", "session.withdrawn"]
JUNK = 100
NAMES = ["info of alice", "info of bob", "Ada Lovelace"]
# Only the members may read these. The last ones are parts of descriptions and candidates.
PRIVATE = [NAME, NAME.replace(" ", "%20"), PASSWORD, *NAMES, '"at"', "v=0", "fingerprint", "candidate:"]


def enter(page, info, password=PASSWORD, topic=NAME, **options):
    page.evaluate(f"enter({json.dumps(topic)}, {json.dumps({'info': info, 'password': password, **options})})")


def with_others(page, *infos):
    until(lambda: page.evaluate("others()") == sorted(infos))


def trouble(page):
    return page.evaluate("seen.filter(([name]) => ['leave', 'error', 'close'].includes(name))")


def topics(server, site):
    return [each["topic"] for each in server.call("/topics", origin=site.origin)[1]["topics"]]


def test_only_members_with_the_same_password_meet(server, reached, site, connect_page):
    alice, bob, carol, dave = (connect_page(reached(server)) for _ in range(4))
    enter(alice, "alice", me="Ada")
    enter(bob, "bob")
    enter(carol, "carol", "another password")
    dave.evaluate(f"enter('{NAME}', {{info: 'dave'}})")
    with_others(alice, "bob")
    with_others(bob, "alice")
    assert bob.evaluate("[...here.peers.values()][0].name") == "Ada"
    bob.evaluate("here.send('psst')")
    until(lambda: ["message", "bob", "psst"] in [each[:3] for each in alice.evaluate("seen")])
    until(lambda: len(topics(server, site)) == 3)
    for page in (carol, dave):
        assert page.evaluate("here.listed && others().length === 0")
    assert [page.evaluate("here.ignored") for page in (alice, bob, carol, dave)] == [0] * 4
    assert [each for page in (alice, bob, carol, dave) for each in trouble(page)] == []
    bob.evaluate("here.leave()")
    with_others(alice)


def test_firefox_and_chromium_derive_the_same_room(server, connect_page, connect_firefox):
    alice, bob = connect_page(server), connect_firefox(server)
    enter(alice, "alice")
    enter(bob, "bob")
    with_others(alice, "bob")
    with_others(bob, "alice")


def changed(text):
    """Return a text with one other character."""
    place = random.randrange(len(text))
    return f"{text[:place]}{'A' if text[place] != 'A' else 'B'}{text[place + 1 :]}"


def test_strangers_in_the_topic_can_only_fill_the_listing(server, site, publish, connect_page):
    sent = []  # the mail of the members, as [code, text]

    def record(fields):
        sent.extend([fields["code"], text] for text in [*fields.get("candidates", []), fields.get("candidate")] if text)

    alice, bob, mallory = (connect_page(server) for _ in range(3))
    enter(alice, "alice")
    (topic,) = until(lambda: topics(server, site))
    (own,) = listed(server, site.origin, topic)
    for number in range(JUNK):
        junk = [
            json.dumps({"v": 2, "id": f"m{number}", "at": 1, "now": 1}),
            changed(own["offer"]),
            own["offer"][:-9],
            "no cipher",
        ]
        publish(server, topic, info="mallory", offer=junk[number % len(junk)])
    mallory.evaluate(f"enter('{topic.removeprefix('room~')}', {{info: 'mallory'}})")
    with before(alice, "answer", record), before(bob, "answer", record):
        enter(bob, "bob")
        with_others(alice, "bob")
        with_others(bob, "alice")
    until(lambda: [page.evaluate("here.ignored") for page in (alice, bob)] == [JUNK + 1] * 2)
    beacons = {each["code"]: each["offer"] for each in listed(server, site.origin, topic)}
    bobs = next(code for code in beacons if code in [code for code, _ in sent] and code != own["code"])
    publish(server, topic, info="-", offer=beacons[bobs])  # a copy
    mails = {code: [text for to, text in sent if to == code] for code in (own["code"], bobs)}
    assert all(mails.values())
    attacks = 0
    for code, other in ((bobs, own["code"]), (own["code"], bobs)):
        replayed = [*reversed(mails[code]), *mails[code]]
        swapped = [*mails[other], *map(changed, mails[code]), *(text[:-1] for text in mails[code]), beacons[other]]
        plain = json.dumps({"from": "!", "of": 1, "connection": "c", "description": {"type": "offer", "sdp": "x"}})
        texts = [*replayed, *swapped, plain]
        for text in texts:
            mail = {"code": code, "side": "answerer", "candidate": text}
            assert server.call("/answer", mail, origin=site.origin)[0] == 200
        page = bob if code == bobs else alice
        until(lambda page=page, texts=texts: page.evaluate("here.ignored") == JUNK + 1 + len(texts))
        attacks += len(texts)
    assert attacks > 10
    carol = connect_page(server)
    enter(carol, "carol")
    for page, others in ((alice, ["bob", "carol"]), (bob, ["alice", "carol"]), (carol, ["alice", "bob"])):
        with_others(page, *others)
    assert mallory.evaluate("others()") == []
    assert [each for page in (alice, bob, carol) for each in trouble(page)] == []


def test_mail_to_a_former_beacon_is_not_accepted_by_a_later_one(server, site, publish, connect_page):
    sent = []
    alice, bob = connect_page(server), connect_page(server)
    enter(alice, "alice", secret="of alice")
    (topic,) = until(lambda: topics(server, site))
    (first,) = listed(server, site.origin, topic)
    with before(bob, "answer", lambda fields: sent.append(fields)):
        enter(bob, "bob", secret="of bob")
        with_others(alice, "bob")
    texts = [text for each in sent if each["code"] == first["code"] for text in [each["candidate"]]]
    assert texts
    alice.evaluate("here.leave()")
    until(lambda: len(listed(server, site.origin, topic)) == 1)
    enter(alice, "alice", secret="of alice")
    with_others(alice, "bob")
    codes = [each["code"] for each in listed(server, site.origin, topic)]
    for text in texts:
        for code in codes:
            mail = {"code": code, "side": "answerer", "candidate": text}
            assert server.call("/answer", mail, origin=site.origin)[0] == 200
    until(lambda: [page.evaluate("here.ignored") for page in (alice, bob)] == [len(texts)] * 2)
    assert trouble(alice) == []


def test_copied_beacon_keeps_no_place(server, site, publish, connect_page):
    early, alice, bob, carol = (connect_page(server) for _ in range(4))
    enter(early, "early", max=2)
    (topic,) = until(lambda: topics(server, site))
    (first,) = listed(server, site.origin, topic)
    server.call("/answer", {"code": first["code"], "side": "answerer", "answer": "x"}, origin=site.origin)
    (copied,) = until(lambda: [each for each in listed(server, site.origin, topic) if each["code"] != first["code"]])
    enter(alice, "alice", max=2)
    with_others(alice, "early")
    early.evaluate("here.leave()")
    with_others(alice)
    publish(server, topic, info="-", offer=copied["offer"])
    enter(bob, "bob", max=2)
    with_others(bob, "alice")
    with_others(alice, "bob")
    publish(server, topic, info="-", offer=copied["offer"])
    enter(carol, "carol", max=2)
    until(lambda: carol.evaluate("here.full"))
    assert [page.evaluate("here.full") for page in (alice, bob)] == [False, False]
    assert [each for page in (alice, bob) for each in trouble(page) if each[0] != "leave"] == []
    with_others(bob, "alice")


def test_nothing_that_the_server_gets_or_shows_identifies_the_room(start, site, tmp_path, connect_page):
    with Receiver() as receiver:
        hooks = ["--webhook-url", receiver.url, *write_secret(tmp_path), "--webhook-events", ",".join(EVENTS)]
        server = start(*hooks, "--access-log", "--admin-port", "0", "--admin-topics")
        alice, bob = connect_page(server), connect_page(server)
        frames, requests = [], []
        for page in (alice, bob):
            page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(frame)))
            page.on("request", lambda request: requests.append(f"{request.url} {request.post_data}"))
        enter(alice, NAMES[0], me=NAMES[2])
        enter(bob, NAMES[1], socket=False)
        with_others(alice, NAMES[1])
        with_others(bob, NAMES[0])
        (topic,) = topics(server, site)
        shown = [server.call(path, origin=site.origin) for path in ("/topics", f"/{topic}/sessions")]
        for path in ("/metrics", "/status"):
            shown.append(server.exchange(path, base=server.admin_url, origin=None)[2].decode())
        bob.evaluate("here.leave()")
        receiver.wait(lambda: any(event["type"] == "session.withdrawn" for event in receiver.events))
        alice.evaluate("here.leave()")
        assert server.stop() == 0
        stored = b"".join(file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file())
        texts = {
            "frames": str(frames),
            "requests": str(requests),
            "shown": str(shown),
            "log": "".join(server.log),
            "webhooks": str(receiver.bodies),
            "store": stored.decode("latin-1"),
        }
        for where in ("frames", "requests", "shown", "webhooks", "store"):
            assert topic.removeprefix("room~") in texts[where], where
        found = [(where, private) for where, text in texts.items() for private in PRIVATE if private in text]
        assert found == []


@pytest.mark.parametrize(
    ("before_entering", "password", "code"),
    [
        ("Object.defineProperty(crypto, 'subtle', {value: undefined})", "p", "insecure-context"),
        ("0", "", "password-invalid"),
        ("0", None, "password-invalid"),
        ("0", 7, "password-invalid"),
    ],
)
def test_room_that_cannot_be_encrypted_is_an_error(before_entering, password, code, server, site, connect_page):
    page = connect_page(server)
    page.evaluate(f"() => {{ {before_entering}; }}")
    listener = "here.addEventListener('error', ({error}) => { window.code = error.code; })"
    page.evaluate(f"() => {{ enter('lobby', {{password: {json.dumps(password)}}}); {listener}; }}")
    until(lambda: page.evaluate("window.code") == code)
    until(lambda: page.evaluate("seen.at(-1)[0]") == "close")
    assert topics(server, site) == []


@pytest.mark.parametrize(("part", "option"), [("secret", "password"), ("named", "secret")])
def test_part_that_does_not_load_is_an_error_and_requested_again(part, option, server, connect_page):
    page = connect_page(server)
    page.route(f"**/client/{part}-*", lambda route: route.abort())
    code = "({error}) => { window.code = error.code; }"
    page.evaluate(f"() => {{ enter('lobby', {{{option}: 'p'}}); here.addEventListener('error', {code}); }}")
    until(lambda: page.evaluate("window.code") == "server-unreachable")
    page.unroute_all()
    page.evaluate("here.ready")
    assert "close" not in [name for name, *_ in page.evaluate("seen")]


def test_deriving_the_key_does_not_block_the_page(server, connect_page):
    page = connect_page(server)
    ticks = page.evaluate(
        """async () => {
          let ticks = 0;
          const timer = setInterval(() => (ticks += 1), 5);
          enter("lobby", {password: "p"});
          await new Promise((resolve) => here.addEventListener("listed", resolve));
          clearInterval(timer);
          return ticks;
        }"""
    )
    assert ticks > 5
