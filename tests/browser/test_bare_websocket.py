"""The interface over WebSockets of other makes: Chromium's and Firefox's own, npm's `ws`, Python's `aiohttp`."""

import asyncio
import json
import signal
import threading
from pathlib import Path

import pytest
from bench import npm
from support.browsers import until
from support.certificates import make_pair
from support.node import Node
from support.paths import TESTS
from support.proxies import PROXIES

aiohttp = pytest.importorskip("aiohttp")

pytest_plugins = ["support.browser_fixtures"]

SCRIPT = Path(__file__).with_name("websocket.js").read_text()
BOUND_S = 30
ORIGIN = "https://app.example"
SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


class Scripted:
    """A client that is websocket.js.

    Args:
        evaluate: the value of an expression, a promise's when it is settled.
        origin: of its page.
        options: of its WebSocket, beside URL and subprotocol.
    """

    def __init__(self, evaluate, origin, *options):
        self.evaluate, self.origin, self._options = evaluate, origin, options

    def connect(self, url):
        """Open a connection; the subprotocol."""
        return self.evaluate(f"connect({', '.join(map(json.dumps, [url, 'signal.v1', *self._options]))})")

    def call(self, method, **params):
        """Send a request; its response."""
        return self.evaluate(f"call({json.dumps(method)}, {json.dumps(params)})")

    def send_bytes(self):
        """Send what is no text."""
        self.evaluate("send(new Uint8Array(1))")

    def events(self):
        """What subscriptions of the last connection have told."""
        return self.evaluate("events")

    def ended(self):
        """Wait for the end of the connection; its code."""
        return self.evaluate("ended")


class Aiohttp:
    """A client that is aiohttp's, on a loop of its own, for that of the tests is Playwright's."""

    origin = ORIGIN

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._session = self._run(self._open())

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(BOUND_S)

    async def _open(self):
        return aiohttp.ClientSession()

    def connect(self, url):
        """Open a connection; the subprotocol."""
        self._told, self._asked = [], {}
        self._socket = self._run(self._session.ws_connect(url, origin=ORIGIN, protocols=["signal.v1"]))
        self._reading = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return self._socket.protocol

    async def _read(self):
        async for message in self._socket:
            found = message.json()
            if found.get("method") == "event":
                self._told.append(found["params"])
            else:
                self._asked[found["id"]].set_result(found)
        for waiting in self._asked.values():
            waiting.cancel()
        return self._socket.close_code

    def call(self, method, **params):
        """Send a request; its response."""
        return self._run(self._call(method, params))

    async def _call(self, method, params):
        id_ = len(self._asked)
        self._asked[id_] = self._loop.create_future()
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        await self._socket.send_str(json.dumps(message, ensure_ascii=False))
        return await self._asked[id_]

    def send_bytes(self):
        """Send what is no text."""
        self._run(self._socket.send_bytes(b"\0"))

    def events(self):
        """What subscriptions of the last connection have told."""
        return list(self._told)

    def ended(self):
        """Wait for the end of the connection; its code."""
        return self._reading.result(BOUND_S)

    def close(self):
        """End the loop."""
        self._run(self._session.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def page(site):
    """The address of a page of another origin than the server's."""
    site.pages["/websocket"] = f"<!DOCTYPE html><title>A bare WebSocket</title><script>{SCRIPT}</script>"
    return f"{site.origin}/websocket"


@pytest.fixture
def make_chromium(profiles, site, page):
    """A function that makes a Chromium on that page."""
    return lambda **options: Scripted(profiles.open(page, **options).evaluate, site.origin)


@pytest.fixture
def client(request):
    """The client that a test is for."""
    return request.getfixturevalue(f"made_{request.param}")


@pytest.fixture
def made_chromium(make_chromium):
    """A Chromium."""
    return make_chromium()


@pytest.fixture
def made_firefox(firefox, site, page):
    """A Firefox."""
    firefox.goto(page)
    return Scripted(firefox.evaluate, site.origin)


@pytest.fixture
def made_ws(tmp_path):
    """A program of Node.js with the package `ws`."""
    (tmp_path / "node_modules").symlink_to(npm.node_modules(TESTS / "generated"))
    module = tmp_path / "websocket.mjs"
    module.write_text(f'import {{ WebSocket }} from "ws";\n{SCRIPT}')
    node = Node(module)
    yield Scripted(node.evaluate, ORIGIN, {"origin": ORIGIN})
    assert node.close() == 0


@pytest.fixture
def made_aiohttp():
    """A Python program with aiohttp."""
    made = Aiohttp()
    yield made
    made.close()


def result(client, method, **params):
    """The result of a request that must succeed."""
    response = client.call(method, **params)
    assert "result" in response, response
    return response["result"]


def told(client, number):
    """Wait for so many events that are more than a cursor: type, data, cursor."""

    def found():
        events = [each for each in client.events() if "type" in each]
        return events if len(events) >= number else None

    events = until(found)
    assert len(events) == number
    return [(each["type"], each["data"], each["cursor"]) for each in events]


@pytest.mark.parametrize(
    "client", ["chromium", "firefox", pytest.param("ws", marks=pytest.mark.slow), "aiohttp"], indirect=True
)
def test_over_restarts(client, start):
    """Connects, calls, subscribes; after a stop and a kill it goes on where it was, and holds what it has held."""
    flags = ("--hold-grace-ms", 100)
    server = start(*flags)
    url, port = server.url.replace("http", "ws", 1) + "/ws", server.url.rpartition(":")[2]

    def publish(topic="lobby"):
        status, found = server.call(f"/{topic}/offer", {"info": "i", "offer": "o"}, origin=client.origin)
        assert status == 200
        return found["code"]

    assert client.connect(url) == "signal.v1"
    assert result(client, "health")["status"] == "ok"
    assert client.call("poll", code="nonsense", side="offerer")["error"]["code"] == 404
    result(client, "subscribe", topic="lobby")
    code = result(client, "offer", **OFFER | {"offer": "é😀" * 20_000}, secret=SECRET, hold=True)["code"]
    other = publish()
    events = told(client, 2)
    assert [data["code"] for _, data, _ in events] == [code, other]
    assert events[0][1]["offer"] == "é😀" * 20_000
    cursor = events[-1][2]
    for number, close_code in ((signal.SIGTERM, 1012), (signal.SIGKILL, 1006)):
        server.stop(number)
        assert client.ended() == close_code
        server = start(*flags, port=port)
        missed = publish()
        client.connect(url)
        assert "expiresAt" in result(client, "hold", code=code, secret=SECRET)
        result(client, "subscribe", topic="lobby", since=cursor)
        ((kind, data, cursor),) = told(client, 1)
        assert (kind, data["code"]) == ("session", missed)
    result(client, "subscribe", code=code, side="offerer", secret=SECRET)
    answer = {"code": code, "side": "answerer", "answer": "a"}
    assert server.call("/answer", answer, origin=client.origin)[0] == 200
    found = {(kind, data.get("answer", data.get("code"))) for kind, data, _ in told(client, 3)}
    assert found == {("session", missed), ("gone", code), ("answer", "a")}
    left = result(client, "offer", **OFFER, hold=True)["code"]
    client.send_bytes()
    assert client.ended() == 1003
    until(
        lambda: (
            left not in [each["code"] for each in server.call("/lobby/sessions", origin=client.origin)[1]["sessions"]]
        )
    )


@pytest.mark.parametrize("kind", PROXIES)
def test_behind_http2(kind, start, profiles, tmp_path):
    """From a page that a proxy has sent over HTTP/2 it works, whether over that connection or one of its own."""
    server = start("--trusted-proxies", "127.0.0.1")
    (tmp_path / "proxy").mkdir()
    proxy = PROXIES[kind](tmp_path / "proxy", make_pair(tmp_path), int(server.url.rpartition(":")[2]))
    try:
        page = profiles.open(f"{proxy.url}/demo", ignore_https_errors=True)
        assert page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"
        page.evaluate(f"() => {{ {SCRIPT} }}")
        client = Scripted(page.evaluate, proxy.url)
        assert client.connect(proxy.url.replace("http", "ws", 1) + "/ws") == "signal.v1"
        result(client, "subscribe", topic="lobby")
        code = result(client, "offer", **OFFER)["code"]
        assert told(client, 1)[0][1]["code"] == code
        server.stop()
        assert client.ended() == 1012
    finally:
        proxy.stop()
