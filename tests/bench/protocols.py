"""The protocols of PeerJS, y-webrtc and WebTorrent trackers, next to the original servers from npm.

Each original serves the same raw clients in alternation, so that other load on the machine affects both.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson
import uvloop

from . import originals, peers, processes
from .figures import Bench, alternate, connections_kib, ratio
from .peerjs import Meeting
from .processes import APART, Server, apart
from .sockets import WebSocket, frame, open_many, open_socket, upgrade

IDLE = "protocols: memory of an idle connection"
PART = "protocols: CPU of the whole server, to that of the original"
SUBSCRIBERS = 10
SWARM = 50
OFFERS = 3
LOBBY = 8
WARM = 3  # unmeasured turns, because Node.js compiles frequent code
SDP = "v=0\r\n" + "a=candidate:1 1 udp 2122260223 192.0.2.1 50000 typ host\r\n" * 20
INFO_HASH = "aaaaabbbbbcccccddddÿ"


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


async def subscribers(base: str) -> list[WebSocket]:
    """Return clients of y-webrtc in one room, which have got one message."""
    clients = await open_many(base, SUBSCRIBERS, "/y-webrtc", lambda number: {"type": "subscribe", "topics": ["room"]})
    for client in clients:
        client.send_json({"type": "ping"})
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


async def topic_subscribers(base: str) -> list[WebSocket]:
    """Return clients of Nostr with one topic, which have got one message."""
    clients = await open_many(base, SUBSCRIBERS, "/nostr", lambda number: ["REQ", "a" * 64, {"#x": ["room"]}])
    for client in clients:
        await client.received(1)
    return clients


ROOMS = {"RxDB": "/rxdb", "matchbox": "/matchbox/room-{}"}


async def members(base: str, protocol: str, count: int, room: int = 0) -> dict[str, WebSocket]:
    """Return members of a room by their ids, which are in their first messages."""
    entered: dict[str, WebSocket] = {}
    for _ in range(count):
        member = await open_socket(base, upgrade(ROOMS[protocol].format(room)))
        first = orjson.loads(await member.next())
        entered[next(value for value in first.values() if value != "init")] = member
        if protocol == "RxDB":
            member.send_json({"type": "join", "room": f"room {room}"})
            await member.received(2)
    return entered


def signal(protocol: str, sender: str, receiver: str) -> bytes:
    """Return the frame of a signal with the size of an offer."""
    message = {"type": "signal", "room": "room 0", "senderPeerId": sender, "receiverPeerId": receiver, "data": SIGNAL}
    if protocol == "matchbox":
        message = {"Signal": {"receiver": receiver, "data": SIGNAL}}
    return frame(orjson.dumps(message))


def announcement(number: int, **fields: object) -> dict:
    return {"action": "announce", "info_hash": INFO_HASH, "peer_id": f"-WW0000-{number:012}", "left": 1} | fields


async def announce(base: str) -> Turn:
    clients = await open_many(base, SWARM, "/announce", lambda number: announcement(number, event="started"))
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
    """A protocol to measure."""

    operation: str
    count: int  # of operations of a turn, in a full run
    most: float  # the target, as a ratio to the original
    original: Callable[[Path], Server]  # given the folder of its log
    prepare: Callable[[str], Awaitable[Turn]]
    idle_path: str  # of an idle connection, with its number
    idle: Callable[[int], dict] | None  # its first message


PEERJS_PATH = "/peerjs?key=peerjs&id=peer-{0}&token=token-{0}&version=1.5.5"
MESSAGE = f"a message to {SUBSCRIBERS} subscribers"
ANNOUNCEMENT = f"an announcement with {OFFERS} offers in a swarm of {SWARM}"
PROTOCOLS = {
    "PeerJS": Protocol("a pair", 200, 1.0, originals.peerjs, meet, PEERJS_PATH, None),
    "y-webrtc": Protocol(
        *(MESSAGE, 1000, 1.0, originals.y_webrtc, publish, "/y-webrtc"),
        lambda number: {"type": "subscribe", "topics": [f"room-{number}"]},
    ),
    "tracker": Protocol(
        *(ANNOUNCEMENT, 1000, 1.5, originals.tracker, announce, "/announce"),
        lambda number: announcement(number, info_hash=f"{number:020}"),
    ),
}


def protocols(bench: Bench) -> None:
    with processes.many_files() as most:
        for name, protocol in PROTOCOLS.items():
            _cpu(bench, name, protocol)
            _memory(bench, name, protocol, min(bench.size.idle, most))
        for name in ROOMS:
            with bench.server() as server:
                _, used = uvloop.run(connections_kib(server, partial(_rooms, server, name, bench.size.idle // LOBBY)))
            bench.add(IDLE, f"{name}: a member of a room of {LOBBY}", used, "KiB", most=8, judged=bench.whole)


def _cpu(bench: Bench, name: str, protocol: Protocol) -> None:
    turns = bench.size.protocol_turns
    count = max(SWARM, protocol.count * turns // 10)
    with ExitStack() as stack:
        servers = [stack.enter_context(bench.server()), stack.enter_context(protocol.original(bench.where))]
        stack.enter_context(apart(*servers))
        used_s = uvloop.run(_turns(servers, protocol.prepare, count, turns))
    ours, theirs = ([used / count * 1e6 for used in used_s[server][WARM:]] for server in servers)
    note = f"{count} in each of {turns} turns; {APART}. The reference is the original server"
    title, ours_us, theirs_us = f"{name}: {protocol.operation}", statistics.median(ours), statistics.median(theirs)
    bench.add(PART, title, ours_us, "µs", reference=theirs_us, note=note)
    bench.add(PART, f"{title}, to the original", ratio(ours, theirs), "", most=protocol.most)


async def _turns(servers: list[Server], prepare: Callable, count: int, turns: int) -> dict[Server, list[float]]:
    return await alternate({each: partial(await prepare(each.base), count) for each in servers}, WARM + turns)


def _memory(bench: Bench, name: str, protocol: Protocol, count: int) -> None:
    used = []
    for start in (bench.server, lambda: protocol.original(bench.where)):
        with start() as server:
            connect = partial(open_many, server.base, count, protocol.idle_path, protocol.idle)
            used.append(uvloop.run(connections_kib(server, connect))[1])
    ours, theirs = used
    add = partial(bench.add, IDLE, judged=bench.whole)
    note = f"{count} connections, in private resident memory. The reference is the original server"
    add(f"{name}: an idle connection", ours, "KiB", most=8, reference=theirs, note=note)
    add(f"{name}: an idle connection, to the original", ours / theirs, "", most=1.0)


async def _rooms(server: Server, protocol: str, count: int) -> list[WebSocket]:
    rooms = [await members(server.base, protocol, LOBBY, room) for room in range(count)]
    return [member for room in rooms for member in room.values()]
