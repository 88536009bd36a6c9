"""Tokens of the browser module: rooms, publications and calls, refusals, a new key (docs/authorization.md)."""

import signal
import time

import pytest
from support.browsers import listed, until
from support.tokens import SECRET, make_token, write_secret

API = "new SignalClient(location.search.slice(1), {socket: %s, token: makeToken})"
OTHER_SECRET = b"another secret that is also long enough"


@pytest.fixture
def keys(tmp_path):
    return write_secret(tmp_path / "keys")


@pytest.fixture
def protected(start, keys):
    """A server that requires tokens, and lets tests list sessions without one."""
    return start("--auth-keys", keys, "--auth-anonymous", "list")


def open_page(connect_page, server, make):
    """Open a page whose `makeToken` calls a function of this process and records the result."""
    page = connect_page(server)
    page.made = []

    def record():
        page.made.append(make())
        return page.made[-1]

    page.expose_function("makeToken", record)
    return page


def make(life_s=600, **claims):
    return make_token({"exp": time.time() + life_s, **claims})


def test_peers_with_tokens_connect(over, reached, protected, connect_page):
    server = reached(protected)
    alice = open_page(connect_page, server, lambda: make(topics=["lobby"], info="alice"))
    bob = open_page(connect_page, server, lambda: make(topics=["lob*"], actions=["list", "answer"]))
    alice.evaluate("listen('lobby', {info: 'alice', token: makeToken})")
    assert bob.evaluate("call('lobby', {info: 'bob', token: makeToken})") == ["alice", "alice: hello"]
    assert len(alice.made) == len(bob.made) == 1


REFUSED = [
    ({"life_s": -100}, "unauthorized"),
    ({"origin": "https://other.example"}, "unauthorized"),
    ({"topics": ["attic"]}, "not-allowed"),
    ({"actions": ["list"]}, "not-allowed"),
    ({"info": "another"}, "not-allowed"),
]


@pytest.mark.parametrize("socket", ["true", "false"])
def test_refused_tokens_are_errors_with_codes(socket, protected, connect_page):
    claims = {}
    page = open_page(connect_page, protected, lambda: make(**claims))
    offer = "offer('lobby', {info: 'me', offer: 'o'})"
    for claims, code in REFUSED:
        assert page.evaluate(f"() => {API % socket}.{offer}.catch(({{code}}) => code)") == code, claims
        page.evaluate("(socket) => enter('lobby', {info: 'me', socket, token: makeToken})", socket == "true")
        page.wait_for_function("() => seen.some(([type]) => type === 'close')")
        assert [type for type, *_ in page.evaluate("seen")] == ["error", "close"], claims


def test_closed_page_withdraws_its_offer_over_http(protected, site, connect_page):
    page = open_page(connect_page, protected, make)
    page.evaluate("listen('lobby', {info: 'alice', socket: false, token: makeToken})")
    until(lambda: page.evaluate("0") or listed(protected, site.origin))
    page.goto("about:blank")
    until(lambda: not listed(protected, site.origin))


def test_room_continues_with_a_token_of_the_next_key(protected, keys, connect_page):
    used = {"secret": SECRET, "name": "main"}

    def newest():
        return make_token({"exp": time.time() + 600, "topics": ["room~lobby"]}, **used)

    alice = open_page(connect_page, protected, newest)
    alice.evaluate("enter('lobby', {info: 'alice', token: makeToken})")
    alice.wait_for_function("() => here.listed")
    used |= {"secret": OTHER_SECRET, "name": "next"}
    write_secret(keys, **used)
    (keys / "main.secret").unlink()
    protected.process.send_signal(signal.SIGHUP)
    until(lambda: alice.evaluate("0") or len(alice.made) == 2)
    bob = open_page(connect_page, protected, newest)
    bob.evaluate("enter('lobby', {info: 'bob', token: makeToken})")
    for page, other in ((alice, "bob"), (bob, "alice")):
        page.wait_for_function("(name) => seen.some(([type, info]) => type === 'join' && info === name)", arg=other)
    assert not [each for each in alice.evaluate("seen") if each[0] in ("error", "close")]
