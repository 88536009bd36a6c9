"""The cost of a brokered pair in production: peers like browsers, durability fsync, a store that has been in use.

The PeerJS server brokers the same pairs in alternation, so that other load on the machine affects both. Each peer has
its own address, so that the figure includes the limits per address. It does not include preflights, because browsers
cache their responses.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar
from urllib.parse import urlsplit

import orjson
import uvloop

from . import client, peers, sockets
from .figures import Bench, ratio
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
CODE = "@" * 36  # the placeholder for a code in a template

Ask = Callable[[client.Connection, bytes], Awaitable[dict]]


class Requests:
    """The way a pair meets over HTTP, with prepared requests."""

    def __init__(self, base: str, pair: peers.Pair) -> None:
        self.base = base
        self.pair = pair
        offerer, answerer = pair.offerer, pair.answerer
        offer = {"info": offerer.identity, "offer": offerer.description}
        self._offer = offerer.request(base, "POST", f"/{pair.topic}/offer", offer)
        self._listing = answerer.request(base, "GET", f"/{pair.topic}/sessions")
        self.answer = self.post("answerer", "/answer", answer=answerer.description)

    def post(self, side: str, path: str, **fields: object) -> bytes:
        peer = self.pair.offerer if side == "offerer" else self.pair.answerer
        return peer.request(self.base, "POST", path, {"code": CODE, "side": side, **fields})

    async def broker(self) -> None:
        """Broker the pair over two new connections, and close these."""
        (offerer,) = await client.connect(self.base, 1, self.pair.offerer.address)
        (answerer,) = await client.connect(self.base, 1, self.pair.answerer.address)
        await self.broker_over(offerer, answerer)
        offerer.close()
        answerer.close()

    async def broker_over(self, offerer: client.Connection, answerer: client.Connection) -> None:
        """Broker the pair over two open connections."""
        await offerer.ask(self._offer)
        listed = (await answerer.ask(self._listing))["sessions"]
        if [session["offer"] for session in listed] != [self.pair.offerer.description]:
            raise BenchError(f"{self.base} does not list what was offered")
        code = listed[0]["code"]

        async def ask(connection: client.Connection, template: bytes) -> dict:
            return await connection.ask(template.replace(CODE.encode(), code.encode()))

        await self._meet(ask, offerer, answerer)

    async def _meet(self, ask: Ask, offerer: client.Connection, answerer: client.Connection) -> None:
        raise NotImplementedError

    def check(self, by_offerer: dict, by_answerer: dict) -> None:
        """Check that both polls return all candidates of the other side."""
        received = by_offerer["answerCandidates"], by_answerer["offerCandidates"]
        if received != (self.pair.answerer.candidates, self.pair.offerer.candidates):
            raise BenchError(f"{self.base} does not hand over the candidates")


class Polled(Requests):
    """Thirteen requests: an offer, a listing, an answer, eight candidates, two polls."""

    def __init__(self, base: str, pair: peers.Pair) -> None:
        super().__init__(base, pair)
        both = zip(pair.offerer.candidates, pair.answerer.candidates, strict=True)
        sent = partial(self.post, path="/answer")
        self._candidates = [(sent("offerer", candidate=one), sent("answerer", candidate=other)) for one, other in both]
        self._polls = self.post("offerer", "/poll"), self.post("answerer", "/poll")

    async def _meet(self, ask: Ask, offerer: client.Connection, answerer: client.Connection) -> None:
        await ask(answerer, self.answer)
        for one, other in self._candidates:
            await ask(offerer, one)
            await ask(answerer, other)
        self.check(await ask(offerer, self._polls[0]), await ask(answerer, self._polls[1]))


class Waited(Requests):
    """Eight requests: an offer, a listing, an answer, two batches of four candidates, a wait for each side."""

    def __init__(self, base: str, pair: peers.Pair) -> None:
        super().__init__(base, pair)
        sides = (("offerer", pair.offerer), ("answerer", pair.answerer))
        self._batches = [self.post(side, "/answer", candidates=peer.candidates) for side, peer in sides]
        self._waits = [self.post(side, "/poll", wait=WAIT_S) for side, _ in sides]

    async def _meet(self, ask: Ask, offerer: client.Connection, answerer: client.Connection) -> None:
        waiting = asyncio.ensure_future(ask(offerer, self._waits[0]))
        await asyncio.sleep(0)  # let it wait before the answer is sent
        await ask(answerer, self.answer)
        again = self.post("offerer", "/poll", wait=WAIT_S, since=(await waiting)["cursor"])
        waiting = asyncio.ensure_future(ask(offerer, again))
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
        self._offer = _call("offer", topic=pair.topic, info=pair.offerer.identity, offer=pair.offerer.description)
        self._listing = _call("sessions", topic=pair.topic)
        self._answer = _call("answer", code=CODE, side="answerer", answer=pair.answerer.description)
        peers_of = sides.items()
        self._batches = [_call("answer", code=CODE, side=side, candidates=each.candidates) for side, each in peers_of]
        self._subscriptions = [_call("subscribe", code=CODE, side=side) for side in sides]

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
            socket.send(sockets.frame(template.replace(CODE.encode(), code)))
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
KINDS = {"13 requests": (Polled, 2.0), "waits and batches": (Waited, 1.5), "WebSocket": (Socketed, 1.0)}
KINDS["WebSocket, kept"] = (Kept, 2.0)


@dataclass
class Contestant:
    name: str
    server: Server
    way: Callable  # creates a pair's way, which has a method `broker`
    most: float | None = None  # the limit as a multiple of PeerJS, if it is judged
    pairs: int = 0  # number of brokered pairs in each fifth
    used_s: list[float] = field(default_factory=list)  # the server's CPU time in each fifth

    @property
    def fifths_ms(self) -> list[float]:
        return [used / self.pairs * 1e3 for used in self.used_s]


def life(bench: Bench) -> None:
    lifetime_s = max(LEAST_LIFETIME_S, min(LIFETIME_S, bench.size.life_s / LIFETIMES))
    options = {"session-timeout-ms": round(lifetime_s * 1000), "unlimited-addresses": "none"}
    with ExitStack() as stack:
        contestants = []
        for number, checkout in enumerate((None, *bench.others), 1):
            for kind, (way, most) in KINDS.items():
                server = stack.enter_context(bench.server(durability="fsync", checkout=checkout, **options))
                name = f"{kind}, server {number}" if checkout else kind
                contestants.append(Contestant(name, server, way, None if checkout else most))
        peerjs = Contestant(f"PeerJS {version()}", stack.enter_context(PeerJs(bench.where / "peerjs.log")), Meeting)
        contestants.append(peerjs)
        stack.enter_context(apart(*(contestant.server for contestant in contestants)))
        busy = uvloop.run(_run(contestants, bench.size.life_s, bench.size.life_rate))
        note = (
            f"{peerjs.pairs * FIFTHS:,} pairs each, {bench.size.life_rate:g} a second in turns; a session lives "
            f"{lifetime_s:.0f} s; fsync; {APART}. The reference is PeerJS"
        )
        for number, checkout in enumerate(bench.others, 2):
            note += f"; server {number} is that of {checkout}"
        for contestant in contestants:
            _figures(bench, contestant, peerjs, note)
    bench.add(PART, "the load, of its own processor", busy * 100, "%", note="near 100 % the figures would be wrong")


async def _run(contestants: list[Contestant], length_s: float, rate: float) -> float:
    """Broker pairs for a time. Return the load of this process."""
    fifth_s = length_s / FIFTHS
    rounds = max(1, round(fifth_s / TURN_S / len(contestants)))
    count = max(1, round(fifth_s / rounds / len(contestants) * rate))  # pairs in a turn
    planned = FIFTHS * rounds * count
    for contestant in contestants:
        contestant.pairs = rounds * count
        warm = WARM_NODE_PAIRS if contestant.way is Meeting else WARM_PAIRS
        await _turn(contestant, planned, min(warm, planned), max(rate, WARM_RATE))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for fifth in range(FIFTHS):
        before_s = [each.server.cpu_s() for each in contestants]
        for turn in range(fifth * rounds, (fifth + 1) * rounds):
            shift = turn % len(contestants)  # so that no contestant always follows the same one
            for contestant in contestants[shift:] + contestants[:shift]:
                await _turn(contestant, turn * count, count, rate)
        for contestant, used_s in zip(contestants, before_s, strict=True):
            contestant.used_s.append(contestant.server.cpu_s() - used_s)
    return (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)


async def _turn(contestant: Contestant, first: int, count: int, rate: float) -> None:
    """Start pairs at a fixed rate, regardless of earlier ones, and wait until all are done."""
    ways = [contestant.way(contestant.server.base, peers.pair(number)) for number in range(first, first + count)]
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
    """Add the CPU time of a pair, compared with PeerJS, and its growth from the first to the last fifth."""
    name, fifths_ms, most = contestant.name, contestant.fifths_ms, contestant.most
    mean_ms, judged = statistics.fmean(fifths_ms), bench.size.life_s >= JUDGED_S
    if contestant is peerjs:
        bench.add(PART, name, mean_ms, "ms", fifths=fifths_ms, note=note)
        return
    least_ms = statistics.fmean(peerjs.fifths_ms)
    bench.add(PART, name, mean_ms, "ms", reference=least_ms, fifths=fifths_ms, note=note)
    of_fifths = ratio(fifths_ms, peerjs.fifths_ms)
    bench.add(PART, f"{name}, to PeerJS", of_fifths, "times", most=most, judged=judged, note="median of the fifths")
    grown = ratio(fifths_ms[-1:], fifths_ms[:1])
    most = most and MOST_GROWTH
    bench.add(PART, f"{name}, last fifth to first", grown, "times", most=most, judged=judged)
