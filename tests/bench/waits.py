"""What waiting costs: memory and idle CPU of waiting requests, how soon they are told, and brokering with waits."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import uvloop

from . import client, messages
from .figures import Bench, median, ratio, within
from .processes import APART, Server, Target, apart, many_files

WAIT_S = 60
WATCHED_S = 3.0
ANSWERED = 300


def waits(bench: Bench) -> None:
    """Waiting requests, and brokered connections whose peers wait instead of polling."""
    if bench.given:
        return
    with many_files() as most, bench.server() as server:
        uvloop.run(_waiting(bench, server, min(bench.size.waiting, most)))
    with bench.server() as server, apart(server):
        flows, at_once = bench.size.flows, min(32, bench.size.flows)
        polled, waited = [], []
        for _ in range(bench.size.rounds):
            polled.append(uvloop.run(client.broker(server, flows, at_once))[0])
            waited.append(uvloop.run(_broker(server, flows, at_once)))
    share = ratio(waited, polled)
    name = "CPU of one brokered connection with waits and batches"
    note = "offer, answer, two batches of four candidates, a wait for the answer and one for each side's candidates; "
    target = {"target": "<= 0.5 of the 13 requests'", "reached": within(share, 0.5)}
    bench.add("waits", name, median(waited), "ms", ratio=share, note=note + APART, **target)


async def _waiting(bench: Bench, server: Server, count: int) -> None:
    base = server.base
    codes = await client.create(base, [f"waited-{number:05}" for number in range(count)])
    connections = await client.connect(base, count)
    for connection in connections:
        await connection.ask(messages.request(base, "GET", "/health"))
    idle_bytes = server.memory_bytes()
    told: dict[int, float] = {}
    for number, (connection, code) in enumerate(zip(connections, codes, strict=True)):
        data = messages.poll(base, code, "offerer", wait=WAIT_S)
        connection.send(data, lambda status, body, number=number: told.setdefault(number, time.perf_counter()))
    await settled(server)
    busy = await busy_share(server, WATCHED_S)
    each = (server.memory_bytes() - idle_bytes) / count
    late_s = await lateness(base, codes, told.get)
    for connection in connections:
        connection.close()
    note = f"{count:,} at once, each for a session of its own"
    beyond = f"{note}; resident, beyond its idle connection"
    bench.add("waits", "a waiting request", each / 1024, "KiB", most=6, note=beyond)
    bench.add("waits", "CPU while all wait", busy * 100, "%", most=3, note=note)
    add_lateness(partial(bench.add, "waits", note=f"after the answer's own 200, {note}"), "waiting offerer", late_s)


async def settled(server: Server) -> None:
    """Wait until the server has taken all that was sent: until it does next to nothing, for a while at the most."""
    for _ in range(60):
        if await busy_share(server, 0.5) < 0.04:
            return


async def busy_share(server: Server, seconds: float) -> float:
    """How busy a server is, for so long."""
    used_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (server.cpu_s() - used_s) / (time.perf_counter() - began_s)


async def lateness(base: str, codes: list[str], told_s: Callable[[int], float | None]) -> list[float]:
    """Answer some sessions; how long after the answer's own 200 `told_s` says that the one with this number knew."""
    (asker,) = await client.connect(base, 1)
    late_s = []
    for number in range(0, len(codes), max(1, len(codes) // ANSWERED)):
        await asker.ask(messages.answer(base, codes[number]))
        answered_s = time.perf_counter()
        while not told_s(number):  # noqa: ASYNC110 (an event would be one more turn late)
            await asyncio.sleep(0)
        late_s.append(told_s(number) - answered_s)
    asker.close()
    return late_s


def add_lateness(add: Callable[..., None], whom: str, late_s: list[float]) -> None:
    """The figures of that."""
    for name, share, most_ms in (("median", 0.5, 2), ("p99", 0.99, 10)):
        add(f"answer to {whom}, {name}", client.percentile(late_s, share), "ms", most=most_ms)


async def _broker(target: Target, flows: int, at_once: int) -> float | None:
    """As `client.broker`, with waits and batches; the CPU of the server for one, in ms."""
    base = target.base
    connections = await client.connect(base, 2 * at_once)
    numbers = iter(range(flows))
    run = f"{time.time_ns():x}"

    def batch(code: str, side: str) -> bytes:
        fields = {"code": code, "side": side, "candidates": [messages.CANDIDATE] * 4}
        return messages.request(base, "POST", "/answer", fields)

    def wait(code: str, side: str, since: str | None) -> bytes:
        return messages.poll(base, code, side, wait=WAIT_S, since=since)

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

    used_s, _ = await client.measured(target, connections, map(work, connections[:at_once], connections[at_once:]))
    return None if used_s is None else used_s / flows * 1e3
