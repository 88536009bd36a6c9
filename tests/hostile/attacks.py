"""Attacks from one address. Each is a coroutine that runs until it is cancelled, and a process runs one of them.

For each invalid frame of a WebSocket, the result is counted as `closed` or `wrong`.
Arguments: the name, the seconds, and the server's port (and certificate). At the end the process prints its start time
and the responses as JSON.
"""

import asyncio
import base64
import contextlib
import itertools
import json
import os
import random
import resource
import sys
import time

import uvloop
from bench.sockets import PING, PONG, UPGRADE, frame, upgrade
from support.frame_vectors import VECTORS
from support.nostr import make_event

from .attacker import (
    ATTACKS,
    BIG,
    BURST,
    CONNECTIONS,
    HOLD_S,
    ORIGIN,
    PATIENCE_S,
    RATE,
    SMALL_ROOM,
    UPGRADING,
    Attack,
    Attacker,
    Connection,
    Pace,
    attack,
    get,
    misuse,
    mix,
    offer,
    post,
)
from .wire import BROKEN, Client, Place, request

CLOSE = "Connection: close\r\n"
LONG = ("--session-timeout-ms", "300000")
NOTHING = {"code": "00000000-0000-4000-8000-000000000000", "side": "offerer"}
FIRST = 0x01
HEADER = "eyJhbGciOiJIUzI1NiIsImtpZCI6Im1haW4ifQ"  # of a token: {"alg":"HS256","kid":"main"}
HANDSHAKES = 10_000
UNFINISHED_BYTES = 250_000  # of each message that is never finished
SHORT_GRACE = ("--hold-grace-ms", "500")
CROWD = 900
ROOMS = 1000
LARGE = "x" * 250_000
NUMBERS = itertools.count()


def most_candidates(code: str, text: str = "c") -> list[bytes]:
    """Return requests with the maximum number of candidates of a session."""
    return [post("/answer", code=code, side=side, candidates=[text] * 100) for side in ("offerer", "answerer") * 10]


def fill(attacker: Attacker):
    return attacker.repeat(16, offer("fill", BIG))


ATTACKS |= {
    "fill-with-offers": Attack(fill, "Offers of the maximum size, as many as are accepted."),
    "fill-small-disk": Attack(fill, "The same on a disk of 64 MiB, for 5 s.", (LONG[0], "5000"), disk_mib=64),
    "reconnect": Attack(
        lambda attacker: attacker.swarm(20, get("/topics"), b"", paced=False),
        "Connections that are opened and reset as fast as possible, half of them with a request.",
    ),
    "silent-before-handshake": Attack(
        lambda attacker: attacker.swarm(1100, b"", paced=False, read_s=attacker.seconds),
        "1,100 silent connections to an HTTPS server with 1,100 descriptors and limits of 100 and of 30 per address.",
        ("--max-connections", "100", "--max-connections-per-address", "30"),
        tls=True,
        files=1100,
    ),
}


# Large listings and polls


@attack()
async def leave_in_listing(attacker: Attacker) -> None:
    """Readers that disconnect after ten bytes of a listing of 15 MB."""
    await attacker.publish_big()
    await attacker.swarm(120, get("/big/sessions"), read_s=PATIENCE_S, most=10, room=SMALL_ROOM)


@attack()
async def write_then_read(attacker: Attacker) -> None:
    """A topic that is filled for 15 s (less in a short attack), then its listing, and polls."""
    codes = [await attacker.publish("big") for _ in range(8)]
    raws = [post("/answer", code=code, side="offerer", candidate=BIG) for code in [*codes, *[codes[0]] * 8]]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(15, 0.6 * attacker.seconds)):
            await attacker.repeat(16, *raws)
    poll = request("POST", "/poll", {"code": codes[0], "side": "answerer"}, origin=ORIGIN, headers=CLOSE)
    await attacker.swarm(1, get("/big/sessions", CLOSE), poll, read_s=PATIENCE_S)


@attack()
async def do_not_read(attacker: Attacker) -> None:
    """Listings and streams of 15 MB, and pipelined requests, whose clients do not read."""
    await attacker.publish_big()
    asked = get("/big/sessions"), get("/big/events"), get("/openapi.json") * 20
    await attacker.swarm(CONNECTIONS, *asked, rest_s=HOLD_S, room=SMALL_ROOM)


@attack(*LONG)
async def list_ten_thousand(attacker: Attacker) -> None:
    """A topic with 9,900 small offers, listed as often as the rate limit allows."""
    raw = offer("many")
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, raw))
    await attacker.swarm(20, get("/many/sessions", CLOSE), read_s=PATIENCE_S)


@attack(*LONG)
async def read_much(attacker: Attacker) -> None:
    """HEAD of a listing of 15 MB, polls of 2,000 candidates, and 9,900 topics, as often as allowed."""
    await attacker.publish_big()
    code = await attacker.publish("many")
    for raw in most_candidates(code, "c" * 200):
        await attacker.must(raw)
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, offer(f"{number:0200}")))
    raws = [request("HEAD", "/big/sessions", origin=ORIGIN), post("/poll", code=code, side="offerer")]
    await attacker.repeat(8, *raws, *[get(f"/topics?limit=1000&page={page}") for page in (1, 10)])


# Watchers


@attack()
async def watch_one_topic(attacker: Attacker) -> None:
    """990 streams of one topic, and offers there as fast as the rate limit allows."""
    attacker.pace = Pace(RATE, 0)  # the streams have used the burst
    watching = attacker.swarm(CONNECTIONS - 10, get("/watched/events"), paced=False, read_s=attacker.seconds)
    await asyncio.gather(watching, attacker.repeat(8, offer("watched")))


@attack()
async def wake_many_polls(attacker: Attacker) -> None:
    """900 polls that wait for one session, and candidates that wake them all."""
    code = await attacker.publish("woken")
    waking = attacker.repeat(1, post("/answer", code=code, side="answerer", candidate="c"), pause_s=1)
    waiting = attacker.swarm(900, post("/poll", code=code, side="offerer", wait=60), read_s=60, most=65536)
    await asyncio.gather(waiting, waking)


@attack()
async def refresh_watched(attacker: Attacker) -> None:
    """500 streams of a topic whose sessions, long ones among them, are refreshed as fast as the rate limit allows."""
    sizes = [1] * 80 + [len(BIG)] * 20
    raws = [post("/refresh", code=await attacker.publish("fresh", "x" * size), side="offerer") for size in sizes]
    watching = attacker.swarm(500, get("/fresh/events"), read_s=attacker.seconds)
    await asyncio.gather(watching, attacker.repeat(8, *raws))


@attack(*LONG)
async def listen_after_withdrawals(attacker: Attacker) -> None:
    """9,900 withdrawn offers, then listings of their topic, 300 waiting listings there, and offers that wake these."""
    await attacker.prepare(9900, lambda client, number: attacker.publish_and_withdraw(client, "left"))
    listing = get("/left/sessions?wait=0")
    for _ in range(2):
        await asyncio.gather(*(attacker.ask(attacker.client(), listing) for _ in range(150)))
        await attacker.publish("left")
    cursor = (await attacker.must(listing))["cursor"]

    async def wake(client: Client) -> None:
        await asyncio.sleep(0.5)
        await attacker.publish_and_withdraw(client, "left")

    waiting = attacker.swarm(300, get(f"/left/sessions?wait=60&since={cursor}"), read_s=60, most=65536)
    await asyncio.gather(waiting, attacker.often(1, wake), attacker.repeat(1, listing))


@attack(*LONG)
async def resume_old_streams(attacker: Attacker) -> None:
    """5,000 withdrawn offers, then streams that resume from before them or from unknown positions."""
    first = await attacker.must(get("/left/sessions?wait=0"))
    await attacker.publish("left")
    ids = [""]
    with contextlib.suppress(*BROKEN), contextlib.closing(attacker.client()) as client:
        async with asyncio.timeout(5), contextlib.aclosing(client.events("/left/events")) as events:
            ids.append(await anext(event["id"] async for event in events if "id" in event))
    await attacker.prepare(5000, lambda client, number: attacker.publish_and_withdraw(client, "left"))
    ids += [first["cursor"], "1" + ids[-1], ids[-1][::-1], "0.0.0", "9" * 5000, "-1.0", "f" * 14 + ids[-1]]
    resuming = [get("/left/events", f"Last-Event-ID: {id_}\r\n") for id_ in ids[:3] + ids]
    await attacker.swarm(200, *resuming, read_s=0.5)


# Slow and many requests


@misuse(CONNECTIONS, b"")
async def slow_heads(opened: Connection) -> None:
    """Headers sent byte by byte, on as many connections as an address may open."""
    await opened.send(get("/topics")[:-2] + b"X-" + b"x" * 30_000)
    for _ in range(100):
        await asyncio.sleep(random.uniform(0.5, 1.5))
        await opened.send(b"x")


@attack()
async def slow_bodies(attacker: Attacker) -> None:
    """Bodies of 256 KB without the last byte, every second one behind a waiting poll, on almost all connections."""
    raw = offer("slow", BIG)[:-1]
    waiting = post("/poll", code=await attacker.publish("waited"), side="offerer", wait=60) + raw
    begun = itertools.cycle([raw, waiting])

    async def wait(opened: Connection) -> None:
        with contextlib.suppress(TimeoutError):
            await opened.send(next(begun))
        await opened.swallow(2 * HOLD_S)

    await attacker.hold(CONNECTIONS - 10, wait)


@attack(LONG[0], "60000")
async def expire_together(attacker: Attacker) -> None:
    """560,000 candidates of one byte, in sessions that all expire at the start of the attack."""
    until_s = time.monotonic() + (30 if attacker.seconds >= 15 else 10)

    async def expire(client: Client, ttl: int, send) -> None:
        if ttl >= 1000 and (body := await send(client, offer("expiring", ttl=ttl))):
            for raw in most_candidates(json.loads(body)["code"]):
                await send(client, raw)

    def before(client: Client, number: int):
        return expire(client, int((until_s - time.monotonic()) * 1000), attacker.exchange)

    def later(client: Client):
        # They expire when the clock shows a multiple of five seconds.
        return expire(client, 5000 + int(-time.monotonic() % 5 * 1000), attacker.ask)

    await attacker.prepare(280, before, until_s - 0.5)
    await attacker.often(8, later)


@attack()
async def go_on_after_429(attacker: Attacker) -> None:
    """Requests as fast as they can be sent, regardless of responses."""
    raw = post("/poll", **NOTHING) * 50
    await attacker.hold(20, lambda opened: opened.flood(raw, opened.swallow(attacker.seconds)))


@attack()
async def strange_requests(attacker: Attacker) -> None:
    """A length of 5,000 zeros, the maximum of headers, and bodies of 256 KB that are deep or strange."""
    bodies = [
        b"[" * 250_000,
        b'{"a":' * 50_000,
        b'{"info":"i","offer":"' + b"\\u00e9" * 42_000 + b'"}',
        b'{"info":"i","offer":' + b"9" * 250_000 + b"}",
        b'{"info":"i","offer":[' + b"1e999," * 40_000 + b"1]}",
        b"{" + b",".join(b'"%d":0' % number for number in range(25_000)) + b"}",
    ]
    raws = [request("POST", "/strange/offer", body, origin=ORIGIN) for body in bodies]
    raws.append(request("POST", "/poll", origin=ORIGIN, headers=f"Content-Length: {'0' * 5000}\r\n"))

    async def ask(client: Client) -> None:
        lines = "".join(f"X-{random.getrandbits(64):x}: {number:0200}\r\n" for number in range(120))
        await attacker.ask(client, random.choice([*raws, get("/health", lines)]))

    await attacker.often(8, ask)


# WebSockets


# Violations and binary messages, with the close code that reports each (RFC 6455, 7.4.1).
BROKEN_FRAMES = itertools.cycle(
    [(each.sent, 1003) for each in VECTORS.values() if each.binary]
    + [(each.sent, each.code) for each in VECTORS.values() if each.code in (1002, 1007, 1009)]
)


def text(*values: object, **fields: object) -> bytes:
    """Return a frame with an array or an object."""
    return frame(json.dumps(values or fields, separators=(",", ":")).encode())


def rpc(method: str, **params: object) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def call(method: str, count: int = 1, **params: object) -> bytes:
    one = rpc(method, **params)
    return text(*[one] * count) if count > 1 else text(**one)


@misuse(50)
async def broken_frames(opened: Connection) -> None:
    """Frames that break each rule, each on a separate connection. The close code must report the violation."""
    data, code = next(BROKEN_FRAMES)
    # A fragment counts as a request. At the hard limit it closes the connection before the violation is read.
    # If memory is scarce, the largest unfinished messages of an address end without a close frame.
    others = () if data[0] != FIRST else (1008,) if len(data) < UNFINISHED_BYTES else (1008, None)
    with contextlib.suppress(ConnectionError):
        await opened.send(data)
    await opened.closed(code, *others)


@attack()
async def unfinished_messages(attacker: Attacker) -> None:
    """Messages without an end on all connections: endless small fragments, or 250 KB without the last byte."""
    raw = frame(b" " * UNFINISHED_BYTES)[:-1]

    async def go_on(opened: Connection) -> None:
        await opened.send(frame(b"{", FIRST))
        fragments = frame(b"x" * random.choice([0, 1, 1000]), 0x00) * 100
        await opened.flood(fragments, opened.closed(1008, 1009, None))

    async def wait(opened: Connection) -> None:
        await opened.send(raw)
        await opened.closed(None)

    waiting = attacker.hold(CONNECTIONS - 50, wait, UPGRADING, for_s=HOLD_S)
    await asyncio.gather(attacker.hold(50, go_on, UPGRADING), waiting)


@attack("--max-connections-per-address", "12000", "--rate-per-address", "5000")
async def half_open_handshakes(attacker: Attacker) -> None:
    """10,000 handshakes. Half stay incomplete, and after the others the client sends nothing, not even a pong."""
    attacker.pace = Pace(1000, 0)

    async def begin(number: int) -> None:
        await attacker.pace.take()
        data = UPGRADING[: -2 if number % 2 else None]
        await attacker.swarm(1, data, paced=False, read_s=attacker.seconds)

    await asyncio.gather(*map(begin, range(HANDSHAKES)))


FLOODS = itertools.cycle(
    [frame(b"", kind) * 4000 + frame(b"x" * 125, kind) * 200 for kind in (PING, PONG)]
    + [frame(b"{}") * 200, frame(b"[" * 50) * 200, call("poll", **NOTHING) * 50, call("poll", 100, **NOTHING)]
)


@misuse(50)
async def flood_of_messages(opened: Connection) -> None:
    """Pings, pongs, requests, batches and invalid messages as fast as possible. The connection must be closed."""
    await opened.flood(next(FLOODS), opened.closed(1008, None))


@attack()
async def flood_of_large_messages(attacker: Attacker) -> None:
    """Messages of 250 KB, and batches of a hundred waits, on as many connections as an address may open."""
    waits = call("poll", 100, code=await attacker.publish("waited"), side="offerer", wait=60)
    floods = itertools.cycle([call("offer", topic="large", info="i", offer=BIG), waits])

    async def flood(opened: Connection) -> None:
        await opened.flood(next(floods), opened.closed(1008, None))

    await attacker.hold(CONNECTIONS, flood, UPGRADING)


@attack()
async def large_waits(attacker: Attacker) -> None:
    """As many waits as an address may have, each in a message with 250 KB of unused fields."""
    unused = [str(number) for number in range(30_000)]
    waiting = call("poll", code=await attacker.publish("waited"), side="offerer", wait=60, unused=unused)

    async def wait(opened: Connection) -> None:
        for _ in range(20):
            await opened.paced(waiting)
        await opened.swallow(attacker.seconds)

    await attacker.hold(50, wait, UPGRADING)


@misuse(8)
async def store_in_batches(opened: Connection) -> None:
    """Offers of 200 KB, each in a batch with 99 small requests, as fast as the rate limit allows."""
    data = text(rpc("offer", topic="batches", info="i", offer="x" * 200_000), *[rpc("version")] * 99)
    while True:
        await opened.ask(data, 100)


@attack()
async def flood_of_subscriptions(attacker: Attacker) -> None:
    """As many subscriptions to one topic as an address may have, half of them repeatedly renewed, and offers there."""

    async def subscribe(opened: Connection) -> None:
        await opened.paced(call("subscribe", 9, topic="watched"), 9)
        await opened.swallow(attacker.seconds)

    async def come_and_go(opened: Connection) -> None:
        for number in itertools.count(1):
            await opened.paced(call("subscribe", topic="watched") + call("unsubscribe", subscription=number), 2)
            await opened.swallow(0.1)

    async def publish(opened: Connection) -> None:
        while True:
            await opened.ask(call("offer", topic="watched", info="i", offer="o"))

    kinds = ((100, subscribe), (5, come_and_go), (2, publish))
    await asyncio.gather(*(attacker.hold(*kind, UPGRADING) for kind in kinds))


def hold_offers(attacker: Attacker, connections: int, for_s: float):
    offers = call("offer", 40, topic="held", info="i", offer="o", ttl=1000, hold=True)

    async def publish(opened: Connection) -> None:
        for _ in range(int(BURST * 0.8) // connections // 40):
            await opened.ask(offers, 40)
        await opened.swallow(for_s)

    return attacker.hold(connections, publish, UPGRADING)


ATTACKS |= {
    "flood-of-held-offers": Attack(
        lambda attacker: hold_offers(attacker, 8, 0),
        "As many held offers as an address may publish, whose connections are all closed at once, repeatedly.",
        SHORT_GRACE,
    ),
    "hold-with-short-lifetimes": Attack(
        lambda attacker: hold_offers(attacker, 4, attacker.seconds),
        "As many held offers as an address may publish, each with a lifetime of a second, for the whole attack.",
    ),
}


@attack()
async def take_over(attacker: Attacker) -> None:
    """Held offers that connections take over from each other, as fast as the rate limit allows."""
    secret = "a secret of the attacker"
    codes = [await attacker.publish("held", secret=secret) for _ in range(20)]

    async def take(opened: Connection) -> None:
        for _ in range(20):
            await opened.ask(call("hold", code=random.choice(codes), secret=secret))

    await attacker.hold(10, take, UPGRADING)


@attack()
async def do_not_read_websockets(attacker: Attacker) -> None:
    """Connections that do not read the listings, events and responses that they have requested."""
    await attacker.publish_big()
    params = {"code": await attacker.publish("big", BIG), "side": "answerer"}
    waiting = {"wait": 60, "since": (await attacker.must(post("/poll", **params, wait=0)))["cursor"]}
    messages = [
        (call("sessions", 5, topic="big"), 5),
        (call("subscribe", topic="big"), 1),
        (call("poll", **params) * 8, 8),
        (call("sessions", topic="big") + call("poll", **params) * 4, 5),
        (text(*[rpc("poll", **params)] * 4, rpc("poll", **params, **waiting)), 5),
    ]
    turns = itertools.cycle(messages)

    async def wait(opened: Connection) -> None:
        await opened.paced(*next(turns))
        await asyncio.sleep(HOLD_S)

    await attacker.hold(CONNECTIONS - 10, wait, UPGRADING, room=SMALL_ROOM)


def forged(length: int = 8000) -> str:
    """Return a token of a length that no key has signed, another one each time."""
    claims = base64.urlsafe_b64encode(random.randbytes(length)).decode()[:length]
    return f"{HEADER}.{claims}.{'x' * 43}"


@attack(keys=True)
async def come_without_a_token(attacker: Attacker) -> None:
    """Forged tokens of the maximum size over every protocol, and connections that never present one."""
    targets = itertools.cycle(("", "/lobby/events?", "/y-webrtc?", "/tracker?", "/nostr?", "/peerjs?id=a&key=peerjs&"))

    async def ask(client: Client) -> None:
        path, headers = "/lobby/sessions", f"Authorization: Bearer {forged()}\r\n"
        if target := next(targets):
            path, headers = f"{target}token={forged()}", "" if "events" in target else UPGRADE
        accepted = await attacker.ask(client, request("GET", path, origin=ORIGIN, headers=headers))
        if accepted is not None or attacker.answers["101"]:
            attacker.answers["wrong: accepted"] += 1

    async def stay(opened: Connection) -> None:
        if next(NUMBERS) % 2:
            await opened.swallow()
        elif b'"error"' not in await opened.ask(call("authorize", token=forged())):
            # The error is 401, or 429 and 503 beyond the limits.
            attacker.answers["wrong: authorized"] += 1

    await asyncio.gather(attacker.often(16, ask), attacker.hold(CONNECTIONS - 16, stay, UPGRADING))


# The protocols of other libraries


Y_WEBRTC, TRACKER, NOSTR = (upgrade(path, ORIGIN) for path in ("/y-webrtc", "/tracker", "/nostr"))
MATCHBOX, RXDB, GODOT = (upgrade(path, ORIGIN) for path in ("/matchbox/crowd", "/rxdb", "/godot"))
WRONG_EVENTS = [text("EVENT", make_event("crowd", content, sig="1" * 128)) for content in ("", "small", LARGE)]


def peerjs() -> bytes:
    return upgrade(f"/peerjs?key=peerjs&id=peer-{next(NUMBERS)}&token=token", ORIGIN)


@misuse(CONNECTIONS, peerjs, for_s=HOLD_S)
async def claim_ids(opened: Connection) -> None:
    """As many PeerJS ids as an address may have connections, each with messages to absent ids."""
    for number in itertools.count():
        payload = LARGE if number % 2 else {"sdp": "v=0"}
        await opened.paced(text(type="OFFER", dst=f"absent-{number}", payload=payload))


@misuse(CONNECTIONS, Y_WEBRTC)
async def join_rooms(opened: Connection) -> None:
    """As many rooms of y-webrtc as an address may join, in messages with a thousand names each."""
    first = next(NUMBERS) * ROOMS
    await opened.send(text(type="subscribe", topics=[f"{number:0256}" for number in range(first, first + ROOMS)]))
    await opened.swallow()


@misuse(CONNECTIONS, NOSTR, for_s=HOLD_S)
async def subscribe_to_topics(opened: Connection) -> None:
    """As many topics of Nostr as an address may have, each in a filter with 500 kinds."""
    kinds = [*range(20_000, 20_500)]
    while True:
        filters = [{"#x": [f"{next(NUMBERS):0256}"], "kinds": kinds} for _ in range(75)]
        await opened.paced(text("REQ", str(next(NUMBERS)), *filters), len(filters) + 15)


@misuse(CROWD, NOSTR, room=SMALL_ROOM, for_s=HOLD_S)
async def publish_wrong_events(opened: Connection) -> None:
    """Events with wrong signatures, and large ones with many subscribers, of which some do not read."""
    await opened.send(text("REQ", "a" * 64, {"#x": ["crowd"]}))
    for data in itertools.cycle(WRONG_EVENTS):
        await opened.paced(data)


@attack()
async def publish_to_a_crowd(attacker: Attacker) -> None:
    """Large and small messages to a room of 900 connections, of which every second one does not read."""
    join = text(type="subscribe", topics=["crowd"])

    async def belong(opened: Connection) -> None:
        await opened.send(join)
        await (opened.swallow() if next(NUMBERS) % 2 else asyncio.sleep(HOLD_S))

    async def publish(opened: Connection) -> None:
        for data in itertools.cycle([BIG, "small"]):
            await opened.paced(text(type="publish", topic="crowd", data=data))

    belonging = attacker.hold(CROWD, belong, Y_WEBRTC, room=SMALL_ROOM)
    await asyncio.gather(belonging, attacker.hold(20, publish, Y_WEBRTC))


@misuse(CROWD, TRACKER, for_s=HOLD_S)
async def announce_in_swarms(opened: Connection) -> None:
    """Announcements with ten large offers in swarms of the attacker's own connections."""
    offers = [{"offer": {"type": "offer", "sdp": LARGE[:20_000]}, "offer_id": f"{number:020}"} for number in range(10)]
    for number in itertools.count(next(NUMBERS), 50):
        ids = {"peer_id": f"{number:020}", "info_hash": f"{number % 50:020}"}
        await opened.paced(text(action="announce", left=1, **ids, offers=offers), 11)


@attack()
async def enter_and_leave_rooms(attacker: Attacker) -> None:
    """Members of large rooms of RxDB, matchbox and Godot, of which some come and go. Large signals are lost."""
    join = {RXDB: text(type="join", room="crowded"), GODOT: text(type=0, id=0, data="")}
    join[MATCHBOX] = text() + text(Signal={"receiver": "absent", "data": LARGE})

    def belonging(path: bytes, count: int, held_s: float):
        async def belong(opened: Connection) -> None:
            await opened.paced(join[path], 2)
            await opened.swallow(held_s)

        return attacker.hold(count, belong, path)

    await asyncio.gather(*(belonging(path, *each) for path in join for each in ((CROWD // 3, HOLD_S), (7, 0.2))))


BROKEN_MESSAGES = [
    b"", b"nonsense", b"[" * 100_000, b"null", b"[1]", b'"\xff"', b'{"type":{}}', b'{"type":["OFFER"],"dst":{}}',
    b'{"type":"publish","topic":"\\ud800","data":1}', b'{"type":"publish","topic":["a"],"data":1}',
    b'{"type":"subscribe","topics":' + json.dumps(["x" * 1000] * 100 + [[], {}, None, 1]).encode() + b"}",
    b'{"action":"announce","info_hash":["a"],"peer_id":{}}', b'{"action":"scrape","info_hash":[[]]}',
    b'{"action":"announce","info_hash":"aaaaaaaaaaaaaaaaaaaa","peer_id":"bbbbbbbbbbbbbbbbbbbb","offers":[[],1,null]}',
    b'{"action":{"a":1}}', b'{"action":"announce","event":["x"]}', b"x" * 200_000,
    b'["REQ"]', b'["REQ",{},{}]', b'["REQ","a",[]]', b'["REQ","a",{"#x":[[],{},null],"kinds":{}}]', b'["CLOSE",[]]',
    b'["REQ","a",{"#x":["\\ud800"],"kinds":[1e400]}]', b'["EVENT",{"id":{}}]', b'["EVENT",[]]', b'[{},"a"]',
    json.dumps(["REQ", "a", *[{"#x": ["x" * 256] * 100}] * 9]).encode(),
    b'{"type":"join","room":{}}', b'{"type":"signal","senderPeerId":[],"receiverPeerId":{}}',
    b'{"Signal":{"receiver":[]}}', b'{"Signal":{"receiver":"\\ud800","data":{}}}',
    b'{"type":0,"id":1e308,"data":""}', b'{"type":4,"id":2.5,"data":[]}',
    json.dumps(["EVENT", {"id": "0" * 64, "kind": 20_001, "created_at": 1, "content": "", "tags": [[{}]]}]).encode(),
]  # fmt: skip


@misuse(50, lambda: random.choice([peerjs(), Y_WEBRTC, TRACKER, NOSTR, MATCHBOX, RXDB, GODOT]))
async def broken_messages_of_protocols(opened: Connection) -> None:
    """Malformed and huge messages to all protocols. Nothing may fail in the server."""
    for data in random.sample(BROKEN_MESSAGES, len(BROKEN_MESSAGES)):
        await opened.paced(frame(data))
    await opened.swallow(0.2)


ATTACKS["mixed"] = mix("fill-with-offers leave-in-listing expire-together refresh-watched strange-requests")
ATTACKS["mixed-websockets"] = mix(
    "broken-frames unfinished-messages flood-of-messages flood-of-subscriptions flood-of-held-offers", *SHORT_GRACE
)


async def main(name: str, seconds: float, place: Place) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(15)  # a real attacker has its own machine
    attacker = Attacker(place, seconds)
    running = asyncio.ensure_future(ATTACKS[name].run(attacker))
    while not running.done() and time.monotonic() < attacker.end_s:
        await asyncio.wait([running], timeout=0.1)
    if running.done():
        running.result()
        raise AssertionError(f"{name} has ended by itself")
    report = {"begun_s": attacker.begun_s, "ended_s": time.monotonic(), "answers": attacker.answers}
    print(json.dumps(report), flush=True)
    os._exit(0)  # closes all connections at once


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2]), Place.parse(*sys.argv[3:])))
