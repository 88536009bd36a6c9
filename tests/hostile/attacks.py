"""Attacks from one address. Each is a coroutine that runs until it is cancelled, and a process runs one of them.

Arguments: the name, the seconds, and the server's port (and certificate). At the end the process prints its start time
and the responses as JSON.
"""

import asyncio
import contextlib
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
    RATE,
    SMALL_ROOM,
    Attacker,
    Pace,
    attack,
    get,
    offer,
    post,
    publish_and_withdraw,
    publish_big,
)
from .wire import BROKEN, Client, Place, request

CLOSE = "Connection: close\r\n"

# Disk


@attack()
async def fill_with_offers(attacker: Attacker) -> None:
    """Offers of the maximum size, as many as are accepted."""
    await attacker.repeat(16, offer("fill", BIG))


@attack("--session-timeout-ms", "5000", disk_mib=64)
async def fill_small_disk(attacker: Attacker) -> None:
    """fill-with-offers on a disk of 64 MiB, with sessions of 5 s."""
    await attacker.repeat(16, offer("fill", BIG))


# Large listings and polls


@attack()
async def leave_in_listing(attacker: Attacker) -> None:
    """Readers that disconnect after ten bytes of a listing of 15 MB."""
    await publish_big(attacker)
    await attacker.swarm(120, get("/big/sessions"), wait_s=PATIENCE_S, size=10, room=SMALL_ROOM)


@attack()
async def write_then_list(attacker: Attacker) -> None:
    """Sessions of one topic, filled for 15 s (60 % of a short attack), then its listing."""
    codes = [(await attacker.must(offer("big")))["code"] for _ in range(8)]
    raws = [post("/answer", code=code, side="offerer", candidate=BIG) for code in codes]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(15, 0.6 * attacker.seconds)):
            await attacker.often(16, lambda client: attacker.ask(client, random.choice(raws)))
    await attacker.swarm(1, get("/big/sessions", CLOSE), read_s=PATIENCE_S)


@attack()
async def write_then_poll(attacker: Attacker) -> None:
    """One session, filled for 15 s (60 % of a short attack), then polls of it."""
    code = (await attacker.must(offer("big")))["code"]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(15, 0.6 * attacker.seconds)):
            await attacker.repeat(16, post("/answer", code=code, side="offerer", candidate=BIG))
    raw = request("POST", "/poll", {"code": code, "side": "answerer"}, origin=ORIGIN, headers=CLOSE)
    await attacker.swarm(1, raw, read_s=PATIENCE_S)


@attack()
async def do_not_read(attacker: Attacker) -> None:
    """900 clients that request a listing of 15 MB and do not read it."""
    await publish_big(attacker)
    await attacker.swarm(900, get("/big/sessions"), rest_s=HOLD_S, room=SMALL_ROOM)


@attack()
async def do_not_read_streams(attacker: Attacker) -> None:
    """Streams of a topic with 15 MB whose clients do not read, as many as an address may open."""
    await publish_big(attacker)
    await attacker.swarm(CONNECTIONS, get("/big/events"), rest_s=HOLD_S, room=SMALL_ROOM)


@attack()
async def do_not_read_pipelined(attacker: Attacker) -> None:
    """Many requests on each of many connections, without reading the responses."""
    await attacker.swarm(CONNECTIONS, get("/openapi.json") * 20, paced=False, rest_s=HOLD_S, room=SMALL_ROOM)


@attack()
async def head_of_listing(attacker: Attacker) -> None:
    """HEAD of a listing of 15 MB, as often as the rate limit allows."""
    await publish_big(attacker)
    await attacker.repeat(8, request("HEAD", "/big/sessions", origin=ORIGIN))


@attack("--session-timeout-ms", "300000")
async def list_ten_thousand(attacker: Attacker) -> None:
    """A topic with 9,900 small offers, listed as often as the rate limit allows."""
    raw = offer("many")
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, raw))
    await attacker.swarm(20, get("/many/sessions", CLOSE), read_s=PATIENCE_S)


@attack("--session-timeout-ms", "300000")
async def list_many_topics(attacker: Attacker) -> None:
    """9,900 topics with long names, listed as often as the rate limit allows."""
    await attacker.prepare(9900, lambda client, number: attacker.exchange(client, offer(f"{number:0200}")))

    async def look(client: Client) -> None:
        await attacker.ask(client, get(f"/topics?limit=1000&page={random.randrange(1, 11)}"))

    await attacker.often(4, look)


@attack()
async def poll_many_candidates(attacker: Attacker) -> None:
    """Sessions with 1,000 candidates of each side, polled as often as the rate limit allows."""
    code = (await attacker.must(offer("many")))["code"]
    for side in ("offerer", "answerer"):
        for _ in range(10):
            await attacker.must(post("/answer", code=code, side=side, candidates=["c" * 200] * 100))
    await attacker.repeat(8, post("/poll", code=code, side="offerer"))


# Watchers


@attack()
async def watch_one_topic(attacker: Attacker) -> None:
    """990 streams of one topic, and offers there as fast as the rate limit allows."""

    async def publish() -> None:
        await asyncio.sleep(1)
        await attacker.repeat(8, offer("watched"))

    attacker.pace = Pace(RATE, 0)  # the streams have used the burst
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
    await attacker.prepare(9900, lambda client, number: publish_and_withdraw(attacker, client, "left"))
    listing = get("/left/sessions?wait=0")
    for _ in range(2):
        await asyncio.gather(*(attacker.ask(attacker.client(), listing) for _ in range(150)))
        await attacker.must(offer("left"))
    cursor = (await attacker.must(listing))["cursor"]

    async def wake(client: Client) -> None:
        await asyncio.sleep(0.5)
        await publish_and_withdraw(attacker, client, "left")

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
    await attacker.prepare(5000, lambda client, number: publish_and_withdraw(attacker, client, "left"))
    ids += [first["cursor"], "1" + ids[-1], ids[-1][::-1], "0.0.0", "9" * 5000, "-1.0", "f" * 14 + ids[-1]]

    def resuming() -> bytes:
        return get("/left/events", f"Last-Event-ID: {random.choice(ids[:3] + ids)}\r\n")

    await attacker.swarm(200, resuming, read_s=0.5)


# Connections


@attack("--max-connections-per-address", "100", tls=True, files=1100)
async def silent_before_handshake(attacker: Attacker) -> None:
    """1,100 silent connections to an HTTPS server with 1,100 descriptors and a limit of 100 per address."""
    await attacker.swarm(1100, b"", paced=False, read_s=attacker.seconds)


@attack("--max-connections", "100", "--max-connections-per-address", "30")
async def silent_connections(attacker: Attacker) -> None:
    """150 silent connections to a server with limits of 100 connections and 30 per address."""
    await attacker.swarm(150, b"", paced=False, read_s=attacker.seconds)


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
    """Bodies of 256 KB without the last byte, on as many connections as an address may open."""
    await attacker.swarm(CONNECTIONS, offer("slow", BIG)[:-1], paced=False, read_s=HOLD_S)


@attack()
async def bodies_behind_waits(attacker: Attacker) -> None:
    """Bodies of 256 KB pipelined after waiting polls, on as many connections as an address may open."""
    code = (await attacker.must(offer("waited")))["code"]
    raw = post("/poll", code=code, side="offerer", wait=60) + offer("waited", BIG)

    async def wait(connected: socket.socket) -> None:
        with contextlib.suppress(TimeoutError):
            await attacker.send(connected, raw)
        await asyncio.sleep(2 * HOLD_S)

    await attacker.hold(CONNECTIONS - 10, wait)


# Requests


@attack("--session-timeout-ms", "60000")
async def expire_together(attacker: Attacker) -> None:
    """560,000 candidates of one byte, in sessions that all expire at the start of the attack."""
    until_s = time.monotonic() + (30 if attacker.seconds >= 15 else 10)

    async def fill(client: Client, number: int) -> None:
        ttl = int((until_s - time.monotonic()) * 1000)
        if ttl >= 1000 and (body := await attacker.exchange(client, offer("expiring", ttl=ttl))):
            for side in ("offerer", "answerer"):
                raw = post("/answer", code=json.loads(body)["code"], side=side, candidates=["c"] * 100)
                for _ in range(10):
                    await attacker.exchange(client, raw)

    await attacker.prepare(280, fill, until_s - 0.5)
    # Then continue as fast as the rate limit allows.
    await attacker.often(8, lambda client: fill_paced(attacker, client))


async def fill_paced(attacker: Attacker, client: Client) -> None:
    """Sessions with the maximum number of candidates that expire when the clock shows a multiple of five seconds."""
    code = await attacker.code(client, offer("expiring", ttl=5000 + int(-time.monotonic() % 5 * 1000)))
    for side in ("offerer", "answerer"):
        for _ in range(10):
            await attacker.ask(client, post("/answer", code=code, side=side, candidates=["c"] * 100))


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
async def length_of_zeros(attacker: Attacker) -> None:
    """A Content-Length of 5,000 zeros, as often as the rate limit allows."""
    raw = request("POST", "/poll", origin=ORIGIN, headers=f"Content-Length: {'0' * 5000}\r\n")
    await attacker.swarm(50, raw, read_s=0.3)


@attack()
async def huge_heads(attacker: Attacker) -> None:
    """Requests with the maximum number of headers, all different, as often as the rate limit allows."""

    async def ask(client: Client) -> None:
        lines = "".join(f"X-{random.getrandbits(64):x}: {number:0200}\r\n" for number in range(120))
        await attacker.ask(client, get("/health", lines))

    await attacker.often(8, ask)


@attack()
async def strange_json(attacker: Attacker) -> None:
    """Bodies of 256 KB that are deeply nested, full of escapes, or a single number."""
    bodies = [
        b"[" * 250_000,
        b'{"a":' * 50_000,
        b'{"info":"i","offer":"' + b"\\u00e9" * 42_000 + b'"}',
        b'{"info":"i","offer":' + b"9" * 250_000 + b"}",
        b'{"info":"i","offer":[' + b"1e999," * 40_000 + b"1]}",
        b"{" + b",".join(b'"%d":0' % number for number in range(25_000)) + b"}",
    ]
    requests = [request("POST", "/strange/offer", body, origin=ORIGIN) for body in bodies]
    await attacker.often(8, lambda client: attacker.ask(client, random.choice(requests)))


@attack()
async def mixed(attacker: Attacker) -> None:
    """Several of these attacks at once."""
    chosen = (fill_with_offers, leave_in_listing, expire_together, refresh_watched, length_of_zeros)
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
