"""The protocols of PeerJS, y-webrtc and WebTorrent trackers, next to the original servers from npm.

Each original serves the same raw clients in alternation, so that other load on the machine affects both.
"""

import asyncio
import hashlib
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import uvloop
from btclib_secp256k1 import ssa, xonly
from support.redis_servers import free_port

from . import npm, peers, processes
from .figures import Bench, ratio
from .peerjs import Meeting, PeerJs
from .processes import APART, Server, apart
from .sockets import WebSocket, frame, open_many

PACKAGES = processes.ROOT / "tests" / "libraries"
IDLE = "protocols: memory of an idle connection"
PART = "protocols: CPU of the whole server, to that of the original"
SUBSCRIBERS = 10
SWARM = 50
OFFERS = 3
CROWD = 1000
LOBBY = 8
WARM = 3  # unmeasured turns, because Node.js compiles frequent code
SDP = "v=0\r\n" + "a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host\r\n" * 20
INFO_HASH = "aaaaabbbbbcccccddddÿ"
PROBE_PAUSE_S = 0.002


class Original(Server):
    """A server of an npm package, on a free port.

    Args:
        arguments: the arguments of Node.js, with PORT for the port, and PACKAGES for the folder of the packages.
        log: the file for its output.
        started: a text that it prints when it listens.
    """

    def __init__(self, arguments: list[str], log: Path, started: str) -> None:
        self._port = free_port()
        self._started = started
        values = {"PORT": str(self._port), "PACKAGES": str(npm.node_modules(PACKAGES))}
        for name, value in values.items():
            arguments = [argument.replace(name, value) for argument in arguments]
        super().__init__(["node", *arguments], log, {"PORT": values["PORT"], "HOST": "127.0.0.1"})

    def _listening(self) -> str | None:
        return f"http://127.0.0.1:{self._port}" if self._started in self.log() else None


def y_webrtc(where: Path) -> Server:
    return Original(["PACKAGES/y-webrtc/bin/server.js"], where / "y-webrtc.log", "running on")


TRACKER = """
import Server from "PACKAGES/bittorrent-tracker/server.js"
const server = new Server({ udp: false, http: false, ws: true })
server.listen(PORT, "127.0.0.1", () => console.log("listening"))
"""  # the command of the package also needs WebRTC in Node.js


def tracker(where: Path) -> Server:
    return Original(["--input-type=module", "-e", TRACKER], where / "tracker.log", "listening")


class Client(WebSocket):
    """A client that counts its messages."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.expected: tuple[int, asyncio.Future[None]] | None = None
        self.last_s = 0.0

    def arrived(self, text: bytes) -> None:
        self.messages += 1
        self.last_s = time.perf_counter()
        if self.expected is not None and self.messages >= self.expected[0] and not self.expected[1].done():
            self.expected[1].set_result(None)

    async def received(self, count: int) -> None:
        """Wait until `count` messages have arrived in total."""
        if self.messages < count:
            self.expected = count, asyncio.get_running_loop().create_future()
            await self.expected[1]


async def connect(base: str, path: str, count: int, first: Callable[[int], object] | None = None) -> list[Client]:
    """Open connections, and send a first message on each."""
    clients = await open_many(base, count, Client, path)
    if first is not None:
        for number, client in enumerate(clients):
            client.send(frame(orjson.dumps(first(number))))
    return clients


# One turn of each protocol: `count` operations, complete when all messages have arrived.

Turn = Callable[[int], Awaitable[None]]


async def meet(base: str) -> Turn:
    draws = iter(range(1_000_000_000))

    async def turn(count: int) -> None:
        meetings = [Meeting(base, peers.pair(next(draws))) for _ in range(count)]
        for meeting in meetings:
            await meeting.broker()

    return turn


SIGNAL = {"type": "signal", "to": "b" * 36, "from": "a" * 36, "signal": {"type": "offer", "sdp": SDP}}
PUBLICATION = frame(orjson.dumps({"type": "publish", "topic": "room", "data": SIGNAL}))


async def subscribers(base: str) -> list[Client]:
    """Return clients of y-webrtc in one room, which have got one message."""
    clients = await connect(base, "/y-webrtc", SUBSCRIBERS, lambda number: {"type": "subscribe", "topics": ["room"]})
    for client in clients:
        client.send(frame(b'{"type":"ping"}'))
        await client.received(1)
    return clients


async def publish(base: str) -> Turn:
    clients = await subscribers(base)

    async def turn(count: int) -> None:
        expected = clients[0].messages + count
        for _ in range(count):
            clients[0].send(PUBLICATION)
        await asyncio.gather(*(client.received(expected) for client in clients))

    return turn


async def topic_subscribers(base: str) -> list[Client]:
    """Return clients of Nostr with one topic, which have got one message."""
    clients = await connect(base, "/nostr", SUBSCRIBERS, lambda number: ["REQ", "a" * 64, {"#x": ["room"]}])
    for client in clients:
        await client.received(1)
    return clients


class Member(Client):
    """A member of a room of RxDB or matchbox, and its id, which is in its first message."""

    def __init__(self) -> None:
        super().__init__()
        self.id = ""

    def arrived(self, text: bytes) -> None:
        self.id = self.id or next(value for value in orjson.loads(text).values() if value != "init")
        super().arrived(text)

    def signal(self, protocol: str, receiver: str) -> None:
        """Send another member a signal with the size of an offer."""
        ids = {"senderPeerId": self.id, "receiverPeerId": receiver}
        message = {"type": "signal", "room": "room 0", **ids, "data": SIGNAL}
        if protocol == "matchbox":
            message = {"Signal": {"receiver": receiver, "data": SIGNAL}}
        self.send(frame(orjson.dumps(message)))


ROOMS = {"RxDB": "/rxdb", "matchbox": "/matchbox/room-{}"}


async def members(base: str, protocol: str, count: int, room: int = 0) -> list[Member]:
    entered: list[Member] = []
    for _ in range(count):
        (member,) = await open_many(base, 1, Member, ROOMS[protocol].format(room))
        await member.received(1)
        if protocol == "RxDB":
            member.send(frame(orjson.dumps({"type": "join", "room": f"room {room}"})))
            await member.received(2)
        entered.append(member)
    return entered


def signed_event() -> bytes:
    """Return the frame of a Nostr event with the content of `PUBLICATION`, signed with the key 1."""
    content = orjson.dumps(SIGNAL).decode()
    fields = {"pubkey": xonly.from_prvkey(1)[0].hex(), "created_at": 1, "kind": 20_001}
    fields |= {"tags": [["x", "room"]], "content": content}
    digest = hashlib.sha256(orjson.dumps([0, *fields.values()])).digest()
    return frame(orjson.dumps(["EVENT", fields | {"id": digest.hex(), "sig": ssa.sign(digest, 1).hex()}]))


def announcement(number: int, **fields: object) -> dict:
    return {"action": "announce", "info_hash": INFO_HASH, "peer_id": f"-WW0000-{number:012}", "left": 1} | fields


async def announce(base: str) -> Turn:
    clients = await connect(base, "/announce", SWARM, lambda number: announcement(number, event="started"))
    for client in clients:
        await client.received(1)
    offers = [{"offer": {"type": "offer", "sdp": SDP}, "offer_id": f"{number:020}"} for number in range(OFFERS)]
    announced = [frame(orjson.dumps(announcement(number, offers=offers))) for number in range(SWARM)]

    async def turn(count: int) -> None:
        for number in range(count):
            client = clients[number % SWARM]
            before = client.messages
            client.send(announced[number % SWARM])
            while client.messages == before:
                await client.received(before + 1)

    return turn


@dataclass
class Protocol:
    """A protocol to measure.

    Attributes:
        operation: the name of the operation.
        count: the number of operations of a turn, in a full run.
        most: the target, as a ratio to the original.
        original: returns the original server, given the folder of its log.
        prepare: returns a function that runs a turn.
        idle_path: the path of an idle connection, with its number.
        idle: the first message of an idle connection.
    """

    operation: str
    count: int
    most: float
    original: Callable[[Path], Server]
    prepare: Callable[[str], Awaitable[Turn]]
    idle_path: str
    idle: Callable[[int], dict] | None


def described() -> dict[str, Protocol]:
    peerjs_path = "/peerjs?key=peerjs&id=peer-{0}&token=token-{0}&version=1.5.5"
    return {
        "PeerJS": Protocol("a pair", 200, 1.0, lambda where: PeerJs(where / "peerjs.log"), meet, peerjs_path, None),
        "y-webrtc": Protocol(
            *(f"a message to {SUBSCRIBERS} subscribers", 1000, 1.0, y_webrtc, publish, "/y-webrtc"),
            lambda number: {"type": "subscribe", "topics": [f"room-{number}"]},
        ),
        "tracker": Protocol(
            *(f"an announcement with {OFFERS} offers in a swarm of {SWARM}", 1000, 1.5, tracker, announce, "/announce"),
            lambda number: announcement(number, info_hash=f"{number:020}"),
        ),
    }


def protocols(bench: Bench) -> None:
    with processes.many_files() as most:
        for name, protocol in described().items():
            _cpu(bench, name, protocol)
            _memory(bench, name, protocol, min(bench.size.idle, most))
        for name in ROOMS:
            with bench.server() as server:
                used = uvloop.run(_idle_members(server, name, min(bench.size.idle, most) // LOBBY))
            title = f"{name}: a member of a room of {LOBBY}"
            bench.add(IDLE, title, used / 1024, "KiB", most=8, judged=bench.whole)
    with bench.server() as server, apart(server):
        uvloop.run(_crowd(bench, server))


def _cpu(bench: Bench, name: str, protocol: Protocol) -> None:
    count = max(SWARM, protocol.count * bench.size.protocol_turns // 10)
    with ExitStack() as stack:
        servers = [stack.enter_context(bench.server()), stack.enter_context(protocol.original(bench.where))]
        stack.enter_context(apart(*servers))
        used_s = uvloop.run(_turns(servers, protocol.prepare, count, bench.size.protocol_turns))
    ours, theirs = ([used / count * 1e6 for used in used_s[server]] for server in servers)
    note = f"{count} in each of {len(ours)} turns; {APART}. The reference is the original server"
    title, ours_us, theirs_us = f"{name}: {protocol.operation}", statistics.median(ours), statistics.median(theirs)
    bench.add(PART, title, ours_us, "µs", reference=theirs_us, note=note)
    bench.add(PART, f"{title}, to the original", ratio(ours, theirs), "", most=protocol.most)


async def _turns(
    servers: list[Server], prepare: Callable[[str], Awaitable[Turn]], count: int, turns: int
) -> dict[Server, list[float]]:
    used_s: dict[Server, list[float]] = {server: [] for server in servers}
    prepared = {server: await prepare(server.base) for server in servers}
    for number in range(WARM + turns):
        for server, turn in prepared.items():
            before_s = server.cpu_s()
            await turn(count)
            if number >= WARM:
                used_s[server].append(server.cpu_s() - before_s)
    return used_s


def _memory(bench: Bench, name: str, protocol: Protocol, count: int) -> None:
    used = []
    for start in (lambda: bench.server(), lambda: protocol.original(bench.where)):
        with start() as server:
            used.append(uvloop.run(_idle(server, protocol, count)) / 1024)
    ours, theirs = used
    add = partial(bench.add, IDLE, judged=bench.whole)
    note = f"{count} connections, in private resident memory. The reference is the original server"
    add(f"{name}: an idle connection", ours, "KiB", most=8, reference=theirs, note=note)
    add(f"{name}: an idle connection, to the original", ours / theirs, "", most=1.0)


async def _idle(server: Server, protocol: Protocol, count: int) -> float:
    before_bytes = server.memory_bytes()
    clients = await connect(server.base, protocol.idle_path, count, protocol.idle)
    await asyncio.sleep(2)
    each = (server.memory_bytes() - before_bytes) / count
    for client in clients:
        client.abort()
    return each


async def _idle_members(server: Server, protocol: str, rooms: int) -> float:
    entered = await members(server.base, protocol, 1)
    before_bytes = server.memory_bytes()
    for room in range(1, 1 + rooms):
        entered += await members(server.base, protocol, LOBBY, room)
    await asyncio.sleep(2)
    each = (server.memory_bytes() - before_bytes) / (len(entered) - 1)
    for member in entered:
        member.abort()
    return each


async def _crowd(bench: Bench, server: Server) -> None:
    """Publish to a large room, and measure the delay of other requests."""
    crowd = min(CROWD, bench.size.idle)
    room = {"type": "subscribe", "topics": ["room"]}
    clients = await connect(server.base, "/y-webrtc", crowd, lambda number: room)
    (prober,) = await connect(server.base, "/y-webrtc", 1)
    message = frame(orjson.dumps({"type": "publish", "topic": "room", "data": {"type": "announce", "from": "a" * 36}}))
    arrivals_s, longest_s = [], []
    for number in range(bench.size.protocol_turns):
        await asyncio.sleep(0.3)
        done = asyncio.gather(*(client.received(number + 1) for client in clients))
        began_s = time.perf_counter()
        clients[0].send(message)
        late_s = 0.0
        while not done.done():
            asked_s = time.perf_counter()
            prober.send(frame(b'{"type":"ping"}'))
            await prober.received(prober.messages + 1)
            late_s = max(late_s, time.perf_counter() - asked_s)
            await asyncio.sleep(PROBE_PAUSE_S)
        arrivals_s.append(max(client.last_s for client in clients) - began_s)
        longest_s.append(late_s)
    add = partial(bench.add, "protocols: a message to a large room", unit="ms", judged=bench.whole)
    add(f"one of {crowd}, until the last has it", statistics.median(arrivals_s) * 1000, most=100, note=APART)
    add("the longest that another request takes during it", statistics.median(longest_s) * 1000, most=20)
