"""Attacks over WebSockets. For each invalid frame, the result is counted as `closed` or `wrong`."""

import asyncio
import base64
import contextlib
import functools
import itertools
import json
import random
import socket
from collections.abc import Awaitable, Callable

from bench.sockets import CLOSE, PING, PONG, TEXT, UPGRADE, frame, take_frame, upgrade
from support.frame_vectors import VECTORS

from .attacker import BIG, BURST, CONNECTIONS, HOLD_S, ORIGIN, PATIENCE_S, SMALL_ROOM, Attacker, attack, offer, post
from .wire import Client, request

UPGRADING = upgrade("/ws", ORIGIN)
FIRST = 0x01
HEADER = "eyJhbGciOiJIUzI1NiIsImtpZCI6Im1haW4ifQ"  # of a token: {"alg":"HS256","kid":"main"}
HANDSHAKES = 10_000
UNFINISHED_BYTES = 250_000  # of each message that is never finished
NOTHING = {"code": "00000000-0000-4000-8000-000000000000", "side": "offerer"}


# Violations and binary messages, with the close code that reports each (RFC 6455, 7.4.1).
BINARY = [(each.sent, 1003) for each in VECTORS.values() if each.binary]
VIOLATIONS = [(each.sent, each.code) for each in VECTORS.values() if each.code in (1002, 1007, 1009)]
BROKEN_FRAMES = itertools.cycle(BINARY + VIOLATIONS)


class Attacked:
    def __init__(self, attacker: Attacker, connected: socket.socket) -> None:
        self._attacker, self._connected, self._received = attacker, connected, b""

    async def upgrade(self, upgrading: bytes) -> None:
        await self._attacker.pace.take()
        await self._attacker.send(self._connected, upgrading)
        async with asyncio.timeout(PATIENCE_S):
            while b"\r\n\r\n" not in self._received:
                await self._read()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101"):
            raise ConnectionRefusedError(head.split(b"\r\n")[0])

    async def send(self, data: bytes) -> None:
        """Send frames, even if the server has closed the connection."""
        with contextlib.suppress(ConnectionError):
            await self._attacker.send(self._connected, data)

    async def paced(self, data: bytes, requests: int = 1) -> None:
        """Send frames with a number of requests as soon as the rate limit of an address allows."""
        await self._attacker.pace.take(requests)
        await self.send(data)

    async def ask(self, data: bytes, requests: int = 1) -> bytes:
        """Send frames as above, and return the next text."""
        await self.paced(data, requests)
        return await self._text()

    async def swallow(self, for_s: float = HOLD_S) -> None:
        await self._attacker.swallow(self._connected, for_s)

    async def _text(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                kind, payload = await self._frame()
                if kind == TEXT:
                    return payload
                if kind == CLOSE:
                    raise ConnectionAbortedError(f"closed {int.from_bytes(payload[:2])}")

    async def closed(self, *codes: int | None) -> None:
        """Read to the end and count the close code, or None without a close frame."""
        code = None
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE_S):
                while code is None:
                    kind, payload = await self._frame()
                    code = int.from_bytes(payload[:2]) if kind == CLOSE else None
        self._attacker.answers[f"{'closed' if code in codes else 'wrong: closed'} {code}"] += 1

    async def flood(self, data: bytes, *codes: int | None) -> None:
        """Send the same as fast as possible until the server closes the connection with one of these codes."""
        closed = asyncio.create_task(self.closed(*codes))
        while not closed.done():
            await self.send(data)
            await asyncio.sleep(0)
        await closed

    async def _frame(self) -> tuple[int, bytes]:
        while not (taken := take_frame(self._received)):
            await self._read()
        kind, payload, self._received = taken
        return kind, payload

    async def _read(self) -> None:
        data = await self._attacker.loop.sock_recv(self._connected, 65536)
        if not data:
            raise ConnectionResetError("the end")
        self._received += data


async def hold(
    attacker: Attacker,
    count: int,
    treat: Callable[[Attacked], Awaitable[object]],
    upgrading: bytes | Callable[[], bytes] = UPGRADING,
    *,
    room: int | None = None,
    for_s: float | None = None,
) -> None:
    """Keep a number of WebSockets open, each misused in this way, for a limited time if given, and then reopened."""

    async def treat_socket(connected: socket.socket) -> None:
        opened = Attacked(attacker, connected)
        await opened.upgrade(upgrading() if callable(upgrading) else upgrading)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await treat(opened)

    await attacker.hold(count, treat_socket, room)


def misuse(count: int, upgrading: bytes | Callable[[], bytes] = UPGRADING, **options: object):
    """Register an attack of a number of WebSockets, from what it does with each. The options are those of `hold`."""

    def register(treat: Callable[[Attacked], Awaitable[object]]):
        @functools.wraps(treat)
        async def run(attacker: Attacker) -> None:
            await hold(attacker, count, treat, upgrading, **options)

        return attack()(run)

    return register


def call(method: str, count: int = 1, **params: object) -> bytes:
    one = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return frame(json.dumps([one] * count if count > 1 else one).encode())


@misuse(50)
async def broken_frames(opened: Attacked) -> None:
    """Frames that break each rule, each on a separate connection. The close code must report the violation."""
    data, code = next(BROKEN_FRAMES)
    await opened.send(data)
    # A fragment counts as a request. At the hard limit it closes the connection before the violation is read.
    # If memory is scarce, the largest unfinished messages of an address end without a close frame.
    others = () if data[0] != FIRST else (1008,) if len(data) < UNFINISHED_BYTES else (1008, None)
    await opened.closed(code, *others)


@attack()
async def unfinished_messages(attacker: Attacker) -> None:
    """Messages without an end on all connections: endless small fragments, or 250 KB without the last byte."""
    raw = frame(b" " * UNFINISHED_BYTES)[:-1]

    async def go_on(opened: Attacked) -> None:
        await opened.send(frame(b"{", FIRST))
        await opened.flood(frame(b"x" * random.choice([0, 1, 1000]), 0x00) * 100, 1008, 1009, None)

    async def wait(opened: Attacked) -> None:
        await opened.send(raw)
        await opened.closed(None)

    await asyncio.gather(hold(attacker, 50, go_on), hold(attacker, CONNECTIONS - 50, wait, for_s=HOLD_S))


@attack("--max-connections-per-address", "12000", "--rate-per-address", "5000")
async def half_open_handshakes(attacker: Attacker) -> None:
    """10,000 handshakes. Half stay incomplete, and after the others the client sends nothing, not even a pong."""
    attacker.slow_down(1000)

    async def begin(number: int) -> None:
        await attacker.pace.take()
        data = UPGRADING[: -2 if number % 2 else None]
        await attacker.swarm(1, data, paced=False, read_s=attacker.seconds)

    await asyncio.gather(*map(begin, range(HANDSHAKES)))


@attack()
async def flood_of_messages(attacker: Attacker) -> None:
    """Pings, pongs, requests, batches and invalid messages as fast as possible. The connection must be closed."""
    floods = [frame(b"", kind) * 4000 + frame(b"x" * 125, kind) * 200 for kind in (PING, PONG)]
    floods += [frame(b"{}") * 200, frame(b"[" * 50) * 200, call("poll", **NOTHING) * 50, call("poll", 100, **NOTHING)]
    await flood_of(attacker, 50, *floods)


@attack()
async def flood_of_large_messages(attacker: Attacker) -> None:
    """Messages of 250 KB, and batches of a hundred waits, on as many connections as an address may open."""
    code = (await attacker.must(offer("waited")))["code"]
    waits = call("poll", 100, code=code, side="offerer", wait=60)
    await flood_of(attacker, CONNECTIONS, call("offer", topic="large", info="i", offer=BIG), waits)


async def flood_of(attacker: Attacker, connections: int, *floods: bytes) -> None:
    chosen = itertools.cycle(floods)

    async def flood(opened: Attacked) -> None:
        await opened.flood(next(chosen), 1008, None)

    await hold(attacker, connections, flood)


@attack()
async def large_waits(attacker: Attacker) -> None:
    """As many waits as an address may have, each in a message with 250 KB of unused fields."""
    code = (await attacker.must(offer("waited")))["code"]
    unused = [str(number) for number in range(30_000)]

    async def wait(opened: Attacked) -> None:
        for _ in range(20):
            await opened.paced(call("poll", code=code, side="offerer", wait=60, unused=unused))
        await opened.swallow(attacker.seconds)

    await hold(attacker, 50, wait)


@misuse(8)
async def store_in_batches(opened: Attacked) -> None:
    """Offers of 200 KB, each in a batch with 99 small requests, as fast as the rate limit allows."""
    small = {"jsonrpc": "2.0", "id": 1, "method": "version"}
    large = small | {"method": "offer", "params": {"topic": "batches", "info": "i", "offer": "x" * 200_000}}
    data = frame(json.dumps([large, *[small] * 99]).encode())
    while True:
        await opened.ask(data, 100)


@attack()
async def flood_of_subscriptions(attacker: Attacker) -> None:
    """As many subscriptions to one topic as an address may have, half of them repeatedly renewed, and offers there."""

    async def subscribe(opened: Attacked) -> None:
        await opened.paced(call("subscribe", 9, topic="watched"), 9)
        await opened.swallow(attacker.seconds)

    async def come_and_go(opened: Attacked) -> None:
        for number in itertools.count(1):
            await opened.paced(call("subscribe", topic="watched") + call("unsubscribe", subscription=number), 2)
            await opened.swallow(0.1)

    async def publish(opened: Attacked) -> None:
        while True:
            await opened.ask(call("offer", topic="watched", info="i", offer="o"))

    await asyncio.gather(hold(attacker, 100, subscribe), hold(attacker, 5, come_and_go), hold(attacker, 2, publish))


@attack("--hold-grace-ms", "500")
async def flood_of_held_offers(attacker: Attacker) -> None:
    """As many held offers as an address may publish, whose connections are all closed at once, repeatedly."""
    await hold_offers(attacker, 8, 0)


@attack()
async def hold_with_short_lifetimes(attacker: Attacker) -> None:
    """As many held offers as an address may publish, each with a lifetime of a second, for the whole attack."""
    await hold_offers(attacker, 4, attacker.seconds)


async def hold_offers(attacker: Attacker, connections: int, for_s: float) -> None:
    together = int(BURST * 0.8)

    async def publish(opened: Attacked) -> None:
        for _ in range(together // connections // 40):
            await opened.ask(call("offer", 40, topic="held", info="i", offer="o", ttl=1000, hold=True), 40)
        await opened.swallow(for_s)

    await hold(attacker, connections, publish)


@attack()
async def take_over(attacker: Attacker) -> None:
    """Held offers that connections take over from each other, as fast as the rate limit allows."""
    secret = "a secret of the attacker"
    codes = [(await attacker.must(offer("held", secret=secret)))["code"] for _ in range(20)]

    async def take(opened: Attacked) -> None:
        for _ in range(20):
            await opened.ask(call("hold", code=random.choice(codes), secret=secret))

    await hold(attacker, 10, take)


@attack()
async def do_not_read_websockets(attacker: Attacker) -> None:
    """Connections that do not read the listings, events and responses that they have requested."""
    await attacker.publish_big()
    code = (await attacker.must(offer("big", BIG)))["code"]
    params = {"code": code, "side": "answerer"}
    waiting = {"wait": 60, "since": (await attacker.must(post("/poll", **params, wait=0)))["cursor"]}
    poll = {"jsonrpc": "2.0", "id": 1, "method": "poll", "params": params}
    messages = [
        (call("sessions", 5, topic="big"), 5),
        (call("subscribe", topic="big"), 1),
        (call("poll", **params) * 8, 8),
        (call("sessions", topic="big") + call("poll", **params) * 4, 5),
        (frame(json.dumps([*[poll] * 4, poll | {"params": params | waiting}]).encode()), 5),
    ]
    turns = itertools.cycle(messages)

    async def wait(opened: Attacked) -> None:
        data, requests = next(turns)
        await opened.paced(data, requests)
        await asyncio.sleep(HOLD_S)

    await hold(attacker, CONNECTIONS - 10, wait, room=SMALL_ROOM)


@attack("--hold-grace-ms", "500")
async def mixed_websockets(attacker: Attacker) -> None:
    """Several of these attacks at once."""
    chosen = (broken_frames, unfinished_messages, flood_of_messages, flood_of_subscriptions, flood_of_held_offers)
    await asyncio.gather(*(each(attacker) for each in chosen))


def forged(length: int) -> str:
    """Return a token of a length that no key has signed, another one each time."""
    claims = base64.urlsafe_b64encode(random.randbytes(length)).decode()[:length]
    return f"{HEADER}.{claims}.{'x' * 43}"


@attack(keys=True)
async def come_without_a_token(attacker: Attacker) -> None:
    """Forged tokens of the maximum size over every protocol, and connections that never present one."""
    numbers = itertools.count()
    targets = itertools.cycle(("", "/lobby/events?", "/y-webrtc?", "/tracker?", "/nostr?", "/peerjs?id=a&key=peerjs&"))

    async def ask(client: Client) -> None:
        if target := next(targets):
            headers = "" if "events" in target else UPGRADE
            raw = request("GET", f"{target}token={forged(8000)}", origin=ORIGIN, headers=headers)
        else:
            headers = f"Authorization: Bearer {forged(8000)}\r\n"
            raw = request("GET", "/lobby/sessions", origin=ORIGIN, headers=headers)
        if await attacker.ask(client, raw) is not None or attacker.answers["101"]:
            attacker.answers["wrong: accepted"] += 1

    async def stay(opened: Attacked) -> None:
        if next(numbers) % 2:
            await opened.swallow()
            return
        if "error" not in json.loads(
            await opened.ask(call("authorize", token=forged(8000)))
        ):  # 401, or 429 and 503 beyond the limits
            attacker.answers["wrong: authorized"] += 1

    await asyncio.gather(attacker.often(16, ask), hold(attacker, CONNECTIONS - 16, stay))
