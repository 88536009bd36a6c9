"""Attacks from one address. Each is a coroutine that runs until it is cancelled, and a process runs one of them.

Arguments: the name, the seconds, and the server's port (and certificate). At the end the process prints its start time
and the responses as JSON.
"""

import asyncio
import contextlib
import itertools
import json
import os
import random
import resource
import socket
import sys
import time

import uvloop

from . import attacks_protocols, attacks_websockets  # noqa: F401 (the imports register the attacks)
from .attacker import (
    ATTACKS,
    BIG,
    CONNECTIONS,
    HOLD_S,
    ORIGIN,
    PATIENCE_S,
    SMALL_ROOM,
    Attacker,
    attack,
    get,
    offer,
    post,
)
from .wire import BROKEN, Client, Place, request

CLOSE = "Connection: close\r\n"


def most_candidates(code: str | None, text: str = "c") -> list[bytes]:
    """Return requests with the maximum number of candidates of a session."""
    sides = ("offerer", "answerer") * 10
    return [post("/answer", code=code, side=side, candidates=[text] * 100) for side in sides]


# Disk


@attack()
async def fill_with_offers(attacker: Attacker) -> None:
    """Offers of the maximum size, as many as are accepted."""
    await attacker.repeat(16, offer("fill", BIG))


@attack("--session-timeout-ms", "5000", disk_mib=64)
async def fill_small_disk(attacker: Attacker) -> None:
    """fill-with-offers on a disk of 64 MiB, with sessions of 5 s."""
    await fill_with_offers(attacker)


# Large listings and polls


@attack()
async def leave_in_listing(attacker: Attacker) -> None:
    """Readers that disconnect after ten bytes of a listing of 15 MB."""
    await attacker.publish_big()
    await attacker.swarm(120, get("/big/sessions"), wait_s=PATIENCE_S, size=10, room=SMALL_ROOM)


@attack()
async def write_then_read(attacker: Attacker) -> None:
    """A topic that is filled for 15 s (less in a short attack), then its listing, and polls."""
    codes = [(await attacker.must(offer("big")))["code"] for _ in range(8)]
    raws = [post("/answer", code=code, side="offerer", candidate=BIG) for code in [*codes, *[codes[0]] * 8]]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(15, 0.6 * attacker.seconds)):
            await attacker.often(16, lambda client: attacker.ask(client, random.choice(raws)))
    poll = request("POST", "/poll", {"code": codes[0], "side": "answerer"}, origin=ORIGIN, headers=CLOSE)
    reads = itertools.cycle([get("/big/sessions", CLOSE), poll])
    await attacker.swarm(1, lambda: next(reads), read_s=PATIENCE_S)


@attack()
async def do_not_read(attacker: Attacker) -> None:
    """Listings and streams of 15 MB, and pipelined requests, whose clients do not read."""
    await attacker.publish_big()
    asked = itertools.cycle([get("/big/sessions"), get("/big/events"), get("/openapi.json") * 20])
    await attacker.swarm(CONNECTIONS, lambda: next(asked), rest_s=HOLD_S, room=SMALL_ROOM)


@attack("--session-timeout-ms", "300000")
async def list_ten_thousand(attacker: Attacker) -> None:
    """A topic with 9,900 small offers, listed as often as the rate limit allows."""
    raw = offer("many")
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, raw))
    await attacker.swarm(20, get("/many/sessions", CLOSE), read_s=PATIENCE_S)


@attack("--session-timeout-ms", "300000")
async def read_much(attacker: Attacker) -> None:
    """HEAD of a listing of 15 MB, polls of 2,000 candidates, and 9,900 topics, as often as allowed."""
    await attacker.publish_big()
    code = (await attacker.must(offer("many")))["code"]
    for raw in most_candidates(code, "c" * 200):
        await attacker.must(raw)
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, offer(f"{number:0200}")))
    raws = [request("HEAD", "/big/sessions", origin=ORIGIN), post("/poll", code=code, side="offerer")]
    raws += [get(f"/topics?limit=1000&page={page}") for page in (1, 10)]
    await attacker.often(8, lambda client: attacker.ask(client, random.choice(raws)))


# Watchers


@attack()
async def watch_one_topic(attacker: Attacker) -> None:
    """990 streams of one topic, and offers there as fast as the rate limit allows."""

    async def publish() -> None:
        await asyncio.sleep(1)
        await attacker.repeat(8, offer("watched"))

    attacker.slow_down()  # the streams have used the burst
    watching = attacker.swarm(CONNECTIONS - 10, get("/watched/events"), paced=False, read_s=attacker.seconds)
    await asyncio.gather(watching, publish())


@attack()
async def wake_many_polls(attacker: Attacker) -> None:
    """900 polls that wait for one session, and candidates that wake them all."""
    code = (await attacker.must(offer("woken")))["code"]

    async def wake(client: Client) -> None:
        await asyncio.sleep(1)
        await attacker.ask(client, post("/answer", code=code, side="answerer", candidate="c"))

    waiting = attacker.swarm(900, post("/poll", code=code, side="offerer", wait=60), wait_s=60)
    await asyncio.gather(waiting, attacker.often(1, wake))


@attack()
async def refresh_watched(attacker: Attacker) -> None:
    """500 streams of a topic whose sessions, long ones among them, are refreshed as fast as the rate limit allows."""
    sizes = [1] * 80 + [len(BIG)] * 20
    codes = [(await attacker.must(offer("fresh", "x" * size)))["code"] for size in sizes]

    async def refresh(client: Client) -> None:
        await attacker.ask(client, post("/refresh", code=random.choice(codes), side="offerer"))

    watching = attacker.swarm(500, get("/fresh/events"), read_s=attacker.seconds)
    await asyncio.gather(watching, attacker.often(8, refresh))


@attack("--session-timeout-ms", "300000")
async def listen_after_withdrawals(attacker: Attacker) -> None:
    """9,900 withdrawn offers, then listings of their topic, 300 waiting listings there, and offers that wake these."""
    await attacker.prepare(9900, lambda client, number: attacker.publish_and_withdraw(client, "left"))
    listing = get("/left/sessions?wait=0")
    for _ in range(2):
        await asyncio.gather(*(attacker.ask(attacker.client(), listing) for _ in range(150)))
        await attacker.must(offer("left"))
    cursor = (await attacker.must(listing))["cursor"]

    async def wake(client: Client) -> None:
        await asyncio.sleep(0.5)
        await attacker.publish_and_withdraw(client, "left")

    waiting = attacker.swarm(300, get(f"/left/sessions?wait=60&since={cursor}"), wait_s=60)
    await asyncio.gather(waiting, attacker.often(1, wake), attacker.repeat(1, listing))


@attack("--session-timeout-ms", "300000")
async def resume_old_streams(attacker: Attacker) -> None:
    """5,000 withdrawn offers, then streams that resume from before them or from unknown positions."""
    first = await attacker.must(get("/left/sessions?wait=0"))
    client = attacker.client()
    await attacker.ask(client, offer("left"))
    ids = [""]
    with contextlib.suppress(*BROKEN):
        async with asyncio.timeout(5), contextlib.aclosing(client.events("/left/events")) as events:
            async for event in events:
                if "id" in event:
                    ids.append(event["id"])
                    break
    client.close()
    await attacker.prepare(5000, lambda client, number: attacker.publish_and_withdraw(client, "left"))
    ids += [first["cursor"], "1" + ids[-1], ids[-1][::-1], "0.0.0", "9" * 5000, "-1.0", "f" * 14 + ids[-1]]

    def resuming() -> bytes:
        return get("/left/events", f"Last-Event-ID: {random.choice(ids[:3] + ids)}\r\n")

    await attacker.swarm(200, resuming, read_s=0.5)


# Connections


@attack("--max-connections", "100", "--max-connections-per-address", "30", tls=True, files=1100)
async def silent_before_handshake(attacker: Attacker) -> None:
    """1,100 silent connections to an HTTPS server with 1,100 descriptors and limits of 100 and of 30 per address."""
    await attacker.swarm(1100, b"", paced=False, read_s=attacker.seconds)


@attack()
async def reconnect(attacker: Attacker) -> None:
    """Connections that are opened and reset as fast as possible, half of them with a request."""
    await attacker.swarm(20, lambda: random.choice([get("/topics"), b""]), paced=False)


@attack()
async def slow_heads(attacker: Attacker) -> None:
    """Headers sent byte by byte, on as many connections as an address may open."""

    async def drip(connected: socket.socket) -> None:
        await attacker.send(connected, get("/topics")[:-2] + b"X-" + b"x" * 30_000)
        for _ in range(100):
            await asyncio.sleep(random.uniform(0.5, 1.5))
            await attacker.send(connected, b"x")

    await attacker.hold(CONNECTIONS, drip)


@attack()
async def slow_bodies(attacker: Attacker) -> None:
    """Bodies of 256 KB without the last byte, every second one behind a waiting poll, on almost all connections."""
    code = (await attacker.must(offer("waited")))["code"]
    raw = offer("slow", BIG)[:-1]
    begun = itertools.cycle([raw, post("/poll", code=code, side="offerer", wait=60) + raw])

    async def wait(connected: socket.socket) -> None:
        with contextlib.suppress(TimeoutError):
            await attacker.send(connected, next(begun))
        await attacker.swallow(connected, 2 * HOLD_S)

    await attacker.hold(CONNECTIONS - 10, wait)


# Requests


@attack("--session-timeout-ms", "60000")
async def expire_together(attacker: Attacker) -> None:
    """560,000 candidates of one byte, in sessions that all expire at the start of the attack."""
    until_s = time.monotonic() + (30 if attacker.seconds >= 15 else 10)

    async def fill(client: Client, number: int) -> None:
        ttl = int((until_s - time.monotonic()) * 1000)
        if ttl >= 1000 and (body := await attacker.exchange(client, offer("expiring", ttl=ttl))):
            for raw in most_candidates(json.loads(body)["code"]):
                await attacker.exchange(client, raw)

    await attacker.prepare(280, fill, until_s - 0.5)

    async def fill_paced(client: Client) -> None:
        # They expire when the clock shows a multiple of five seconds.
        ttl = 5000 + int(-time.monotonic() % 5 * 1000)
        for raw in most_candidates(await attacker.code(client, offer("expiring", ttl=ttl))):
            await attacker.ask(client, raw)

    await attacker.often(8, fill_paced)  # as fast as the rate limit allows


@attack()
async def go_on_after_429(attacker: Attacker) -> None:
    """Requests as fast as they can be sent, regardless of responses."""
    raw = post("/poll", code="00000000-0000-4000-8000-000000000000", side="offerer") * 50

    async def flood(connected: socket.socket) -> None:
        swallowing = asyncio.create_task(attacker.swallow(connected, attacker.seconds))
        try:
            while not swallowing.done():
                await attacker.send(connected, raw)
        finally:
            swallowing.cancel()
            await asyncio.gather(swallowing, return_exceptions=True)

    await attacker.hold(20, flood)


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


@attack()
async def mixed(attacker: Attacker) -> None:
    """Several of these attacks at once."""
    chosen = (fill_with_offers, leave_in_listing, expire_together, refresh_watched, strange_requests)
    await asyncio.gather(*(each(attacker) for each in chosen))


async def main(name: str, seconds: float, place: Place) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(15)  # a real attacker has its own machine
    attacker = Attacker(place, seconds)
    running = asyncio.create_task(ATTACKS[name].run(attacker))
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
