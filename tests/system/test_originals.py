"""The same raw exchanges with the original servers of y-webrtc, bittorrent-tracker and PeerJS, and with this server.

The received messages are compared. Each deviation is listed here with its reason.
"""

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.request

import pytest
from bench import originals
from support.y_webrtc import BOUND_S, RawClient
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = [pytest.mark.slow, pytest.mark.needs("node")]

ORIGIN = "https://app.example"
LOST_S = 1.0  # how long to wait for a message that one of the servers never delivers
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
HASH = "aaaabbbbccccddddeeeÿ"
MARKED = "m" * 20
SCRAPE = {"action": "scrape", "info_hash": MARKED}
COUNTS = ("complete", "incomplete")  # of members


class Exchange:
    """An exchange with one server. `transcript` has what each client received, step by step.

    The marker is a function of the client's name.
    """

    def __init__(self, base, marker, is_marker):
        self.base = base
        self.transcript = []
        self._marker, self._is_marker = marker, is_marker
        self._clients = {}
        self._sender = ""

    async def open(self, name, path):
        self._clients[name] = await self._connect(path)

    async def _connect(self, path):
        return await RawClient(self.base.replace("http", "ws") + path, ORIGIN).__aenter__()

    async def try_to_open(self, title, path):
        """Record the status of a refused handshake, or what is received and the close code, if there is one."""
        try:
            client = await self._connect(path)
        except InvalidStatus as refused:
            self.transcript.append((title, [refused.response.status_code]))
        else:
            self.transcript.append((title, await self._hear(client)))
            await client.socket.close()

    async def _hear(self, client):
        """Return what is received until the connection ends, or in some time, and the close code or None."""
        received = []
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            while True:
                received.append(json.loads(await asyncio.wait_for(client.socket.recv(), LOST_S)))
        return [*received, client.socket.close_code]

    async def hear(self, title, name):
        self.transcript.append((title, await self._hear(self._clients[name])))

    async def receive(self, title, name, count):
        """Record as many messages of a client, in any order."""
        self.transcript.append((title, sorted([await self._clients[name].receive() for _ in range(count)], key=str)))

    async def send(self, name, message):
        self._sender = name
        await self._clients[name].send(message)

    async def close(self, name):
        await self._clients.pop(name).socket.close()

    async def step(self, title):
        """Record everything that the clients receive up to the response to a marker, the sender's first.

        The sender sends two, because the tracker of the original responds to some requests later than to the next one.
        """
        received = []
        for name in [self._sender, *sorted(self._clients)]:
            await self.send(name, self._marker(name))
            while not self._is_marker(message := await self._clients[name].receive()):
                received.append((name, message))
        self.transcript.append((title, sorted(received, key=lambda entry: entry[0])))

    async def until(self, name, request, condition):
        async with asyncio.timeout(BOUND_S):
            while True:
                await self.send(name, request)
                if condition(await self._clients[name].receive()):
                    return
                await asyncio.sleep(0.02)

    async def get(self, path, *, typed=False):
        """Record status, text and CORS headers of a GET request, and with `typed` the media type."""
        status, text, headers = await asyncio.to_thread(self.fetch, path)
        cors = headers["Access-Control-Allow-Origin"] in (ORIGIN, "*")
        shown = {"status": status, "text": UUID.sub("UUID", text), "cors": cors}
        shown |= {"type": headers.get_content_type()} if typed else {}
        self.transcript.append((f"GET {path}", shown))

    def fetch(self, path):
        request = urllib.request.Request(self.base + path, headers={"Origin": ORIGIN})
        try:
            response = urllib.request.urlopen(request, timeout=BOUND_S)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, response.read().decode(), response.headers

    def close_all(self):
        for client in self._clients.values():
            client.abort()


async def speak_y_webrtc(exchange):
    await exchange.get("/y-webrtc")
    for name in "ABC":
        await exchange.open(name, "/y-webrtc")
    await exchange.send("A", {"type": "subscribe", "topics": ["room1", "room2", 5, "room1"]})
    await exchange.send("B", {"type": "subscribe", "topics": ["room1"]})
    await exchange.step("subscribe")
    for title, name, message in (
        ("announce", "A", {"topic": "room1", "data": {"type": "announce", "from": "a"}}),
        ("surplus fields", "A", {"topic": "room1", "data": "base64==", "extra": 7, "clients": 99}),
        ("from outside", "B", {"topic": "room2", "data": 1}),
        ("without a subscription", "C", {"topic": "room1", "data": 2}),
        ("without data", "C", {"topic": "room1"}),
        ("without a topic", "C", {"data": 2}),
        ("an empty topic", "C", {"topic": "", "data": 2}),
        ("a room without subscribers", "C", {"topic": "room3", "data": 2}),
    ):
        await exchange.send(name, {"type": "publish", **message})
        await exchange.step(title)
    await exchange.send("B", {"type": "unsubscribe", "topics": ["room1", "room4"]})
    await exchange.step("unsubscribe")
    await exchange.send("A", {"type": "publish", "topic": "room1", "data": 3})
    await exchange.step("after the unsubscription")
    for junk in ({"type": "foo"}, [1], None, {"type": "subscribe"}, {"type": "unsubscribe"}):
        await exchange.send("A", junk)
    await exchange.step("junk")
    await exchange.send("A", b'{"type":"subscribe","topics":["room5"]}')
    await exchange.send("A", b'{"type":"publish","topic":"room5","data":5}')
    await exchange.step("binary messages")
    await exchange.close("B")
    await exchange.until("A", {"type": "publish", "topic": "room1", "data": 4}, lambda message: message["clients"] == 1)


def announce(peer, **fields):
    return {"action": "announce", "info_hash": HASH, "peer_id": f"-{peer * 2}0000-{peer * 12}", **fields}


async def speak_to_tracker(exchange):
    for name in "ABC":
        await exchange.open(name, "/announce")
    offers = [{"offer": {"type": "offer", "sdp": f"o{number}"}, "offer_id": f"{number}" * 20} for number in range(2)]
    passive = announce("A", left=0, offers=[], info_hash="x" * 20)
    answer = {"answer": {"type": "answer", "sdp": "a"}, "offer_id": "0" * 20}
    swarms = [HASH, "y" * 20]
    for title, name, message in (
        ("A starts alone with offers", "A", announce("A", event="started", left=5, offers=offers)),
        ("B starts with an offer", "B", announce("B", event="started", left=0, offers=offers[:1])),
        ("A answers", "A", announce("A", **answer, to_peer_id=announce("B")["peer_id"])),
        ("A answers an unknown peer", "A", announce("A", **answer, to_peer_id="u" * 20)),
        ("an update", "A", announce("A", left=4)),
        ("a passive announcement", "A", passive),
        ("a scrape of one", "A", {"action": "scrape", "info_hash": HASH}),
        ("a scrape of two", "A", {"action": "scrape", "info_hash": swarms}),
        ("completed", "A", announce("A", event="completed", left=0)),
        ("started again", "A", announce("A", event="started", left=9)),
        ("an unknown event", "A", announce("A", event="other")),
        ("a short hash", "A", announce("A", info_hash="short")),
        ("a short id", "A", announce("A", peer_id="short")),
        ("an answer without its peer", "A", announce("A", **answer)),
        ("an unknown action", "A", {"action": "foo"}),
        ("a binary announcement", "A", json.dumps(announce("A", left=0)).encode()),
        ("C joins with offers that lack fields", "C", announce("C", event="started", left=1, offers=[{"fake": 1}] * 2)),
        ("stopped", "A", announce("A", event="stopped")),
        ("stopped again", "A", announce("A", event="stopped")),
        ("left is null", "A", announce("A", event="started", left=None)),
        ("a scrape of all", "A", {"action": "scrape"}),
        ("no JSON", "A", "zz"),
    ):
        await exchange.send(name, message)
        await exchange.step(title)
    await exchange.close("C")
    scrape = {"action": "scrape", "info_hash": HASH}
    await exchange.until("B", scrape, lambda found: sum(found["files"][HASH][name] for name in COUNTS) == 2)


PEERS = "/peerjs?key=peerjs&token=token&id="


def message(kind, dst, payload=1, **more):
    return {"type": kind, "dst": dst, "payload": payload, **more}


async def until_ids(exchange, *ids):
    async with asyncio.timeout(BOUND_S):
        while sorted(json.loads((await asyncio.to_thread(exchange.fetch, "/peerjs/peers"))[1])) != [*ids]:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def speak_peerjs(exchange):
    for path in ("/peerjs/id", "/another/id", "/peerjs/peers", "/peerjs/nothing"):
        await exchange.get(path, typed=True)
    await exchange.open("A", PEERS + "A")
    for title, path in (
        ("without an id", "/peerjs?key=peerjs&token=t"),
        ("without a token", "/peerjs?key=peerjs&id=X"),
        ("without a key", "/peerjs?id=X&token=t"),
        ("another key", "/peerjs?key=another&id=X&token=t"),
        ("taken", "/peerjs?key=peerjs&id=A&token=another"),
        ("another path", "/another/peerjs?key=peerjs&id=X&token=t"),
    ):
        await exchange.try_to_open(title, path)
    for kind, payload in (("OFFER", {"sdp": "v=0"}), ("CANDIDATE", {"candidate": {}}), ("UNKNOWN", 1)):
        await exchange.send("A", message(kind, "B", payload))
    for other in ({"type": "HEARTBEAT"}, {"type": "EXPIRE", "dst": "B"}, [1]):
        await exchange.send("A", other)
    await exchange.step("A waits for B")
    await exchange.open("B", PEERS + "B")
    await exchange.receive("B gets what was kept", "B", 3)
    await exchange.send("B", message("ANSWER", "A", {"x": 1}, src="forged", extra=1))
    await exchange.send("B", {"type": "OFFER", "dst": "A"})
    await exchange.step("B answers")
    await until_ids(exchange, "A", "B")
    for kind in ("LEAVE", "OFFER", "CANDIDATE", "ANSWER"):
        await exchange.send("A", message(kind, "C"))
    await exchange.send("A", message("OFFER", "D"))
    await exchange.receive("absent ids", "A", 2)
    await exchange.step("after EXPIRE")
    await exchange.try_to_open("the same token", PEERS + "A")
    await exchange.hear("the earlier connection", "A")
    await exchange.close("A")
    await until_ids(exchange, "B")
    await exchange.open("A again", PEERS + "A")
    await exchange.send("B", message("OFFER", "A"))
    await exchange.step("the id is free")
    await exchange.send("A again", message("LEAVE", "B"))
    await exchange.step("LEAVE to B")
    await exchange.send("A again", {"type": "LEAVE"})
    await until_ids(exchange, "B")
    await exchange.open("D", PEERS + "D")
    await exchange.send("D", "nonsense")
    await exchange.send("D", message("OFFER", "B"))
    await exchange.hear("invalid JSON, then an offer", "B")


def converse(speak, base, *marker):
    async def run():
        exchange = Exchange(base, *marker)
        try:
            await speak(exchange)
        finally:
            exchange.close_all()
        return dict(exchange.transcript)

    return asyncio.run(run())


def compared(speak, original, ours, tmp_path, *marker):
    """Return the steps of both transcripts that differ, as pairs of what the original and this server sent."""
    with original(tmp_path) as server:
        expected = converse(speak, server.base, *marker)
    actual = converse(speak, ours.url, *marker)
    assert expected.keys() == actual.keys()
    assert sum(bool(step) for step in expected.values()) >= 8
    return {title: (expected[title], actual[title]) for title in expected if expected[title] != actual[title]}


def test_y_webrtc_clients_receive_what_the_original_server_sends(start, tmp_path):
    markers = lambda name: {"type": "ping"}, lambda message: message == {"type": "pong"}
    deviations = compared(speak_y_webrtc, originals.y_webrtc, start(), tmp_path, *markers)
    # The original sends no CORS headers.
    original, ours = deviations.pop("GET /y-webrtc")
    assert original | {"cors": True} == ours
    assert deviations == {}


def test_clients_of_trackers_receive_what_the_original_server_sends(start, tmp_path):
    markers = lambda name: SCRAPE, lambda message: [*message.get("files", {})] == [MARKED]
    deviations = compared(speak_to_tracker, originals.tracker, start(), tmp_path, *markers)
    # Each failure names the action and the hash, because the client of the original closes its connection otherwise.
    for title in ("a short hash", "a short id", "an answer without its peer", "an unknown action"):
        [(name, original)], [(same, ours)] = deviations.pop(title)
        assert name == same
        assert original == {"failure reason": ours["failure reason"]}
        assert ours["action"] == "announce"
    # The text of the JSON parser differs.
    deviations.pop("no JSON")
    # A magnet link sends null for an unknown number, which the original takes for 0.
    [(_, original)], [(_, ours)] = deviations.pop("left is null")
    assert (original["complete"], ours["complete"]) == (original["complete"], original["complete"] - 1)
    # A scrape of all swarms would reveal them.
    [(_, original)], [(_, ours)] = deviations.pop("a scrape of all")
    assert original["files"]
    assert ours["files"] == {}
    assert deviations == {}


def test_peerjs_clients_receive_what_the_original_server_sends(start, tmp_path):
    def original(path):
        return originals.peerjs(path, "--allow_discovery")

    markers = lambda name: message("OFFER", name[0], "marker"), lambda found: found.get("payload") == "marker"
    deviations = compared(speak_peerjs, original, start("--peerjs-discovery"), tmp_path, *markers)
    for path in ("/peerjs/id", "/another/id"):  # an id is text; the client ignores the type
        original, own = deviations.pop(f"GET {path}")
        assert original | {"type": "text/plain"} == own
    original, own = deviations.pop("GET /peerjs/nothing")  # errors of all paths are JSON
    assert (original["status"], own["status"], own["type"]) == (404, 404, "application/json")
    opened = {"type": "OPEN"}
    assert deviations == {
        # Any key is accepted and is part of the scope.
        "another key": ([{"type": "ERROR", "payload": {"msg": "Invalid key provided"}}, 1005], [opened, None]),
        # An unknown path, like that of other requests.
        "another path": ([400], [404]),
        # OPEN is also sent on a takeover, and the replaced connection is closed.
        "the same token": ([None], [opened, None]),
        "the earlier connection": ([None], [1000]),
        # Invalid JSON is ignored. In the original the connection hangs.
        "invalid JSON, then an offer": ([None], [message("OFFER", "B", src="D"), None]),
    }
