"""Attacks over the protocols of other libraries."""

import asyncio
import itertools
import json
import random
from collections.abc import Awaitable

from bench.sockets import frame, upgrade
from support.nostr import make_event

from .attacker import BIG, CONNECTIONS, HOLD_S, ORIGIN, SMALL_ROOM, Attacker, attack
from .attacks_websockets import Attacked, hold, misuse

CROWD = 900
ROOMS = 1000
LARGE = "x" * 250_000
NUMBERS = itertools.count()


Y_WEBRTC, TRACKER, NOSTR = (upgrade(path, ORIGIN) for path in ("/y-webrtc", "/tracker", "/nostr"))
MATCHBOX, RXDB, GODOT = (upgrade(path, ORIGIN) for path in ("/matchbox/crowd", "/rxdb", "/godot"))


def peerjs() -> bytes:
    return upgrade(f"/peerjs?key=peerjs&id=peer-{next(NUMBERS)}&token=token", ORIGIN)


def text(**fields: object) -> bytes:
    return frame(json.dumps(fields).encode())


def nostr(*values: object) -> bytes:
    return frame(json.dumps(values, separators=(",", ":")).encode())


WRONG_EVENTS = [nostr("EVENT", make_event("crowd", content, sig="1" * 128)) for content in ("", "small", LARGE)]


def announcement(number: int, **fields: object) -> bytes:
    return text(action="announce", peer_id=f"{number:020}", info_hash=f"{number % 50:020}", left=1, **fields)


@misuse(CONNECTIONS, peerjs, for_s=HOLD_S)
async def claim_ids(opened: Attacked) -> None:
    """As many PeerJS ids as an address may have connections, each with messages to absent ids."""
    for number in itertools.count():
        payload = LARGE if number % 2 else {"sdp": "v=0"}
        await opened.paced(text(type="OFFER", dst=f"absent-{number}", payload=payload))


@misuse(CONNECTIONS, Y_WEBRTC)
async def join_rooms(opened: Attacked) -> None:
    """As many rooms of y-webrtc as an address may join, in messages with a thousand names each."""
    first = next(NUMBERS) * ROOMS
    await opened.send(text(type="subscribe", topics=[f"{number:0256}" for number in range(first, first + ROOMS)]))
    await opened.swallow()


@misuse(CONNECTIONS, NOSTR, for_s=HOLD_S)
async def subscribe_to_topics(opened: Attacked) -> None:
    """As many topics of Nostr as an address may have, each in a filter with 500 kinds."""
    kinds = [*range(20_000, 20_500)]
    while True:
        filters = [{"#x": [f"{next(NUMBERS):0256}"], "kinds": kinds} for _ in range(75)]
        await opened.paced(nostr("REQ", str(next(NUMBERS)), *filters), len(filters) + 15)


@misuse(CROWD, NOSTR, room=SMALL_ROOM, for_s=HOLD_S)
async def publish_wrong_events(opened: Attacked) -> None:
    """Events with wrong signatures, and large ones with many subscribers, of which some do not read."""
    await opened.send(nostr("REQ", "a" * 64, {"#x": ["crowd"]}))
    for data in itertools.cycle(WRONG_EVENTS):
        await opened.paced(data)


@attack()
async def publish_to_a_crowd(attacker: Attacker) -> None:
    """Large and small messages to a room of 900 connections, of which every second one does not read."""
    join = text(type="subscribe", topics=["crowd"])

    async def belong(opened: Attacked) -> None:
        await opened.send(join)
        await (opened.swallow() if next(NUMBERS) % 2 else asyncio.sleep(HOLD_S))

    async def publish(opened: Attacked) -> None:
        for data in itertools.cycle([BIG, "small"]):
            await opened.paced(text(type="publish", topic="crowd", data=data))

    belonging = hold(attacker, CROWD, belong, Y_WEBRTC, room=SMALL_ROOM)
    await asyncio.gather(belonging, hold(attacker, 20, publish, Y_WEBRTC))


@misuse(CROWD, TRACKER, for_s=HOLD_S)
async def announce_in_swarms(opened: Attacked) -> None:
    """Announcements with ten large offers in swarms of the attacker's own connections."""
    offers = [{"offer": {"type": "offer", "sdp": LARGE[:20_000]}, "offer_id": f"{number:020}"} for number in range(10)]
    for number in itertools.count(next(NUMBERS), 50):
        await opened.paced(announcement(number, offers=offers), 11)


@attack()
async def enter_and_leave_rooms(attacker: Attacker) -> None:
    """Members of large rooms of RxDB, matchbox and Godot, of which some come and go. Large signals are lost."""
    join = {MATCHBOX: text(), RXDB: text(type="join", room="crowded"), GODOT: text(type=0, id=0, data="")}
    sent = text(Signal={"receiver": "absent", "data": LARGE})

    def belonging(path: bytes, count: int, held_s: float) -> Awaitable[None]:
        async def belong(opened: Attacked) -> None:
            for data in (join[path], *([sent] if path is MATCHBOX else [])):
                await opened.paced(data)
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


@misuse(50, lambda: random.choice([peerjs(), Y_WEBRTC, TRACKER, NOSTR, MATCHBOX, RXDB, GODOT]))
async def broken_messages_of_protocols(opened: Attacked) -> None:
    """Malformed and huge messages to all protocols. Nothing may fail in the server."""
    for data in random.sample(BROKEN, len(BROKEN)):
        await opened.paced(frame(data))
    await opened.swallow(0.2)
