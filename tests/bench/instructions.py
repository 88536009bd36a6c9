"""Instructions of single operations, which repeat within a few percent, whereas CPU time scatters.

They include work of other threads. The memory of connections is measured next to them.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import jwt
import uvloop

from . import client, peers, processes, protocols
from .counter import Counter
from .figures import Bench, settled
from .life import WAIT_S, Kept, Polled, Socketed
from .peerjs import Meeting
from .processes import BenchError, Server

PART = "instructions"
WARM = 10  # repetitions before counting
PROXIED = 50  # clients of one reverse proxy
SECRET = "5" * 64
TOKEN = ", with a token"
MOST_WITH_TOKEN = 1.05  # compared with the same operation without one
IDLE, WAITING = "memory of an idle connection", "memory of a waiting poll and its connection"

BEHIND_PROXY = {"trusted-proxies": "127.0.0.1"}

# Limits per address cost what they cost in production, but no client reaches one.
LIMITS = {"unlimited-addresses": "none", "rate-per-address": 1_000_000}

Perform = Callable[[int], Coroutine[None, None, object]]


@dataclass
class Operation:
    """An operation whose instructions are counted.

    Attributes:
        name: its name in the table.
        most: the maximum number of instructions, in thousands.
        prepare: returns a context that yields a function, which performs the operation with a number.
        times: a divisor of the repetitions.
        options: further options of the server.
    """

    name: str
    most: float
    prepare: Callable[[str], AbstractAsyncContextManager[Perform]]
    times: int = 1
    options: Mapping[str, object] = field(default_factory=dict)


def peer_of(number: int) -> peers.Peer:
    return peers.pair(number).offerer


@asynccontextmanager
async def _kept(base: str, peer: peers.Peer, data: bytes) -> AsyncIterator[Perform]:
    (connection,) = await client.connect(base, 1, peer.address)
    yield lambda _: connection.ask(data)
    connection.close()


def health(base: str) -> AbstractAsyncContextManager[Perform]:
    peer = peer_of(0)
    return _kept(base, peer, peer.request(base, "GET", "/health"))


def report(base: str) -> AbstractAsyncContextManager[Perform]:
    peer = peer_of(0)
    fields = {"outcome": "connected", "local": "host", "remote": "srflx", "transport": "udp", "ms": 380}
    return _kept(base, peer, peer.request(base, "POST", "/report", fields))


def _poll(peer: peers.Peer, base: str, code: str, **fields: object) -> bytes:
    return peer.request(base, "POST", "/poll", {"code": code, "side": "answerer", **fields})


@asynccontextmanager
async def poll(base: str) -> AsyncIterator[Perform]:
    peer = peer_of(1)
    (connection,) = await client.connect(base, 1, peer.address)
    (code,) = await _published(base, peer, 1)
    data = _poll(peer, base, code)
    yield lambda _: connection.ask(data)
    connection.close()


async def _published(base: str, peer: peers.Peer, count: int) -> list[str]:
    """Publish offers of one peer, each in its own topic, and return the codes."""
    (connection,) = await client.connect(base, 1, peer.address)
    fields = {"info": peer.identity, "offer": peer.description}
    offers = [peer.request(base, "POST", f"/counted-{number}/offer", fields) for number in range(count)]
    codes = [(await connection.ask(offer))["code"] for offer in offers]
    connection.close()
    return codes


@asynccontextmanager
async def proxied_poll(base: str) -> AsyncIterator[Perform]:
    """Yield a poll by one of the clients of a reverse proxy, which are the same peers on one connection."""
    clients = [peer_of(number) for number in range(PROXIED)]
    (connection,) = await client.connect(base, 1)
    polls = []
    for number, peer in enumerate(clients):
        (code,) = await _published(base, peer, 1)
        forwarded = f"X-Forwarded-For: 198.51.100.{number + 1}\r\nX-Forwarded-Proto: https\r\n\r\n".encode()
        head, _, body = _poll(peer, base, code).partition(b"\r\n\r\n")
        polls.append(head + b"\r\n" + forwarded + body)
    for data in polls:
        await connection.ask(data)
    yield lambda number: connection.ask(polls[number % PROXIED])
    connection.close()


@asynccontextmanager
async def new_connection(base: str) -> AsyncIterator[Perform]:
    async def ask(number: int) -> None:
        peer = peer_of(number)
        (connection,) = await client.connect(base, 1, peer.address)
        await connection.ask(peer.request(base, "GET", "/health"))
        connection.close()

    yield ask


@asynccontextmanager
async def kept_pair(base: str, authorization: str = "") -> AsyncIterator[Perform]:
    pair = peers.pair(0, authorization)
    (offerer,) = await client.connect(base, 1, pair.offerer.address)
    (answerer,) = await client.connect(base, 1, pair.answerer.address)
    yield lambda number: Polled(base, replace(pair, topic=f"kept-{number}")).broker_over(offerer, answerer)
    offerer.close()
    answerer.close()


@asynccontextmanager
async def _new(way: Callable, base: str, authorization: str = "") -> AsyncIterator[Perform]:
    yield lambda number: way(base, peers.pair(number, authorization)).broker()


def _authorization() -> str:
    claims = {"sub": "user-1234", "topics": ["room-*", "kept-*"], "exp": time.time() + 86_400}
    return f"Bearer {jwt.encode(claims, SECRET, 'HS256', headers={'kid': 'key'})}"


@asynccontextmanager
async def room_message(base: str) -> AsyncIterator[Perform]:
    clients = await protocols.subscribers(base)

    async def publish(_: int) -> None:
        expected = clients[0].messages + 1
        clients[0].send(protocols.PUBLICATION)
        for each in clients:
            await each.received(expected)

    yield publish
    for each in clients:
        await each.close()


@asynccontextmanager
async def event(base: str) -> AsyncIterator[Perform]:
    clients = await protocols.topic_subscribers(base)
    message = protocols.signed_event()

    async def publish(_: int) -> None:
        expected = clients[1].messages + 1
        clients[0].send(message)
        await clients[0].received(clients[0].messages + 2)  # the event and its acceptance
        for each in clients[1:]:
            await each.received(expected)

    yield publish
    for each in clients:
        await each.close()


@asynccontextmanager
async def signals(protocol: str, base: str) -> AsyncIterator[Perform]:
    sender, *others = await protocols.members(base, protocol, protocols.SUBSCRIBERS + 1)

    async def send(_: int) -> None:
        expected = [each.messages + 1 for each in others]
        for each in others:
            sender.signal(protocol, each.id)
        for each, count in zip(others, expected, strict=True):
            await each.received(count)

    yield send
    for each in (sender, *others):
        await each.close()


@asynccontextmanager
async def lobby(base: str) -> AsyncIterator[Perform]:
    """Yield a room of matchbox from the first connection to the last: each pair exchanges an offer and an answer."""

    async def play(number: int) -> None:
        players = await protocols.members(base, "matchbox", protocols.LOBBY, number)
        for one in players:
            for other in players:
                if one is not other:
                    expected = other.messages + 1
                    one.signal("matchbox", other.id)
                    await other.received(expected)
        for each in players:
            await each.close()

    yield play


# Pairs that are also counted at a server that requires tokens.
KEPT = (
    Operation("pair over HTTP, kept connections", 4300, kept_pair, 4),
    Operation("pair over /ws, kept connections", 3250, partial(_new, Kept), 4),
)
OPERATIONS = (
    Operation("health, kept connection", 185, health),
    Operation("poll", 275, poll),
    Operation("report of a connection", 305, report, options={"connection-reports": "true"}),
    Operation(f"poll behind a proxy with {PROXIED} clients in turn", 285, proxied_poll, options=BEHIND_PROXY),
    Operation("health, new connection and new headers", 400, new_connection),
    Operation("pair over HTTP, new connections", 4700, partial(_new, Polled), 4),
    *KEPT,
    Operation("pair over /ws, new connections", 4000, partial(_new, Socketed), 4),
    Operation("PeerJS pair", 2000, partial(_new, Meeting), 4),
    Operation(f"y-webrtc message to {protocols.SUBSCRIBERS} subscribers", 195, room_message),
    *(
        Operation(f"{name}: a signal to each of {protocols.SUBSCRIBERS} members", 1110, partial(signals, name))
        for name in protocols.ROOMS
    ),
    Operation(f"matchbox: a room of {protocols.LOBBY}, with two signals of each pair", 11_400, lobby, 4),
    Operation(f"Nostr event to {protocols.SUBSCRIBERS} subscribers", 1010, event),
)


def instructions(bench: Bench) -> None:
    """Count the instructions of operations, and measure the memory of connections, at each server."""
    if shutil.which("valgrind") is None:
        raise BenchError("there is no valgrind")
    key = bench.where / "key.secret"
    key.write_text(SECRET)
    with_token = [
        replace(each, name=each.name + TOKEN, prepare=partial(each.prepare, authorization=_authorization()))
        for each in KEPT
    ]
    found: list[dict[str, float]] = []
    for checkout in (None, *bench.others):
        start = partial(bench.server, durability="fsync", checkout=checkout, **LIMITS)
        executed = {}
        for operation in (*OPERATIONS, *with_token):
            keys = {"auth-keys": key} if operation in with_token else {}
            with start(callgrind=True, **operation.options, **keys) as server:
                executed[operation.name] = uvloop.run(_count(server, operation, bench.size.counted))
        with start() as server:
            idle_bytes, waiting_bytes = uvloop.run(_memory(server, bench.size.connections))
        found.append(executed | {IDLE: idle_bytes / 1024, WAITING: waiting_bytes / 1000})
    _add_all(bench, found)


def _add_all(bench: Bench, found: list[dict[str, float]]) -> None:
    note = "browser headers; fsync; counted by callgrind"
    if len(found) > 1:
        note += f". The reference is the server of {bench.others[0]}"
        ours, theirs = map(_python_of, (sys.executable, processes.interpreter(bench.others[0])))
        if ours != theirs:  # Debian's executes 11 % less than one of pyenv
            note += f", WITH ANOTHER PYTHON: {theirs}, and here {ours}"
    limits = {operation.name: (operation.most, "k") for operation in OPERATIONS}
    limits |= {IDLE: (6.0, "KiB"), WAITING: (10.5, "KB")}
    for name, (most, unit) in limits.items():
        mine, *others = (values[name] for values in found)
        reference = others[0] if others else None
        bench.add(PART, name, mine, unit, most=most, judged=bench.whole, note=note, reference=reference)
        for number, value in enumerate(others[1:], 3):
            bench.add(PART, f"{name}, server {number}", value, unit)
    for each in KEPT:
        more = found[0][each.name + TOKEN] / found[0][each.name]
        name = f"{each.name}{TOKEN}, to that without"
        bench.add(PART, name, more, "times", most=MOST_WITH_TOKEN, judged=bench.whole)


def _python_of(interpreter: str) -> str:
    """Return the version and the build of an interpreter."""
    command = [interpreter, "-c", "import sys; print(sys.version)"]
    return " ".join(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


async def _count(server: Server, operation: Operation, repetitions: int) -> float:
    """Return the instructions of an operation, in thousands."""
    count = max(1, repetitions // operation.times)
    async with operation.prepare(server.base) as perform:
        for number in range(WARM):
            await perform(number)
        with Counter(server) as counter:
            for number in range(WARM, WARM + count):
                await perform(number)
    return counter.count / count / 1e3


async def _memory(server: Server, count: int) -> tuple[float, float]:
    """Return the bytes of an idle connection that has been used, and of one on which a poll waits."""
    publisher = peer_of(0)
    codes = await _published(server.base, publisher, count)
    clients = [peer_of(number) for number in range(count)]
    await settled(server)
    before_bytes = server.memory_bytes()
    connections = [(await client.connect(server.base, 1, peer.address))[0] for peer in clients]
    for connection, peer in zip(connections, clients, strict=True):
        await connection.ask(peer.request(server.base, "GET", "/health"))
    await settled(server)
    idle_bytes = server.memory_bytes()
    for connection, peer, code in zip(connections, clients, codes, strict=True):
        connection.send(_poll(peer, server.base, code, wait=WAIT_S), lambda *_: None)
    await settled(server)
    waiting_bytes = server.memory_bytes()
    for connection in connections:
        connection.close()
    return (idle_bytes - before_bytes) / count, (waiting_bytes - before_bytes) / count
