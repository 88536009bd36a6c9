"""The interface over WebSockets of other makes: Chromium's and Firefox's own, and npm's `ws`."""

import json
import signal
from pathlib import Path

import pytest
from support import npm_package
from support.browsers import listed, until
from support.needs import require
from support.node import Node
from support.proxies import PROXIES

SCRIPT = Path(__file__).with_name("websocket.js").read_text()
ORIGIN = "https://app.example"
SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


class Scripted:
    """A client that is websocket.js, where something evaluates expressions, with options for its WebSocket."""

    def __init__(self, evaluate, origin, *options):
        self.evaluate, self.origin, self._options = evaluate, origin, options

    def connect(self, url):
        """Open a connection. Return its subprotocol."""
        return self.evaluate(f"connect({', '.join(map(json.dumps, [url, 'signal.v1', *self._options]))})")

    def call(self, method, **params):
        return self.evaluate(f"call({json.dumps(method)}, {json.dumps(params)})")


@pytest.fixture(params=["chromium", "firefox", pytest.param("node", marks=pytest.mark.slow)])
def client(request, profiles, site, tmp_path):
    if request.param != "node":
        site.pages["/websocket"] = f"<!DOCTYPE html><title>A bare WebSocket</title><script>{SCRIPT}</script>"
        page = request.getfixturevalue("firefox") if request.param == "firefox" else profiles.open("about:blank")
        page.goto(f"{site.origin}/websocket")
        yield Scripted(page.evaluate, site.origin)
        return
    require("node")
    (tmp_path / "node_modules").symlink_to(npm_package.node_modules())
    module = tmp_path / "websocket.mjs"
    module.write_text(f'import {{ WebSocket }} from "ws";\n{SCRIPT}')
    node = Node(module)
    yield Scripted(node.evaluate, ORIGIN, {"origin": ORIGIN})
    assert node.close() == 0


def result(client, method, **params):
    response = client.call(method, **params)
    assert "result" in response, response
    return response["result"]


def received(client, number):
    """Wait for events that are more than a cursor. Return type, data and cursor of each."""

    def found():
        events = [each for each in client.evaluate("events") if "type" in each]
        return events if len(events) >= number else None

    events = until(found)
    assert len(events) == number
    return [(each["type"], each["data"], each["cursor"]) for each in events]


def test_bare_websocket_resumes_and_holds_after_a_stop_and_a_kill(client, start):
    flags = ("--hold-grace-ms", 100)
    server = start(*flags)
    url, port = server.url.replace("http", "ws", 1) + "/ws", server.url.rpartition(":")[2]

    assert client.connect(url) == "signal.v1"
    assert result(client, "health")["status"] == "ok"
    assert client.call("poll", code="nonsense", side="offerer")["error"]["code"] == 404
    result(client, "subscribe", topic="lobby")
    code = result(client, "offer", **OFFER | {"offer": "é😀" * 20_000}, secret=SECRET, hold=True)["code"]
    other = server.offer(origin=client.origin)
    events = received(client, 2)
    assert [data["code"] for _, data, _ in events] == [code, other]
    assert events[0][1]["offer"] == "é😀" * 20_000
    cursor, known = events[-1][2], [code, other]
    for number, close_code in ((signal.SIGTERM, 1012), (signal.SIGKILL, 1006)):
        server.stop(number)
        assert client.evaluate("ended") == close_code
        server = start(*flags, port=port)
        missed = server.offer(origin=client.origin)
        client.connect(url)
        assert "expiresAt" in result(client, "hold", code=code, secret=SECRET)
        result(client, "subscribe", topic="lobby", since=cursor)
        known.append(missed)
        (kind, *_), *events = received(client, 1 + len(known))  # after a restart the listing follows
        assert (kind, {data["code"] for _, data, _ in events}) == ("reset", {*known})
        cursor = events[-1][2]
    result(client, "subscribe", code=code, side="offerer", secret=SECRET)
    answer = {"code": code, "side": "answerer", "answer": "a"}
    assert server.call("/answer", answer, origin=client.origin)[0] == 200
    found = {(kind, data.get("answer", data.get("code"))) for kind, data, _ in received(client, 3 + len(known))}
    assert found >= {("gone", code), ("answer", "a")}
    left = result(client, "offer", **OFFER, hold=True)["code"]
    client.evaluate("send(new Uint8Array(1))")
    assert client.evaluate("ended") == 1003
    until(lambda: left not in [each["code"] for each in listed(server, client.origin)])


@pytest.mark.parametrize("kind", PROXIES)
def test_bare_websocket_works_from_a_page_over_http2(kind, start, start_proxy, profiles):
    server = start("--trusted-proxies", "127.0.0.1")
    proxy = start_proxy(kind, server.port)
    page = profiles.open(f"{proxy.url}/demo", ignore_https_errors=True)
    assert page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"
    page.evaluate(f"() => {{ {SCRIPT} }}")
    client = Scripted(page.evaluate, proxy.url)
    assert client.connect(proxy.url.replace("http", "ws", 1) + "/ws") == "signal.v1"
    result(client, "subscribe", topic="lobby")
    code = result(client, "offer", **OFFER)["code"]
    assert received(client, 1)[0][1]["code"] == code
    server.stop()
    assert client.evaluate("ended") == 1012
