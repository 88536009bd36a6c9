"""What waiting costs: memory and idle CPU of waiting requests, how soon they are told, and brokering with waits."""

import asyncio
import resource
import time

import uvloop

from . import client, messages
from .figures import Bench, median, ratio
from .processes import APART, Server, Target, apart

WAIT_S = 60
WATCHED_S = 3.0
ANSWERED = 300


def waits(bench: Bench) -> None:
    """Waiting requests, and brokered connections whose peers wait instead of polling."""
    if bench.given:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the server too
    try:
        with bench.server() as server:
            uvloop.run(_waiting(bench, server, min(bench.size.waiting, hard - 1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with bench.server() as server, apart(server):
        flows, at_once = bench.size.flows, min(32, bench.size.flows)
        polled, waited = [], []
        for _ in range(bench.size.rounds):
            polled.append(uvloop.run(client.broker(server, flows, at_once))[0])
            waited.append(uvloop.run(_broker(server, flows, at_once)))
    share = ratio(waited, polled)
    bench.add(
        "waits",
        "CPU of one brokered connection with waits and batches",
        median(waited),
        "ms",
        ratio=share,
        target="<= 0.5 of the 13 requests'",
        reached=None if share is None else share <= 0.5,
        note="offer, answer, two batches of four candidates, a wait for the answer and one for each side's candidates; "
        + APART,
    )


async def _waiting(bench: Bench, server: Server, count: int) -> None:
    base = server.base
    topics = [f"waited-{number:05}" for number in range(count)]
    codes = await client.create(base, topics)
    connections = await client.connect(base, count)
    for connection in connections:
        await connection.ask(messages.request(base, "GET", "/health"))
    idle_bytes = server.memory_bytes()
    fields = {"side": "offerer", "wait": WAIT_S}
    told: dict[int, float] = {}
    for number, (connection, code) in enumerate(zip(connections, codes, strict=True)):
        data = messages.request(base, "POST", "/poll", {"code": code, **fields})
        connection.send(data, lambda status, body, number=number: told.setdefault(number, time.perf_counter()))
    await settled(server)
    before_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(WATCHED_S)
    busy = (server.cpu_s() - before_s) / (time.perf_counter() - began_s)
    each = (server.memory_bytes() - idle_bytes) / count
    (asker,) = await client.connect(base, 1)
    late_s = []
    for number in range(0, count, max(1, count // ANSWERED)):
        await asker.ask(messages.answer(base, codes[number]))
        answered_s = time.perf_counter()
        while number not in told:  # noqa: ASYNC110 (an event would be one more turn late)
            await asyncio.sleep(0)
        late_s.append(told[number] - answered_s)
    for connection in (asker, *connections):
        connection.close()
    late_s.sort()
    note = f"{count:,} at once, each for a session of its own"
    bench.add("waits", "a waiting request", each / 1024, "KiB", target="<= 6 KiB", reached=each <= 6144,
              note=f"{note}; resident, beyond its idle connection")  # fmt: skip
    bench.add("waits", "CPU while all wait", busy * 100, "%", target="< 3 %", reached=busy < 0.03, note=note)
    for name, at, most_s in (("median", 0.5, 0.002), ("p99", 0.99, 0.010)):
        value_s = late_s[int(len(late_s) * at)]
        bench.add(
            "waits",
            f"answer to waiting offerer, {name}",
            value_s * 1e3,
            "ms",
            target=f"<= {most_s * 1e3:.0f} ms",
            reached=value_s <= most_s,
            note=f"after the answer's own 200, {note}",
        )


async def settled(server: Server) -> None:
    """Wait until the server has taken all that was sent: until it does next to nothing, for a while at the most."""
    for _ in range(60):
        before_s = server.cpu_s()
        await asyncio.sleep(0.5)
        if server.cpu_s() - before_s < 0.02:
            return


async def _broker(target: Target, flows: int, at_once: int) -> float | None:
    """As `client.broker`, with waits and batches; the CPU of the server for one, in ms."""
    base = target.base
    pairs = await client.connect(base, 2 * at_once)
    numbers = iter(range(flows))
    run = f"{time.time_ns():x}"

    def batch(code: str, side: str) -> bytes:
        fields = {"code": code, "side": side, "candidates": [messages.CANDIDATE] * 4}
        return messages.request(base, "POST", "/answer", fields)

    def wait(code: str, side: str, since: str | None) -> bytes:
        return messages.request(base, "POST", "/poll", {"code": code, "side": side, "wait": WAIT_S, "since": since})

    async def work(offerer: client.Connection, answerer: client.Connection) -> None:
        for number in numbers:
            code = (await offerer.ask(messages.offer(base, f"{run}-{number}")))["code"]
            waiting = asyncio.ensure_future(offerer.ask(wait(code, "offerer", None)))
            await answerer.ask(messages.answer(base, code))
            cursor = (await waiting)["cursor"]
            waiting = asyncio.ensure_future(offerer.ask(wait(code, "offerer", cursor)))
            await answerer.ask(batch(code, "answerer"))
            await waiting
            await offerer.ask(batch(code, "offerer"))
            await answerer.ask(wait(code, "answerer", None))

    with client.quiet():
        before_s = target.cpu_s()
        halves = zip(pairs[:at_once], pairs[at_once:], strict=True)
        await asyncio.wait_for(asyncio.gather(*(work(*pair) for pair in halves)), client.PATIENCE_S * 4)
        after_s = target.cpu_s()
    for connection in pairs:
        connection.close()
    return None if before_s is None or after_s is None else (after_s - before_s) / flows * 1e3
