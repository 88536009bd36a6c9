"""The cost of a brokered pair in production: peers like browsers, durability fsync, a store that has been in use.

The PeerJS server brokers the same pairs in alternation, so that other load on the machine affects both. Each peer has
its own address, so that the figure includes the limits per address. It does not include preflights, because browsers
cache their responses.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Self
from urllib.parse import urlsplit

import jwt
import orjson
import uvloop

from . import client, messages, peers, processes, sockets
from .counter import Counter
from .figures import Bench, within
from .peerjs import Meeting, PeerJs, version
from .processes import APART, BenchError, Server, apart

PART = "life: CPU of the whole server for one brokered pair"
FIFTHS = 5
TURN_S = 2  # approximately
LIFETIME_S = 20
LEAST_LIFETIME_S = 5.0  # the time for a pair to meet, even on a busy machine
LIFETIMES = 6  # session lifetimes in one run
JUDGED_S = 3 * LIFETIME_S  # a shorter run does not represent a store in use
# The maximum time before measuring. Node.js compiles frequent code, and PeerJS has no store that must be fresh.
WARM_PAIRS, WARM_NODE_PAIRS, WARM_RATE = 100, 2000, 250
WAIT_S = 60
PATIENCE_S = 60
MOST_GROWTH = 1.15
SMALL = 0.02  # a thread with a smaller share is not shown
CODE = messages.CODE.encode()


class Requests:
    """The way a pair meets over HTTP, with prepared requests. The answerer may use a different base URL."""

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        self.base = base
        self.pair = pair
        self._other = other or base
        offerer, answerer = pair.offerer, pair.answerer
        offer = {"info": offerer.identity, "offer": offerer.description}
        self._offer = offerer.request(base, "POST", f"/{pair.topic}/offer", offer)
        self._listing = answerer.request(base, "GET", f"/{pair.topic}/sessions")
        self.answer = self.post("answerer", "/answer", answer=answerer.description)

    def post(self, side: str, path: str, code: str = messages.CODE, **fields: object) -> bytes:
        peer = self.pair.offerer if side == "offerer" else self.pair.answerer
        return peer.request(self.base, "POST", path, {"code": code, "side": side, **fields})

    async def broker(self) -> None:
        """Broker the pair over two new connections, and close these."""
        (offerer,) = await client.connect(self.base, 1, self.pair.offerer.address)
        (answerer,) = await client.connect(self._other, 1, self.pair.answerer.address)
        await self.broker_over(offerer, answerer)
        offerer.close()
        answerer.close()

    async def broker_over(self, offerer: client.Connection, answerer: client.Connection) -> None:
        """Broker the pair over two open connections."""
        await offerer.ask(self._offer)
        listed = (await answerer.ask(self._listing))["sessions"]
        if [session["offer"] for session in listed] != [self.pair.offerer.description]:
            raise BenchError(f"{self.base} does not list what was offered")
        await self._meet(offerer, answerer, listed[0]["code"])

    async def _meet(self, offerer: client.Connection, answerer: client.Connection, code: str) -> None:
        raise NotImplementedError

    def check(self, by_offerer: dict, by_answerer: dict) -> None:
        """Check that both polls return all candidates of the other side."""
        for received, peer in (
            (by_offerer["answerCandidates"], self.pair.answerer),
            (by_answerer["offerCandidates"], self.pair.offerer),
        ):
            if received != peer.candidates:
                raise BenchError(f"{self.base} does not hand over the candidates")


class Polled(Requests):
    """Thirteen requests: an offer, a listing, an answer, eight candidates, two polls."""

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        super().__init__(base, pair, other)
        both = zip(pair.offerer.candidates, pair.answerer.candidates, strict=True)
        self._candidates = [
            (self.post("offerer", "/answer", candidate=one), self.post("answerer", "/answer", candidate=other))
            for one, other in both
        ]
        self._polls = self.post("offerer", "/poll"), self.post("answerer", "/poll")

    async def _meet(self, offerer: client.Connection, answerer: client.Connection, code: str) -> None:
        async def ask(connection: client.Connection, template: bytes) -> dict:
            return await connection.ask(template.replace(CODE, code.encode()))

        await ask(answerer, self.answer)
        for one, other in self._candidates:
            await ask(offerer, one)
            await ask(answerer, other)
        self.check(await ask(offerer, self._polls[0]), await ask(answerer, self._polls[1]))


class Waited(Requests):
    """Eight requests: an offer, a listing, an answer, two batches of four candidates, a wait for each side."""

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        super().__init__(base, pair, other)
        sides = (("offerer", pair.offerer), ("answerer", pair.answerer))
        self._batches = [self.post(side, "/answer", candidates=peer.candidates) for side, peer in sides]
        self._waits = [self.post(side, "/poll", wait=WAIT_S) for side, _ in sides]

    async def _meet(self, offerer: client.Connection, answerer: client.Connection, code: str) -> None:
        async def ask(connection: client.Connection, template: bytes) -> dict:
            return await connection.ask(template.replace(CODE, code.encode()))

        waiting = asyncio.ensure_future(ask(offerer, self._waits[0]))
        await asyncio.sleep(0)  # let it wait before the answer is sent
        await ask(answerer, self.answer)
        since = (await waiting)["cursor"]
        again = self.post("offerer", "/poll", code=code, wait=WAIT_S, since=since)
        waiting = asyncio.ensure_future(offerer.ask(again))
        await ask(answerer, self._batches[1])
        by_offerer = await waiting
        await ask(offerer, self._batches[0])
        self.check(by_offerer, await ask(answerer, self._waits[1]))


class Socketed:
    """Seven requests over two WebSockets: an offer, a listing, an answer, two batches, two subscriptions."""

    ends = False  # whether the subscriptions have to be unsubscribed

    def __init__(self, base: str, pair: peers.Pair) -> None:
        parts = urlsplit(base)
        self._at = parts.hostname, parts.port
        self._pair = pair
        self._upgrades = [(peer.address, peer.upgrade(base, "/ws")) for peer in (pair.offerer, pair.answerer)]
        sides = {"offerer": pair.offerer, "answerer": pair.answerer}
        code = messages.CODE
        self._offer = _call("offer", topic=pair.topic, info=pair.offerer.identity, offer=pair.offerer.description)
        self._listing = _call("sessions", topic=pair.topic)
        self._answer = _call("answer", code=code, side="answerer", answer=pair.answerer.description)
        self._batches = [
            _call("answer", code=code, side=side, candidates=peer.candidates) for side, peer in sides.items()
        ]
        self._subscriptions = [_call("subscribe", code=code, side=side) for side in sides]

    async def opened(self) -> list[sockets.WebSocket]:
        return [await sockets.open_socket(*self._at, *upgrade) for upgrade in self._upgrades]

    async def done(self, both: list[sockets.WebSocket]) -> None:
        for socket in both:
            await socket.close()

    async def broker(self) -> None:
        offerer, answerer = both = await self.opened()
        events: dict[sockets.WebSocket, list[dict]] = {offerer: [], answerer: []}
        code = b""

        async def ask(socket: sockets.WebSocket, template: bytes) -> dict:
            socket.send(sockets.frame(template.replace(CODE, code)))
            while "id" not in (message := orjson.loads(await socket.next())):
                events[socket].append(message["params"]["data"])
            if "result" not in message:
                raise BenchError(f"a server answered {message}")
            return message["result"]

        code = (await ask(offerer, self._offer))["code"].encode()
        subscriptions = [await ask(offerer, self._subscriptions[0])]
        listed = (await ask(answerer, self._listing))["sessions"]
        if [session["offer"] for session in listed] != [self._pair.offerer.description]:
            raise BenchError("a server does not list what was offered")
        await ask(answerer, self._answer)
        subscriptions.append(await ask(answerer, self._subscriptions[1]))
        await ask(answerer, self._batches[1])
        await ask(offerer, self._batches[0])
        for socket, peer in ((offerer, self._pair.answerer), (answerer, self._pair.offerer)):
            while len(events[socket]) < 1 + len(peer.candidates):
                events[socket].append(orjson.loads(await socket.next())["params"]["data"])
            if [data["candidate"] for data in events[socket] if "candidate" in data] != peer.candidates:
                raise BenchError("a server does not hand over the candidates")
        if self.ends:
            for socket, subscription in zip(both, subscriptions, strict=True):
                await ask(socket, _call("unsubscribe", **subscription))
        await self.done(both)


class Kept(Socketed):
    """Nine requests over two WebSockets of an earlier pair, if it is done: the same, and two to unsubscribe."""

    ends = True
    _idle: ClassVar[dict[tuple[str | None, int | None], list[list[sockets.WebSocket]]]] = {}

    async def opened(self) -> list[sockets.WebSocket]:
        idle = self._idle.setdefault(self._at, [])
        return idle.pop() if idle else await super().opened()

    async def done(self, both: list[sockets.WebSocket]) -> None:
        self._idle[self._at].append(both)


def _call(method: str, **params: object) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})


# The ways in which pairs meet, and the limit of their cost as a multiple of PeerJS.
KINDS = {
    "13 requests": (Polled, 2.0),
    "waits and batches": (Waited, 1.5),
    "WebSocket": (Socketed, 1.0),
    "WebSocket, kept": (Kept, 2.0),
}


# The ways that are also measured at a server that requires tokens, and the limit of their cost there.
WITH_TOKENS = ("13 requests", "WebSocket, kept")
MOST_WITH_TOKENS = 1.05
TOKEN_S = 86_400  # longer than any run


@dataclass
class Contestant:
    name: str
    server: Server
    way: Callable  # creates a pair's way, which has a method `broker`
    most: float | None = None  # the limit as a multiple of PeerJS, if it is judged
    authorization: str = ""  # the header of all requests, the same for all peers
    without: Self | None = None  # the same way without tokens
    optional: bool = False  # whether older versions of the server may not support this way
    pairs: list[int] = field(default_factory=list)  # number of brokered pairs in each fifth
    used_s: list[float] = field(default_factory=list)  # the server's CPU time in each fifth
    threads_s: list[dict[int, float]] = field(default_factory=list)  # CPU time of each thread in each fifth
    instructions: float | None = None  # instructions in user space for all pairs, if they can be counted

    def fifths_ms(self, used_s: list[float]) -> list[float]:
        return [used / pairs * 1e3 for used, pairs in zip(used_s, self.pairs, strict=True)]

    def whole_ms(self, used_s: list[float]) -> float:
        return sum(used_s) / sum(self.pairs) * 1e3


def life(bench: Bench) -> None:
    if bench.external:
        return
    lifetime_s = max(LEAST_LIFETIME_S, min(LIFETIME_S, bench.size.life_s / LIFETIMES))
    options = {"session-timeout-ms": round(lifetime_s * 1000), "unlimited-addresses": "none"}
    checkouts = [None, *bench.others]
    with ExitStack() as stack:
        contestants = []
        for number, checkout in enumerate(checkouts, 1):
            for kind, (way, most) in KINDS.items():
                server = processes.tornado_signal(bench.directory(), durability="fsync", checkout=checkout, **options)
                name = f"{kind}, server {number}" if checkout else kind
                stack.enter_context(server)
                most = None if checkout else most
                contestants.append(Contestant(name, server, way, most, optional=checkout is not None))
        contestants += [_with_token(bench, stack, each, options) for each in contestants if each.name in WITH_TOKENS]
        peerjs = Contestant(f"PeerJS {version()}", stack.enter_context(PeerJs(bench.where / "peerjs.log")), Meeting)
        contestants.append(peerjs)
        stack.enter_context(apart(*(contestant.server for contestant in contestants)))
        busy, lacking = uvloop.run(_run(contestants, bench.size.life_s, bench.size.life_rate))
        note = (
            f"{sum(peerjs.pairs):,} pairs each, {bench.size.life_rate:g} a second in turns; a session lives "
            f"{lifetime_s:.0f} s; fsync; {APART}. The ceiling here is PeerJS"
        )
        for number, checkout in enumerate(bench.others, 2):
            note += f"; server {number} is that of {checkout}"
        note += f"; not known to its server: {', '.join(lacking)}" * bool(lacking)
        for contestant in contestants:
            _figures(bench, contestant, peerjs, note)
    bench.add(PART, "the load, of its own processor", busy * 100, "%", note="near 100 % the figures would be wrong")


def _with_token(bench: Bench, stack: ExitStack, without: Contestant, options: dict[str, object]) -> Contestant:
    """Return the same way at another server, which requires tokens."""
    where, secret = bench.directory(), os.urandom(32).hex()
    key = where.with_suffix(".secret")
    key.write_text(secret)
    options = options | {"auth-keys": key}
    server = stack.enter_context(processes.tornado_signal(where, durability="fsync", **options))
    claims = {"sub": "user-1234", "topics": ["room-*"], "exp": time.time() + TOKEN_S}
    token = jwt.encode(claims, secret, "HS256", headers={"kid": key.stem})
    name = f"{without.name}, tokens"
    return Contestant(name, server, without.way, authorization=f"Bearer {token}", without=without)


async def _knows(contestant: Contestant) -> bool:
    """Return whether a server of another version supports this way to meet."""
    try:
        await _turn(contestant, 0, 1, WARM_RATE)
    except BenchError:
        return False
    return True


async def _run(contestants: list[Contestant], length_s: float, rate: float) -> tuple[float, list[str]]:
    """Broker pairs for a time. Return the load of this process and the contestants that were removed."""
    lacking = [each for each in contestants if each.optional and not await _knows(each)]
    for contestant in lacking:
        contestants.remove(contestant)
    fifth_s = length_s / FIFTHS
    rounds = max(1, round(fifth_s / TURN_S / len(contestants)))
    count = max(1, round(fifth_s / rounds / len(contestants) * rate))  # pairs in a turn
    planned = FIFTHS * rounds * count
    for contestant in contestants:
        warm = WARM_NODE_PAIRS if contestant.way is Meeting else WARM_PAIRS
        await _turn(contestant, planned, min(warm, planned), max(rate, WARM_RATE))
    with ExitStack() as stack:
        counters = [stack.enter_context(Counter(contestant.server)) for contestant in contestants]
        busy = await _measure(contestants, rounds, count, rate)
    for contestant, counter in zip(contestants, counters, strict=True):
        contestant.instructions = counter.count
    return busy, [contestant.name for contestant in lacking]


async def _measure(contestants: list[Contestant], rounds: int, count: int, rate: float) -> float:
    """Broker `count` pairs in each turn. Return the load of this process."""
    first = 0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for fifth in range(FIFTHS):
        before = [(each.server.cpu_s(), each.server.threads_cpu_s()) for each in contestants]
        for turn in range(rounds):
            shift = (fifth * rounds + turn) % len(contestants)  # so that no contestant always follows the same one
            for contestant in contestants[shift:] + contestants[:shift]:
                await _turn(contestant, first, count, rate)
            first += count
        for contestant, (total_s, threads_s) in zip(contestants, before, strict=True):
            contestant.pairs.append(rounds * count)
            contestant.used_s.append(contestant.server.cpu_s() - total_s)
            now_s = contestant.server.threads_cpu_s().items()
            contestant.threads_s.append({thread: used_s - threads_s.get(thread, 0.0) for thread, used_s in now_s})
    return (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)


async def _turn(contestant: Contestant, first: int, count: int, rate: float) -> None:
    """Start pairs at a fixed rate, regardless of earlier ones, and wait until all are done."""
    base = contestant.server.base
    pairs = [peers.pair(number, contestant.authorization) for number in range(first, first + count)]
    ways = [contestant.way(base, pair) for pair in pairs]
    running = []
    with client.quiet():
        began_s = time.perf_counter()
        for at, way in enumerate(ways):
            await asyncio.sleep(max(0.0, began_s + at / rate - time.perf_counter()))
            running.append(asyncio.ensure_future(way.broker()))
        try:
            await asyncio.wait_for(asyncio.gather(*running), PATIENCE_S)
        except TimeoutError:
            raise BenchError(f"{contestant.name}: pairs have not met after {PATIENCE_S} s") from None


def _figures(bench: Bench, contestant: Contestant, peerjs: Contestant, note: str) -> None:
    add = partial(bench.add, PART)
    name, used_s, most = contestant.name, contestant.used_s, contestant.most
    whole_ms, fifths_ms = contestant.whole_ms(used_s), contestant.fifths_ms(used_s)
    if contestant is peerjs:
        add(name, whole_ms, "ms", fifths=fifths_ms, note=note)
    else:
        least_ms, least_fifths_ms = peerjs.whole_ms(peerjs.used_s), peerjs.fifths_ms(peerjs.used_s)
        judged = bench.size.life_s >= JUDGED_S
        times = _times(whole_ms, least_ms)
        target = {"target": f"<= {most} times PeerJS", "reached": within(times, most), "judged": judged} if most else {}
        add(name, whole_ms, "ms", ceiling=least_ms, ratio=times, fifths=fifths_ms, note=note, **target)
        ratios = [_times(mine, least) for mine, least in zip(fifths_ms, least_fifths_ms, strict=True)]
        if None not in ratios:
            middle = statistics.median(ratios)
            add(f"{name}, to PeerJS", middle, "times", fifths=ratios, note="median of the fifths")
        grown, least_grown = _times(fifths_ms[-1], fifths_ms[0]), _times(least_fifths_ms[-1], least_fifths_ms[0])
        target = {"most": MOST_GROWTH, "judged": judged} if most else {}
        add(f"{name}, last fifth to first", grown, "times", ceiling=least_grown, **target)
    if contestant.instructions is not None:
        executed = contestant.instructions / sum(contestant.pairs) / 1e6
        least = peerjs.instructions and peerjs.instructions / sum(peerjs.pairs) / 1e6
        against = {} if contestant is peerjs else {"ceiling": least, "ratio": _times(executed, least or 0)}
        add(f"{name}, instructions", executed, "M", **against)
    if (without := contestant.without) is not None:
        counted = contestant.instructions is not None and without.instructions is not None
        mine, other = (each.instructions if counted else sum(each.used_s) for each in (contestant, without))
        judged = counted and bench.size.life_s >= JUDGED_S
        note = "instructions" if counted else "CPU time, which scatters more than the limit allows"
        more = _times(mine, other)
        add(f"{name}, to that without", more, "times", most=MOST_WITH_TOKENS, judged=judged, note=note)
    threads = sorted({thread for fifth in contestant.threads_s for thread in fifth})
    for number, thread in enumerate(threads, 1):
        each_s = [fifth.get(thread, 0.0) for fifth in contestant.threads_s]
        if sum(each_s) >= SMALL * sum(used_s):
            words = f"{name}, {_called(contestant.server, thread, number)}"
            add(words, contestant.whole_ms(each_s), "ms", fifths=contestant.fifths_ms(each_s))


def _times(value: float, other: float) -> float | None:
    """Return the ratio, or None without one. CPU time is reported in steps of a hundredth of a second."""
    return value / other if other else None


def _called(server: Server, thread: int, number: int) -> str:
    """Return a thread's own name, if any, with its position in the order of creation."""
    if thread == server.pid:
        return "main thread"
    try:
        own, main = (Path(f"/proc/{each}/comm").read_text().strip() for each in (thread, server.pid))
    except OSError:  # the thread has exited
        return f"thread {number}"
    return f"thread {number}" if own in ("", main) else f"thread {number} ({own})"
