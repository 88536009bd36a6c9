"""Instructions of single operations, which repeat within a few percent, whereas CPU time scatters.

They include work of other threads. The memory of connections is measured next to them.
"""

import asyncio
import itertools
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial

import jwt
import orjson
import uvloop
from support.nostr import make_event

from . import client, peers, protocols
from .counter import Counter
from .figures import Bench, connections_kib
from .life import Kept, Polled, Socketed
from .peerjs import Meeting
from .processes import BenchError, Server
from .sockets import WebSocket, frame

PART = "instructions"
WARM = 10  # repetitions before counting
CONNECTIONS = 2000  # whose memory is measured
WAIT_S = 60
PROXIED = 50  # clients of one reverse proxy
SECRET = "5" * 64
# Limits per address cost what they cost in production, but no client reaches one.
LIMITS = {"unlimited-addresses": "none", "rate-per-address": 1_000_000}

Perform = Callable[[int], Coroutine[None, None, object]]


@dataclass
class Operation:
    """An operation whose instructions are counted."""

    name: str
    most: float  # thousands of instructions
    prepare: Callable[..., AbstractAsyncContextManager[Perform]]  # yields what performs it with a number
    times: int = 1  # a divisor of the repetitions
    trusted: str = "none"  # addresses of proxies
    token: bool = False  # whether requests need one


def peer_of(number: int) -> peers.Peer:
    return peers.pair(number).offerer


@asynccontextmanager
async def _kept(base: str, peer: peers.Peer, data: bytes) -> AsyncIterator[Perform]:
    with closing(client.Connection(base, peer.address)) as connection:
        yield lambda _: connection.must(data)


def health(base: str) -> AbstractAsyncContextManager[Perform]:
    peer = peer_of(0)
    return _kept(base, peer, peer.request(base, "GET", "/health"))


def _poll(peer: peers.Peer, base: str, code: str, **fields: object) -> bytes:
    return peer.request(base, "POST", "/poll", {"code": code, "side": "answerer", **fields})


@asynccontextmanager
async def poll(base: str) -> AsyncIterator[Perform]:
    peer = peer_of(1)
    (code,) = await _published(base, peer, 1)
    async with _kept(base, peer, _poll(peer, base, code)) as perform:
        yield perform


async def _published(base: str, peer: peers.Peer, count: int) -> list[str]:
    """Publish offers of one peer, each in its own topic, and return the codes."""
    fields = {"info": peer.identity, "offer": peer.description}
    offers = [peer.request(base, "POST", f"/counted-{number}/offer", fields) for number in range(count)]
    with closing(client.Connection(base, peer.address)) as connection:
        return [(await connection.must(offer))["code"] for offer in offers]


@asynccontextmanager
async def proxied_poll(base: str) -> AsyncIterator[Perform]:
    """Yield a poll by one of the clients of a reverse proxy, which are the same peers on one connection."""
    polls = []
    for number in range(PROXIED):
        peer = peer_of(number)
        (code,) = await _published(base, peer, 1)
        forwarded = f"X-Forwarded-For: 198.51.100.{number + 1}\r\nX-Forwarded-Proto: https\r\n\r\n".encode()
        head, _, body = _poll(peer, base, code).partition(b"\r\n\r\n")
        polls.append(head + b"\r\n" + forwarded + body)
    with closing(client.Connection(base)) as connection:
        for data in polls:
            await connection.must(data)
        yield lambda number: connection.must(polls[number % PROXIED])


@asynccontextmanager
async def new_connection(base: str) -> AsyncIterator[Perform]:
    async def ask(number: int) -> None:
        peer = peer_of(number)
        with closing(client.Connection(base, peer.address)) as connection:
            await connection.must(peer.request(base, "GET", "/health"))

    yield ask


@asynccontextmanager
async def kept_pair(base: str, authorization: str = "") -> AsyncIterator[Perform]:
    pair = peers.pair(0, authorization)
    with pair.connections(base) as both:
        yield lambda number: Polled(base, replace(pair, topic=f"kept-{number}")).broker_over(*both)


@asynccontextmanager
async def _new(way: Callable, base: str, authorization: str = "") -> AsyncIterator[Perform]:
    yield lambda number: way(base, peers.pair(number, authorization)).broker()


def _authorization() -> str:
    claims = {"sub": "user-1234", "topics": ["room-*", "kept-*"], "exp": time.time() + 86_400}
    return f"Bearer {jwt.encode(claims, SECRET, 'HS256', headers={'kid': 'key'})}"


@asynccontextmanager
async def _delivered(senders: list[WebSocket], messages: list[bytes], receivers: list[WebSocket], own: int = 0):
    """Yield a function that sends messages, of which each receiver gets one, and the first sender `own` ones."""

    async def send(_: int) -> None:
        expected = {each: each.messages + 1 for each in receivers} | {senders[0]: senders[0].messages + own}
        for message in messages:
            senders[0].send(message)
        for each, count in expected.items():
            await each.received(count)

    yield send
    for each in {*senders, *receivers}:
        await each.close()


@asynccontextmanager
async def room_message(base: str) -> AsyncIterator[Perform]:
    clients = await protocols.subscribers(base)
    async with _delivered(clients, [protocols.PUBLICATION], clients[1:], own=1) as perform:
        yield perform


@asynccontextmanager
async def event(base: str) -> AsyncIterator[Perform]:
    clients = await protocols.topic_subscribers(base)
    message = frame(orjson.dumps(["EVENT", make_event(content=orjson.dumps(protocols.SIGNAL).decode())]))
    async with _delivered(clients, [message], clients[1:], own=2) as perform:  # the event and its acceptance
        yield perform


@asynccontextmanager
async def signals(protocol: str, base: str) -> AsyncIterator[Perform]:
    entered = await protocols.members(base, protocol, protocols.SUBSCRIBERS + 1)
    sender, *others = entered
    messages = [protocols.signal(protocol, sender, other) for other in others]
    async with _delivered([entered[sender]], messages, [entered[other] for other in others]) as perform:
        yield perform


@asynccontextmanager
async def lobby(base: str) -> AsyncIterator[Perform]:
    """Yield a room of matchbox from the first connection to the last: each pair exchanges an offer and an answer."""

    async def play(number: int) -> None:
        players = await protocols.members(base, "matchbox", protocols.LOBBY, number)
        for one, other in itertools.permutations(players, 2):
            expected = players[other].messages + 1
            players[one].send(protocols.signal("matchbox", one, other))
            await players[other].received(expected)
        for each in players.values():
            await each.close()

    yield play


OPERATIONS = (
    Operation("health, kept connection", 185, health),
    Operation("poll", 275, poll),
    Operation(f"poll behind a proxy with {PROXIED} clients in turn", 285, proxied_poll, trusted="127.0.0.1"),
    Operation("health, new connection and new headers", 400, new_connection),
    Operation("pair over HTTP, new connections", 4700, partial(_new, Polled), 4),
    Operation("pair over HTTP, kept connections", 4300, kept_pair, 4),
    Operation("pair over HTTP, kept connections, with a token", 4500, kept_pair, 4, token=True),
    Operation("pair over /ws, kept connections", 3250, partial(_new, Kept), 4),
    Operation("pair over /ws, kept connections, with a token", 3400, partial(_new, Kept), 4, token=True),
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
    add = partial(bench.add, PART, judged=bench.whole, note="browser headers; fsync; counted by callgrind")
    start = partial(bench.server, durability="fsync", **LIMITS)
    for operation in OPERATIONS:
        options = {"trusted-proxies": operation.trusted} | ({"auth-keys": key} if operation.token else {})
        executed = []
        for checkout in bench.checkouts:
            with start(callgrind=True, checkout=checkout, **options) as server:
                executed.append(uvloop.run(_count(server, operation, bench.size.counted)))
        add(operation.name, executed[0], "k", most=operation.most, reference=[*executed, None][1])
    with start() as server:
        idle_kib, waiting_kib = uvloop.run(_memory(server, CONNECTIONS))
    add("memory of an idle connection", idle_kib, "KiB", most=6.0)
    add("memory of a waiting poll and its connection", waiting_kib, "KiB", most=10.3)


async def _count(server: Server, operation: Operation, repetitions: int) -> float:
    """Return the instructions of an operation, in thousands."""
    count = max(1, repetitions // operation.times)
    authorization = {"authorization": _authorization()} if operation.token else {}
    async with operation.prepare(server.base, **authorization) as perform:
        for number in range(WARM):
            await perform(number)
        with Counter(server) as counter:
            for number in range(WARM, WARM + count):
                await perform(number)
    return counter.count / count / 1e3


async def _memory(server: Server, count: int) -> tuple[float, float]:
    """Return the KiB of an idle connection that has been used, and of one on which a poll waits."""
    codes = await _published(server.base, peer_of(0), count)
    clients = [peer_of(number) for number in range(count)]
    waiting = []

    async def connect() -> list[client.Connection]:
        connections = [client.Connection(server.base, peer.address) for peer in clients]
        for connection, peer in zip(connections, clients, strict=True):
            await connection.must(peer.request(server.base, "GET", "/health"))
        return connections

    async def connect_and_wait() -> list[client.Connection]:
        connections = await connect()
        for connection, peer, code in zip(connections, clients, codes, strict=True):
            poll = connection.exchange(_poll(peer, server.base, code, wait=WAIT_S))
            waiting.append(asyncio.ensure_future(poll))
        return connections

    measured = [await connections_kib(server, each) for each in (connect, connect_and_wait)]
    for connection in itertools.chain(*(connections for connections, _ in measured)):
        connection.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    return measured[0][1], measured[1][1]
