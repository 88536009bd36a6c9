"""The original PeerJS client: data, media, refused and absent ids, two browsers, reloads, restarts, and proxies."""

import json
from pathlib import Path

import pytest
from support import libraries
from support.browsers import until
from support.proxies import HOST, NGINX_SITE, Nginx, Plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent


@pytest.fixture
def peer_site(site):
    site.pages |= {
        "/peers": (HERE / "peerjs.html").read_text(),
        "/peerjs.js": (libraries.node_modules() / "peerjs/dist/peerjs.min.js").read_text(),
    }
    return site


class Page:
    """A page with one PeerJS client."""

    def __init__(self, evaluate, options):
        self.evaluate, self.options = evaluate, options

    def call(self, name, *arguments):
        return self.evaluate(f"{name}(...{json.dumps(arguments)})")

    def start(self, *ids):
        return self.call("start", self.options, *ids)

    def attempt(self, peer_id):
        return self.call("attempt", self.options, peer_id)


@pytest.fixture
def open_peer_page(profiles, peer_site):
    """A function that opens a page in Chromium, with a server as its host."""

    def opening(server, url=None, **options):
        page = profiles.open(f"{url or peer_site.origin}/peers")
        page.wait_for_function("() => window.ready")
        return Page(page.evaluate, {"host": HOST, "port": server.port, "secure": False, "path": "/", **options})

    return opening


def test_data_and_media_between_chromium_and_firefox(server, open_peer_page, firefox, peer_site):
    one, other = open_peer_page(server), open_peer_page(server)
    firefox.goto(f"{peer_site.origin}/peers")
    third = Page(firefox.evaluate, one.options)
    peer_id = one.start()  # an id from the server
    assert [other.start("the other peer"), third.start("firefox")] == ["the other peer", "firefox"]
    for data in ("text", {"nested": [1, None, "ä"]}, "x" * 100_000):
        assert other.call("say", peer_id, data) == third.call("say", peer_id, data) == [data, peer_id]
    for name in ("the other peer", "firefox"):
        assert one.call("say", name, 5) == [5, name]
    assert other.call("callAndHear", peer_id) == third.call("callAndHear", peer_id) == ["audio"]
    assert one.evaluate("events") == other.evaluate("events") == third.evaluate("events") == []


def test_taken_id_and_absent_peer_are_reported_and_a_reload_gets_the_id_again(server, open_peer_page, profiles):
    one, other = open_peer_page(server), open_peer_page(server)
    one.start("a")
    assert other.attempt("a") == "unavailable-id"
    assert one.call("unavailable", "absent") == ["peer-unavailable", "Could not connect to peer absent"]
    one.evaluate("peer.destroy()")
    until(lambda: other.attempt("a") == "open")
    assert one.attempt("b") == "open"
    assert one.call("say", "a", 1) == [1, "a"]
    profiles.contexts[1].pages[0].reload()
    until(lambda: other.attempt("a") == "open")


def test_reconnect_keeps_the_id_and_connections_outlive_the_server(start, open_peer_page):
    server = start()
    one, other = open_peer_page(server), open_peer_page(server)
    one.start("a")
    other.start("b")
    one.evaluate("window.kept = peer.connect('b'); once(kept, 'open')")
    server.stop()
    for page in (one, other):
        until(lambda page=page: "disconnected" in page.evaluate("events"))
    assert one.evaluate("(async () => { kept.send(1); return (await once(kept, 'data')).answer; })()") == 1
    start(port=server.port)
    assert [page.call("reconnect") for page in (one, other)] == ["a", "b"]
    assert one.call("say", "b", 2) == [2, "b"]
    one.evaluate("peer.disconnect()")
    assert one.call("reconnect") == "a"
    assert other.call("say", "a", 3) == [3, "a"]


# Behind a proxy


class SubPathNginx(Plain, Nginx):
    """An nginx with the server under a path of the page's site, as docs/peerjs.md shows."""

    LINES = """
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $remote_addr;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header Upgrade $http_upgrade;
    proxy_set_header Connection $connection_upgrade;
    location /signal/ {{ proxy_pass http://127.0.0.1:{upstream[0]}/; }}
    location / {{ proxy_pass http://127.0.0.1:{upstream[1]}; }}
"""
    SITE = NGINX_SITE.replace("{lines}", LINES)


def test_same_site_under_a_sub_path(start, start_proxy, open_peer_page, peer_site):
    """The request for an id has no Origin then, because it is of the same origin."""
    server = start("--trusted-proxies", "127.0.0.1", "--peerjs-discovery")
    proxy = start_proxy(SubPathNginx, (server.port, peer_site.server_port))
    pages = [open_peer_page(proxy, url=proxy.url, path="/signal") for _ in range(2)]
    ids = [page.start() for page in pages]
    assert pages[0].call("say", ids[1], "hello") == ["hello", ids[1]]
    assert sorted(pages[0].call("ids")) == sorted(ids)
