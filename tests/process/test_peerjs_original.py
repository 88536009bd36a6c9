"""The same PeerJS script against this server and the original one from npm, with the list of differences."""

import asyncio
import contextlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from bench.peerjs import PeerJs
from support.command import ORIGIN
from support.peerjs import PeerSocket, connect_peer
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = [pytest.mark.slow, pytest.mark.needs("node")]

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
LOST_S = 1.0  # how long to wait for a message that one of the servers never delivers

# By step: what the original server does, what this one does, and why.
DEVIATIONS = {
    "GET /peerjs/id": (
        [200, ORIGIN, "text/html", "UUID"],
        [200, ORIGIN, "text/plain", "UUID"],
        "an id is text; the client ignores the type",
    ),
    "GET /another/id": (
        [200, ORIGIN, "text/html", "UUID"],
        [200, ORIGIN, "text/plain", "UUID"],
        "an id is text; the client ignores the type",
    ),
    "GET /peerjs/nothing": (
        [404, ORIGIN, "text/html"],
        [404, ORIGIN, "application/json"],
        "errors of all paths are JSON",
    ),
    "another key": (
        ["ERROR Invalid key provided", "closed 1005"],
        ["OPEN"],
        "any key is accepted and is part of the scope",
    ),
    "another path": (["HTTP 400"], ["HTTP 404"], "an unknown path, like that of other requests"),
    "same token: the later connection": ([], ["OPEN"], "OPEN is also sent on a takeover"),
    "same token: the earlier connection": (
        ["open"],
        ["closed 1000"],
        "the replaced connection is closed",
    ),
    "invalid JSON, then an offer": (
        [],
        [["OFFER", "D", "B", "after junk"]],
        "invalid JSON is ignored; in the original the connection hangs",
    ),
}


class Exchange:
    """The script, and what each step received."""

    def __init__(self, url):
        self.url, self.port = url, int(url.rpartition(":")[2])
        self.steps = {}
        self._markers = 0

    async def fetch(self, target, method="GET", *, body=True):
        request = urllib.request.Request(self.url + target, headers={"Origin": ORIGIN}, method=method)

        def respond():
            try:
                return urllib.request.urlopen(request)
            except urllib.error.HTTPError as error:
                return error

        with await asyncio.to_thread(respond) as response:
            text = UUID.sub("UUID", response.read().decode())
            kind = response.headers.get_content_type() if "Content-Type" in response.headers else None
            found = [response.status, response.headers["Access-Control-Allow-Origin"], kind]
            self.steps[f"{method} {target}"] = [*found, text] if body else found

    async def ids(self):
        with await asyncio.to_thread(
            urllib.request.urlopen, urllib.request.Request(self.url + "/peerjs/peers", headers={"Origin": ORIGIN})
        ) as response:
            return sorted(json.load(response))

    async def until_ids(self, *expected):
        async with asyncio.timeout(30):
            while await self.ids() != [*expected]:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def connect(self, **query):
        return await connect_peer(self.port, **query)

    async def open(self, peer_id, token="token"):
        peer = await self.connect(key="peerjs", id=peer_id, token=token)
        assert await peer.next() == {"type": "OPEN"}
        return peer

    async def received(self, peer: PeerSocket, own_id):
        """Return the messages that arrive before one of the client to itself, which it sends now."""
        self._markers += 1
        marker = f"marker {self._markers}"
        await peer.send("OFFER", own_id, payload=marker)
        messages = []
        while (message := await peer.next()).get("payload") != marker:
            messages.append(flat(message))
        return messages

    async def until_closed(self, name, **query):
        peer = await self.connect(**query)
        step = self.steps[name] = []
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            while True:
                async with asyncio.timeout(LOST_S):
                    step.append(flat(json.loads(await peer.socket.recv())))
        if peer.socket.close_code is not None:
            step.append(f"closed {peer.socket.close_code}")
        await peer.close()

    async def run(self):
        steps = self.steps
        await self.fetch("/peerjs/id")
        await self.fetch("/another/id")
        await self.fetch("/peerjs/peers")
        await self.fetch("/peerjs/nothing", body=False)

        a = await self.open("A")
        await self.until_closed("without an id", key="peerjs", token="t")
        await self.until_closed("without a token", key="peerjs", id="X")
        await self.until_closed("without a key", id="X", token="t")
        await self.until_closed("another key", key="another", id="X", token="t")
        await self.until_closed("taken", key="peerjs", id="A", token="another")
        try:
            await self.connect_at("/another", key="peerjs", id="X", token="t")
        except InvalidStatus as refused:
            steps["another path"] = [f"HTTP {refused.response.status_code}"]

        await a.send("OFFER", "B", payload={"sdp": "v=0"})
        await a.send("CANDIDATE", "B", payload={"candidate": {}})
        await a.send("HEARTBEAT")
        await a.send("UNKNOWN", "B", payload=1)
        await a.send("EXPIRE", "B")
        await a.socket.send("[1]")
        steps["A waits for B"] = await self.received(a, "A")
        b = await self.open("B")
        steps["B gets what was kept"] = await self.until_received(b, "B", 2)
        await b.send("ANSWER", "A", payload={"x": 1}, src="forged", extra=1)
        await b.send("OFFER", "A")
        steps["B itself"] = await self.received(b, "B")
        steps["A gets the answer"] = await self.received(a, "A")
        steps["ids"] = await self.ids()

        await a.send("LEAVE", "C")
        for kind in ("OFFER", "CANDIDATE", "ANSWER"):
            await a.send(kind, "C", payload=1)
        await a.send("OFFER", "D", payload=1)
        steps["absent ids"] = sorted([flat(await a.next()) for _ in range(2)])
        steps["after EXPIRE"] = await self.received(a, "A")

        later = await self.connect(key="peerjs", id="A", token="token")
        await later.send("HEARTBEAT")
        steps["same token: the later connection"] = await self.received(later, "A")
        try:
            await a.send("OFFER", "B", payload="by the earlier connection")
            await asyncio.wait_for(a.socket.wait_closed(), LOST_S)
            steps["same token: the earlier connection"] = [f"closed {a.socket.close_code}"]
        except TimeoutError:
            steps["same token: the earlier connection"] = ["open"]
        except ConnectionClosed as closed:
            steps["same token: the earlier connection"] = [f"closed {closed.rcvd.code}"]
        await self.received(b, "B")  # which may contain what the earlier connection sent
        await a.close()
        steps["ids after the takeover"] = await self.ids()
        await b.send("OFFER", "A", payload="to which one")
        await self.received(b, "B")
        steps["the later connection has the id"] = await self.received(later, "A")

        await later.send("LEAVE", "B")
        await self.received(later, "A")
        steps["LEAVE to B"] = await self.received(b, "B")
        await later.send("LEAVE")
        await self.until_ids("B")

        d = await self.open("D")
        await d.socket.send("nonsense")
        await d.send("OFFER", "B", payload="after junk")
        steps["invalid JSON, then an offer"] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOST_S):
                steps["invalid JSON, then an offer"].append(flat(await b.next()))
        await b.close()
        await self.until_ids("D")
        for peer in (d, later):
            peer.abort()
            await peer.closed()
        return steps

    async def until_received(self, peer, own_id, count):
        messages = [flat(await peer.next()) for _ in range(count)]
        return messages + await self.received(peer, own_id)

    async def connect_at(self, path, **query):
        return await connect_peer(self.port, prefix=path, **query)


def flat(message):
    """Return a message of the server as a text, and one of a peer as a list."""
    if "src" in message:
        assert set(message) <= {"type", "src", "dst", "payload"}
        return [message[name] for name in ("type", "src", "dst", "payload") if name in message]
    return " ".join([message["type"], *message.get("payload", {}).values()])


async def test_differences_from_the_original_server_are_those_listed(start, tmp_path):
    with PeerJs(Path(tmp_path) / "log", "--allow_discovery") as original:
        theirs = await Exchange(original.base).run()
    ours = await Exchange(start("--peerjs-discovery").url).run()
    assert list(theirs) == list(ours)
    found = {step: (theirs[step], ours[step]) for step in ours if theirs[step] != ours[step]}
    assert found == {step: (original, own) for step, (original, own, _) in DEVIATIONS.items()}
    assert theirs["B gets what was kept"] == [
        ["OFFER", "A", "B", {"sdp": "v=0"}],
        ["CANDIDATE", "A", "B", {"candidate": {}}],
    ]
    assert theirs["absent ids"] == [["EXPIRE", "C", "A"], ["EXPIRE", "D", "A"]]
