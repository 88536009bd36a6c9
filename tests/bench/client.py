"""A client for flows and latencies with one request at a time for each connection. It parses only a response's end."""

import asyncio
import collections
import gc
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import contextmanager
from urllib.parse import urlsplit

import orjson

from . import messages
from .processes import BenchError, Target

PATIENCE_S = 30.0

Done = Callable[[int, bytes], None]


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""
        self._done: Done | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, data: bytes, done: Done) -> None:
        """Send a request. `done` is called with status and body, or with 0 and an empty body without a response."""
        if self._transport.is_closing():
            done(0, b"")
            return
        self._done = done
        self._transport.write(data)

    async def answered(self, data: bytes) -> tuple[int, bytes]:
        answered = asyncio.get_running_loop().create_future()
        self.send(data, lambda *found: answered.done() or answered.set_result(found))
        return await answered

    async def ask(self, data: bytes) -> dict:
        """Send a request and return the JSON of its response, which must be a success."""
        status, body = await self.answered(data)
        if status != 200:
            line = data.partition(b"\r\n")[0].decode()
            raise BenchError(f"{line} was answered with {status or 'the end of the connection'} {body[:200]!r}")
        return orjson.loads(body)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        fields = head.lower()
        at = fields.find(b"\r\ncontent-length:")
        if at >= 0:
            length = int(fields[at + 17 :].partition(b"\r\n")[0])
            if len(rest) < length:
                return
            body = rest[:length]
        elif b"\r\ntransfer-encoding: chunked" in fields:
            if not rest.endswith(b"0\r\n\r\n"):
                return
            body = _unchunked(rest)
        else:
            body = b""
        self._received = b""
        self._finish(int(head[9:12]), body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish(0, b"")

    def _finish(self, status: int, body: bytes) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(status, body)


def _unchunked(data: bytes) -> bytes:
    body = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        body += data[:length]
        data = data[length + 2 :]
        if not length:
            break
    return body


async def connect(base: str, count: int, address: str | None = None) -> list[Connection]:
    """Open connections, optionally from a local address."""
    loop = asyncio.get_running_loop()
    parts = urlsplit(base)
    where = {"host": parts.hostname, "port": parts.port or 80, "local_addr": (address, 0) if address else None}
    try:
        return [(await loop.create_connection(Connection, **where))[1] for _ in range(count)]
    except OSError as error:
        raise BenchError(f"cannot connect to {base}: {error}") from error


@contextmanager
def quiet():
    """Disable garbage collection, which would pause this process."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def create(base: str, topics: list[str], **rest: str) -> list[str]:
    """Publish one offer in each of the topics, and return the codes."""
    connections = await connect(base, min(len(topics), 32))
    waiting = list(enumerate(topics))
    codes = [""] * len(topics)

    async def work(connection: Connection) -> None:
        while waiting:
            at, topic = waiting.pop()
            codes[at] = (await connection.ask(messages.offer(base, topic, **rest)))["code"]

    await asyncio.wait_for(asyncio.gather(*map(work, connections)), PATIENCE_S * 4)
    for connection in connections:
        connection.close()
    return codes


async def measured(target: Target, connections: list[Connection], works: Iterable[Coroutine]) -> tuple:
    """Run all of it and close the connections. Return the server's CPU time (None if unknown) and the elapsed time."""
    with quiet():
        before_s, began_s = target.cpu_s(), time.perf_counter()
        await asyncio.wait_for(asyncio.gather(*works), PATIENCE_S * 4)
        after_s, ended_s = target.cpu_s(), time.perf_counter()
    for connection in connections:
        connection.close()
    return None if before_s is None or after_s is None else after_s - before_s, ended_s - began_s


async def broker(target: Target, flows: int, at_once: int) -> tuple[float | None, float]:
    """Broker connections, each with 13 requests: an offer, a listing, an answer, eight candidates, two polls.

    Returns:
        The server's CPU time for each in ms (None if it cannot be read), and the number brokered per second.
    """
    base = target.base
    connections = await connect(base, at_once)
    numbers = iter(range(flows))
    run = f"{time.time_ns():x}"

    async def work(connection: Connection) -> None:
        ask = connection.ask
        for number in numbers:
            topic = f"{run}-{number}"
            code = (await ask(messages.offer(base, topic)))["code"]
            listed = (await ask(messages.sessions(base, topic)))["sessions"]
            if [session["code"] for session in listed] != [code]:
                raise BenchError(f"{base} does not list what was offered")
            await ask(messages.answer(base, code))
            for _ in range(4):
                await ask(messages.candidate(base, code, "offerer"))
                await ask(messages.candidate(base, code, "answerer"))
            for side, name in (("offerer", "answerCandidates"), ("answerer", "offerCandidates")):
                if len((await ask(messages.poll(base, code, side)))[name]) != 4:
                    raise BenchError(f"{base} does not hand over the candidates")

    health = messages.request(base, "GET", "/health")
    await asyncio.wait_for(asyncio.gather(*(connection.ask(health) for connection in connections)), PATIENCE_S)
    used_s, taken_s = await measured(target, connections, map(work, connections))
    return None if used_s is None else used_s / flows * 1e3, flows / taken_s


async def mix(base: str, origin: str, count: int) -> Callable[[int], bytes]:
    """Return a function that makes the request with a number: mostly polls, as peers of these sessions send them."""
    topics = [f"mixed-{number:04}" for number in range(count)]
    codes = await create(base, topics, origin=origin)
    # Offerers wait for an answer. Only they send candidates, so that these polls do not grow.
    polls = [messages.poll(base, code, "offerer", origin=origin) for code in codes]
    others = {
        0: [messages.offer(base, f"new-{topic}", origin=origin) for topic in topics],
        3: [messages.candidate(base, code, "offerer", origin=origin) for code in codes],
        6: [messages.sessions(base, topic, origin=origin) for topic in topics],
    }
    return lambda number: others.get(number % 10, polls)[(number // 10 * 7919 + number % 10) % count]


async def steady(base: str, make, rate: int, stop, connections: int = 64, pause_s: float = 0) -> list:
    """Send the requests of `make` at a steady rate, regardless of responses, until `stop` returns True.

    `stop` is called ten times a second.

    Returns:
        For each request, when it was due (`time.perf_counter`) and the delay of its response from then. Time spent
        waiting for a free connection counts as delay.
    """
    opened = await connect(base, connections)
    free = list(opened)
    waiting: collections.deque[tuple[float, bytes]] = collections.deque()
    seen: list[tuple[float, float]] = []
    failures: list[int] = []
    clock = time.perf_counter

    def send(connection: Connection, due_s: float, data: bytes) -> None:
        def done(status: int, body: bytes) -> None:
            seen.append((due_s, clock() - due_s))
            if status != 200:
                failures.append(status)
            if waiting:
                send(connection, *waiting.popleft())
            else:
                free.append(connection)

        connection.send(data, done)

    with quiet():
        began_s = clock()
        sent = 0
        look = 0
        while True:
            now_s = clock() - began_s
            while sent <= now_s * rate:
                due_s, data = began_s + sent / rate, make(sent)
                sent += 1
                if free:
                    send(free.pop(), due_s, data)
                else:
                    waiting.append((due_s, data))
            if now_s * 10 > look:
                look = int(now_s * 10) + 1
                if stop():
                    break
            # Timers are up to a millisecond late, so busy-wait until the next request is due.
            await asyncio.sleep(pause_s)
        give_up_s = clock() + PATIENCE_S
        while len(seen) < sent and clock() < give_up_s:  # noqa: ASYNC110 (the end of it is not urgent)
            await asyncio.sleep(0.01)
    for connection in opened:
        connection.close()
    if len(seen) < sent or failures:
        kinds = sorted(set(failures))
        raise BenchError(f"{sent - len(seen)} requests without an answer, {len(failures)} failed {kinds} at {rate}/s")
    return seen


def percentile(latencies_s: list[float], share: float) -> float:
    """Return the latency, in ms, that a share of the requests did not exceed."""
    ordered = sorted(latencies_s)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3
