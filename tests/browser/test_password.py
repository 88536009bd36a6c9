"""Rooms with a password: who is in them, and what others can read and do."""

import pytest
from support.browsers import until
from support.members import enter, with_others
from support.webhooks import Receiver, write_secret

NAME, PASSWORD = "a private place", "of these members"
EVENTS = ["session.created", "session.answered", "session.expired", "session.withdrawn"]
NAMES = ["info of alice", "info of bob", "Ada Lovelace"]
# Only the members may read these. The last ones are parts of descriptions and candidates.
PRIVATE = [NAME, NAME.replace(" ", "%20"), PASSWORD, *NAMES, '"at"', "v=0", "fingerprint", "candidate:"]


def topics(server, site):
    return [each["topic"] for each in server.call("/topics", origin=site.origin)[1]["topics"]]


def test_nothing_that_the_server_gets_or_shows_identifies_the_room(start, site, tmp_path, connect_page):
    with Receiver() as receiver:
        hooks = ["--webhook-url", receiver.url, *write_secret(tmp_path), "--webhook-events", ",".join(EVENTS)]
        server = start(*hooks, "--access-log", "--admin-port", "0", "--admin-topics")
        alice, bob = connect_page(server), connect_page(server)
        frames, requests = [], []
        for page in (alice, bob):
            page.on("websocket", lambda socket: socket.on("framesent", lambda frame: frames.append(frame)))
            page.on("request", lambda request: requests.append(f"{request.url} {request.post_data}"))
        enter(alice, NAMES[0], NAME, password=PASSWORD, me=NAMES[2])
        enter(bob, NAMES[1], NAME, password=PASSWORD, socket=False)
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


def test_password_needs_a_secure_context(server, site, page):
    page.evaluate("void Object.defineProperty(crypto, 'subtle', {value: undefined})")
    listener = "here.addEventListener('error', ({error}) => { window.code = error.code; })"
    page.evaluate(f"void (enter('lobby', {{password: 'p'}}), {listener}, here.closed.then(() => (window.over = true)))")
    page.wait_for_function("() => window.over && window.code === 'insecure-context'")
    assert topics(server, site) == []


@pytest.mark.parametrize(
    ("part", "option", "values"), [("secret", "password", "pp"), ("named", "me", "pq"), ("attempts", "info", "pq")]
)
def test_part_that_does_not_load_is_an_error_and_requested_again(part, option, values, server, connect_page):
    page, other = connect_page(server), connect_page(server)
    page.route(f"**/client/{part}-*", lambda route: route.abort())
    code = "({error}) => { window.code = error.code; }"
    page.evaluate(f"() => {{ enter('lobby', {{{option}: '{values[0]}'}}); here.addEventListener('error', {code}); }}")
    until(lambda: page.evaluate("window.code") == "server-unreachable")
    other.evaluate(f"() => {{ enter('lobby', {{{option}: '{values[1]}'}}); }}")
    page.unroute_all()
    page.evaluate("here.ready")
    until(lambda: all(each.evaluate("here.peers.size") for each in (page, other)))
    assert "close" not in [name for name, *_ in page.evaluate("seen")]
