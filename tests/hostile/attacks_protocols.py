"""Attacks over the protocols of other libraries."""

import asyncio
import hashlib
import itertools
import json
import random
from collections.abc import Awaitable

from bench.sockets import UPGRADE, frame

from .attacker import BIG, CONNECTIONS, HOLD_S, ORIGIN, SMALL_ROOM, Attacker, attack
from .attacks_websockets import Attacked, hold
from .wire import request

CROWD = 900
ROOMS = 1000
LARGE = "x" * 250_000
NUMBERS = itertools.count()
PUBLIC_KEY = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"


def upgrading(path: str) -> bytes:
    return request("GET", path, origin=ORIGIN, headers=UPGRADE)


Y_WEBRTC, TRACKER, NOSTR = map(upgrading, ("/y-webrtc", "/tracker", "/nostr"))
MATCHBOX, RXDB, GODOT = map(upgrading, ("/matchbox/crowd", "/rxdb", "/godot"))


def peerjs() -> bytes:
    return upgrading(f"/peerjs?key=peerjs&id=peer-{next(NUMBERS)}&token=token")


def text(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode())


def nostr(*values: object) -> bytes:
    return frame(json.dumps(values, separators=(",", ":")).encode())


def event(topic: str, content: str) -> bytes:
    """Return an event with a correct id and a wrong signature, which the server has to check."""
    fields = {"pubkey": PUBLIC_KEY, "created_at": 1, "kind": 20_001, "tags": [["x", topic]], "content": content}
    hashed = json.dumps([0, *fields.values()], separators=(",", ":")).encode()
    return nostr("EVENT", fields | {"id": hashlib.sha256(hashed).hexdigest(), "sig": "1" * 128})


def announcement(number: int, **fields: object) -> bytes:
    return text(action="announce", peer_id=f"{number:020}", info_hash=f"{number % 50:020}", left=1, **fields)


@attack()
async def claim_ids(attacker: Attacker) -> None:
    """As many PeerJS ids as an address may have connections, each with messages to absent ids."""

    async def claim(opened: Attacked) -> None:
        for number in itertools.count():
            await attacker.pace.take()
            payload = LARGE if number % 2 else {"sdp": "v=0"}
            await opened.send(text(type="OFFER", dst=f"absent-{number}", payload=payload))

    await hold(attacker, CONNECTIONS, claim, peerjs, for_s=HOLD_S)


@attack()
async def join_rooms(attacker: Attacker) -> None:
    """As many rooms of y-webrtc as an address may join, in messages with a thousand names each."""

    async def join(opened: Attacked) -> None:
        first = next(NUMBERS) * ROOMS
        await opened.send(text(type="subscribe", topics=[f"{number:0256}" for number in range(first, first + ROOMS)]))
        await opened.swallow()

    await hold(attacker, CONNECTIONS, join, Y_WEBRTC)


@attack()
async def subscribe_to_topics(attacker: Attacker) -> None:
    """As many topics of Nostr as an address may have, each in a filter with 500 kinds."""
    kinds = [*range(20_000, 20_500)]

    async def subscribe(opened: Attacked) -> None:
        while True:
            filters = [{"#x": [f"{next(NUMBERS):0256}"], "kinds": kinds} for _ in range(75)]
            await attacker.pace.take(len(filters) + 15)
            await opened.send(nostr("REQ", str(next(NUMBERS)), *filters))

    await hold(attacker, CONNECTIONS, subscribe, NOSTR, for_s=HOLD_S)


@attack()
async def publish_wrong_events(attacker: Attacker) -> None:
    """Events with wrong signatures, and large ones with many subscribers, of which some do not read."""
    events = [event("crowd", content) for content in ("", "small", LARGE)]

    async def publish(opened: Attacked) -> None:
        await opened.send(nostr("REQ", "a" * 64, {"#x": ["crowd"]}))
        for data in itertools.cycle(events):
            await attacker.pace.take()
            await opened.send(data)

    await hold(attacker, CROWD, publish, NOSTR, room=SMALL_ROOM, for_s=HOLD_S)


@attack()
async def publish_to_a_crowd(attacker: Attacker) -> None:
    """Large and small messages to a room of 900 connections, of which every second one does not read."""
    join = text(type="subscribe", topics=["crowd"])

    async def belong(opened: Attacked) -> None:
        await opened.send(join)
        await (opened.swallow() if next(NUMBERS) % 2 else asyncio.sleep(HOLD_S))

    async def publish(opened: Attacked) -> None:
        for data in itertools.cycle([BIG, "small"]):
            await attacker.pace.take()
            await opened.send(text(type="publish", topic="crowd", data=data))

    belonging = hold(attacker, CROWD, belong, Y_WEBRTC, room=SMALL_ROOM)
    await asyncio.gather(belonging, hold(attacker, 20, publish, Y_WEBRTC))


@attack()
async def announce_in_swarms(attacker: Attacker) -> None:
    """Announcements with ten large offers in swarms of the attacker's own connections."""
    offers = [{"offer": {"type": "offer", "sdp": LARGE[:20_000]}, "offer_id": f"{number:020}"} for number in range(10)]

    async def announce(opened: Attacked) -> None:
        for number in itertools.count(next(NUMBERS), 50):
            await attacker.pace.take(11)
            await opened.send(announcement(number, offers=offers))

    await hold(attacker, CROWD, announce, TRACKER, for_s=HOLD_S)


@attack()
async def enter_and_leave_rooms(attacker: Attacker) -> None:
    """Members of large rooms of RxDB, matchbox and Godot, of which some come and go. Large signals are lost."""
    join = {MATCHBOX: text(), RXDB: text(type="join", room="crowded"), GODOT: text(type=0, id=0, data="")}
    sent = text(Signal={"receiver": "absent", "data": LARGE})

    def belonging(path: bytes, count: int, held_s: float) -> Awaitable[None]:
        async def belong(opened: Attacked) -> None:
            for data in (join[path], *([sent] if path is MATCHBOX else [])):
                await attacker.pace.take()
                await opened.send(data)
            await opened.swallow(held_s)

        return hold(attacker, count, belong, path)

    await asyncio.gather(*(belonging(path, *each) for path in join for each in ((CROWD // 3, HOLD_S), (7, 0.2))))


BROKEN = [
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


@attack()
async def broken_messages_of_protocols(attacker: Attacker) -> None:
    """Malformed and huge messages to all protocols. Nothing may fail in the server."""

    async def send_all(opened: Attacked) -> None:
        for data in random.sample(BROKEN, len(BROKEN)):
            await attacker.pace.take()
            await opened.send(frame(data))
        await opened.swallow(0.2)

    await hold(
        attacker, 50, send_all, lambda: random.choice([peerjs(), Y_WEBRTC, TRACKER, NOSTR, MATCHBOX, RXDB, GODOT])
    )
