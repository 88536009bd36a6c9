"""Cost of waiting requests: memory, idle CPU, the delay until they are answered, and brokering with waits."""

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
    if bench.external:
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


class Waiting:
    """Offerers that wait for their answers at one server. The answers are sent to one server, possibly another."""

    def __init__(self, at: Server, answered_at: Server) -> None:
        self._at, self._answered_at = at, answered_at
        self._told_s: dict[int, float] = {}

    async def create(self, count: int) -> None:
        """Publish the offers, and connect their offerers, each with a first request."""
        self._codes = await client.create(self._answered_at.base, [f"waited-{number:05}" for number in range(count)])
        self._connections = await client.connect(self._at.base, count)
        for connection in self._connections:
            await connection.ask(messages.request(self._at.base, "GET", "/health"))
        (self._asker,) = await client.connect(self._answered_at.base, 1)

    async def wait(self) -> None:
        for number, (connection, code) in enumerate(zip(self._connections, self._codes, strict=True)):
            data = messages.poll(self._at.base, code, "offerer", wait=WAIT_S)
            connection.send(data, lambda *_, number=number: self._told_s.setdefault(number, time.perf_counter()))
        await settled(self._at)

    async def answer(self, number: int) -> tuple[float, float]:
        """Answer one session. Return how long after the request, and after its response, the offerer had the answer."""
        answer = messages.answer(self._answered_at.base, self._codes[number])
        return await lateness(self._asker, answer, lambda: self._told_s.get(number))

    def close(self) -> None:
        for connection in (self._asker, *self._connections):
            connection.close()


async def _waiting(bench: Bench, server: Server, count: int) -> None:
    waiting = Waiting(server, server)
    await waiting.create(count)
    idle_bytes = server.memory_bytes()
    await waiting.wait()
    busy = await busy_share(server, WATCHED_S)
    each = (server.memory_bytes() - idle_bytes) / count
    late_s = [(await waiting.answer(number))[1] for number in some(count)]
    waiting.close()
    note = f"{count:,} at once, each for a session of its own"
    beyond = f"{note}; resident, beyond its idle connection"
    bench.add("waits", "a waiting request", each / 1024, "KiB", most=6, note=beyond)
    bench.add("waits", "CPU while all wait", busy * 100, "%", most=3, note=note)
    add_lateness(partial(bench.add, "waits", note=f"after the answer's own 200, {note}"), "waiting offerer", late_s)


def some(count: int, answered: int = ANSWERED) -> range:
    return range(0, count, max(1, count // answered))


async def settled(server: Server) -> None:
    """Wait until the server has processed everything and is nearly idle, for a limited time."""
    for _ in range(60):
        if await busy_share(server, 0.5) < 0.04:
            return


async def busy_share(server: Server, seconds: float) -> float:
    used_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(seconds)
    return (server.cpu_s() - used_s) / (time.perf_counter() - began_s)


async def lateness(asker: client.Connection, answer: bytes, told_s: Callable[[], float | None]) -> tuple[float, float]:
    """Return the delay of the event at `told_s()` after an answer was sent, and after its 200 response."""
    sent_s = time.perf_counter()
    await asker.ask(answer)
    answered_s = time.perf_counter()
    while not (at_s := told_s()):  # noqa: ASYNC110 (an event would be one event-loop iteration later)
        await asyncio.sleep(0)
    return at_s - sent_s, at_s - answered_s


def add_lateness(add: Callable[..., None], whom: str, late_s: list[float]) -> None:
    for name, share, most_ms in (("median", 0.5, 2), ("p99", 0.99, 10)):
        add(f"answer to {whom}, {name}", client.percentile(late_s, share), "ms", most=most_ms)


async def _broker(target: Target, flows: int, at_once: int) -> float | None:
    """Broker as `client.broker` does, with waits and batches. Return the server's CPU time for one pair, in ms."""
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
