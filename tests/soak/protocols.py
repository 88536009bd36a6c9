"""Peers of PeerJS, y-webrtc, ws-relay and WebTorrent trackers. Each checks that its messages arrive at the others."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable

import orjson
from bench.sockets import WebSocket, open_socket, upgrade

from .client import BREAKS, PATIENCE_S

ORIGIN = "https://one.example"
GROUP = 6  # members of a room or a swarm
OFFERS = 2  # of an announcement
ARRIVAL_S = 30.0  # bound for the arrival of a message and of its answer
CLOSING_S = 1.0  # a server closes a connection at most this long after the error that is the cause
SDP = "v=0\r\n" + "a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host\r\n" * 10


class Crowd:
    """All peers of these protocols: `counts` of each kind. `groups` has the members of each room and swarm."""

    def __init__(self, soak, counts: "dict[type[Member], int]") -> None:
        self.tally_of, self.done, self.pause = soak.tally_of, soak.world.done, soak.pause
        self.groups: defaultdict[tuple, list[Member]] = defaultdict(list)
        self.numbers = itertools.count()
        for kind, count in counts.items():
            for number in range(count):
                member = kind(self, number)
                self.groups[kind, member.group].append(member)

    async def live(self) -> None:
        async with asyncio.TaskGroup() as living:
            for member in itertools.chain(*self.groups.values()):
                living.create_task(member.live())


class Member:
    """A peer that connects, exchanges messages with the others of its group, and leaves, again and again.

    A kind has a `path`. It sends its first messages in `begin`, and others in `act`, which waits for their arrival. It
    handles messages in `received`. `ready` is set while the server has what others need to reach this peer.
    """

    protocol: str

    def __init__(self, crowd: Crowd, number: int) -> None:
        self.crowd, self.number = crowd, number
        self.group = number // GROUP
        self.rng = random.Random(f"{self.protocol} {number}")
        self.ready = asyncio.Event()
        self.socket: WebSocket | None = None
        self.tally = crowd.tally_of(number)
        self._awaited: dict[object, tuple[set, asyncio.Event]] = {}  # of what it has sent: what has not arrived

    async def live(self) -> None:
        """Connect, act for a while and disconnect, cleanly or not, until cancelled."""
        while True:
            await asyncio.sleep(self.rng.uniform(0.1, 1))
            self.tally = self.crowd.tally_of(self.number)
            opened_s = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    self.socket = await self._connect()
            except BREAKS as error:
                self.tally.broken(self.protocol, f"handshake: {error!r}", opened_s, opened_s)
                continue
            try:
                await self._stay(self.socket, opened_s)
            finally:
                self.ready.clear()
                self.socket.abort()

    async def _connect(self) -> WebSocket:
        base = f"http://127.0.0.1:{self.tally.port}"
        return await open_socket(base, upgrade(self.path, ORIGIN), on_text=self._understand)

    async def _stay(self, socket: WebSocket, opened_s: float) -> None:
        acting = asyncio.create_task(self._act())
        try:
            life_s = self.crowd.pause * self.rng.uniform(6, 30)
            ended, _ = await asyncio.wait([acting, socket.ended], timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            acting.cancel()
        if acting in ended:
            acting.result()
        elif ended:
            self.tally.broken(self.protocol, f"closed with {socket.code}", opened_s, time.monotonic() - CLOSING_S)
        elif self.rng.random() < 0.5:
            self.ready.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await socket.close()
        else:
            self.crowd.done[f"{self.protocol}: connections lost"] += 1

    async def _act(self) -> None:
        began_s, socket = time.monotonic(), self.socket
        self.begin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ARRIVAL_S):
                await self.ready.wait()
        if not self.ready.is_set():
            self.tally.broken(self.protocol, "no response to the first message", began_s, began_s)
            socket.abort()
            return
        while True:
            await asyncio.sleep(self.crowd.pause * self.rng.uniform(1, 3))
            await self.act()

    def send(self, message: dict) -> None:
        if self.socket is not None:
            self.socket.send_json(message)

    def _understand(self, text: bytes) -> None:
        try:
            self.received(orjson.loads(text))
        except (KeyError, TypeError, ValueError) as error:
            self.tally.wrong.append(f"{self.protocol}: {text!r} is not understood: {error!r}")

    def expect(self, key: object, parts: Iterable) -> None:
        """Begin to wait for all parts of something."""
        self._awaited[key] = {*parts}, asyncio.Event()

    def arrived(self, key: object, part: object) -> None:
        missing, arrived = self._awaited.get(key, (set(), asyncio.Event()))
        missing.discard(part)
        if not missing:
            arrived.set()

    async def arrival(self, what: str, key: object, members: "Iterable[Member]", *, each: bool = True) -> None:
        """Wait for all parts of something, which the members must have received or sent.

        Their absence is accepted if a connection has ended, or if a server or Redis was unavailable. If `each` member
        is a part, only the connections of the missing ones and that of the sender matter.
        """
        since_s, sockets = time.monotonic(), {member: member.socket for member in members}
        own = self.socket
        missing, arrived = self._awaited[key]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ARRIVAL_S):
                    await arrived.wait()
        finally:
            del self._awaited[key]
        steady = {member for member, socket in sockets.items() if member.steady(socket, since_s)}
        if arrived.is_set():
            self.crowd.done[f"{self.protocol}: {what}"] += 1
        elif self.steady(own, since_s) and (missing & steady if each else len(steady) == len(sockets)):
            self.tally.wrong.append(f"{self.protocol}: never within {ARRIVAL_S:g} s: {what}")
        else:
            self.tally.excused[self.protocol] += 1

    def steady(self, socket: WebSocket | None, since_s: float) -> bool:
        """Return whether the peer had this connection since a time, and its server was available."""
        is_open = socket is not None and self.socket is socket and self.ready.is_set() and not socket.ended.done()
        return is_open and not self.tally.away(since_s, time.monotonic())


class PeerJs(Member):
    """A PeerJS peer. It sends offers to others at any server, and answers theirs."""

    protocol = "PeerJS"

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, number)
        self.group = 0

    @property
    def path(self) -> str:
        return f"/peerjs?key=peerjs&id=peer-{self.number}&token=token-{self.number}&version=1.5.5"

    def begin(self) -> None:
        """Send nothing: the server sends OPEN."""

    async def act(self) -> None:
        other = self.rng.choice(self.crowd.groups[PeerJs, 0])
        self.send({"type": "HEARTBEAT"})
        if other is self or not other.ready.is_set():
            return
        number = next(self.crowd.numbers)
        self.expect(number, [f"peer-{other.number}"])
        payload = {"number": number, "sdp": {"type": "offer", "sdp": SDP}}
        self.send({"type": "OFFER", "dst": f"peer-{other.number}", "payload": payload})
        await self.arrival("offers answered", number, [self, other], each=False)

    def received(self, message: dict) -> None:
        kind = message["type"]
        if kind == "OPEN":
            self.ready.set()
        elif kind == "OFFER":
            self.tally.must(message["dst"] == f"peer-{self.number}", "PeerJS: an offer for another peer arrived")
            payload = {"number": message["payload"]["number"], "sdp": {"type": "answer", "sdp": SDP}}
            self.send({"type": "ANSWER", "dst": message["src"], "payload": payload})
        elif kind == "ANSWER":
            self.arrived(message["payload"]["number"], message["src"])
        elif kind != "EXPIRE":  # the other peer has left
            raise ValueError(kind)


class YPeer(Member):
    """A client of y-webrtc. Everything that it publishes must reach all members of its room."""

    protocol, path, field = "y-webrtc", "/y-webrtc", "data"

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, number)
        self._room = f"room-{self.group}"
        self._heard: set[int] = set()

    def begin(self) -> None:
        self._heard.clear()
        self.send({"type": "subscribe"} | self.subscribed())
        self.send({"type": "ping"})

    def subscribed(self) -> dict:
        return {"topics": [self._room]}

    async def act(self) -> None:
        members = [member for member in self.crowd.groups[type(self), self.group] if member.ready.is_set()]
        number = next(self.crowd.numbers)
        self.expect(number, members)
        data = {"by": self.number, "number": number, "signal": SDP}
        self.send({"type": "publish", "topic": self._room, self.field: data})
        await self.arrival("messages at all members", number, members)

    def received(self, message: dict) -> None:
        if message.get("type") == "pong":
            self.ready.set()
            return
        self.tally.must(message["topic"] == self._room, f"{self.protocol}: a message of another room arrived")
        if self.field == "data":
            # The server of the publisher counts itself, and connections whose end it has not noticed yet.
            clients = message["clients"]
            self.tally.must(1 <= clients <= 2 * GROUP, f"y-webrtc: {clients} clients in a room")
        data = message[self.field]
        publishers = self.crowd.groups[type(self), self.group]
        publisher = next(member for member in publishers if member.number == data["by"])
        self.tally.must(data["number"] not in self._heard, f"{self.protocol}: a message arrived twice")
        self._heard.add(data["number"])
        publisher.arrived(data["number"], self)


class RelayPeer(YPeer):
    """A client of trystero's ws-relay."""

    protocol, field = "ws-relay", "payload"

    def subscribed(self) -> dict:
        return {"topic": self._room}


class Torrent(Member):
    """A member of a swarm. Its offers go to other members, which answer."""

    protocol = "tracker"

    def __init__(self, crowd: Crowd, number: int) -> None:
        super().__init__(crowd, number)
        self._hash = f"{self.group:020}"

    @property
    def path(self) -> str:
        return "/announce" if self.number % 2 else "/tracker"

    def begin(self) -> None:
        self._announce(event="started", left=self.number % 2, offers=[])

    def _announce(self, **fields: object) -> None:
        self.send({"action": "announce", "info_hash": self._hash, "peer_id": f"-WW0000-{self.number:012}", **fields})

    async def act(self) -> None:
        swarm = self.crowd.groups[Torrent, self.group]
        if not all(member.ready.is_set() for member in swarm):
            return  # offers to a member that has just left get no answer
        scrapes = self.rng.random() < 0.2
        self.expect("response", [len(swarm)])
        if scrapes:
            self.send({"action": "scrape", "info_hash": self._hash})
        else:
            ids = [f"{next(self.crowd.numbers):020}" for _ in range(min(OFFERS, len(swarm) - 1))]
            self.expect("offers", ids)
            offers = [{"offer": {"type": "offer", "sdp": SDP}, "offer_id": offer_id} for offer_id in ids]
            self._announce(left=self.number % 2, numwant=OFFERS, offers=offers)
        await self.arrival("responses with all members", "response", swarm, each=False)
        if not scrapes:
            await self.arrival("offers answered", "offers", swarm, each=False)

    def received(self, message: dict) -> None:
        if "failure reason" in message:
            raise ValueError(message["failure reason"])
        if message["action"] == "scrape":
            message = message["files"][self._hash]
        elif message["info_hash"] != self._hash:
            raise ValueError("another swarm")
        if "offer" in message:
            answer = {"type": "answer", "sdp": SDP}
            self._announce(answer=answer, offer_id=message["offer_id"], to_peer_id=message["peer_id"])
        elif "answer" in message:
            self.arrived("offers", message["offer_id"])
        else:
            self.ready.set()
            self.arrived("response", message["complete"] + message["incomplete"])


KINDS = {PeerJs: 0.2, YPeer: 0.12, RelayPeer: 0.08, Torrent: 0.2}
"""The shares of the protocols. The other peers use HTTP and JSON-RPC."""
