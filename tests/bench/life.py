"""The cost of a brokered pair in production: peers like browsers, durability fsync, a store that has been in use.

The PeerJS server brokers the same pairs in alternation, so that other load on the machine affects both. Each peer has
its own address, so that the figure includes the limits per address. It does not include preflights, because browsers
cache their responses.
"""

import asyncio
import itertools
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import orjson
import uvloop

from . import client, originals, peers, sockets
from .figures import Bench, alternate, ratio
from .peerjs import Meeting
from .processes import APART, BenchError, Server, apart

PART = "life: CPU of the whole server for one brokered pair"
TURN_S = 2  # approximately
RATE = 80  # pairs per second, while a server is measured
LEAST_TURNS = 5
LIFETIME_S = 20
LEAST_LIFETIME_S = 5.0  # the time for a pair to meet, even on a busy machine
LIFETIMES = 6  # session lifetimes in one run
JUDGED_S = 3 * LIFETIME_S  # a shorter run does not represent a store in use
# The maximum time before measuring. Node.js compiles frequent code, and PeerJS has no store that must be fresh.
WARM_PAIRS, WARM_NODE_PAIRS, WARM_RATE = 100, 2000, 250
PATIENCE_S = 60


class Polled:
    """Thirteen requests over HTTP: an offer, a listing, an answer, eight candidates, two polls."""

    def __init__(self, base: str, pair: peers.Pair) -> None:
        self.base, self.pair = base, pair

    async def broker(self) -> None:
        """Broker the pair over two new connections, and close these."""
        with self.pair.connections(self.base) as both:
            await self.broker_over(*both)

    async def broker_over(self, offering: client.Connection, answering: client.Connection) -> None:
        """Broker the pair over two open connections."""
        offerer, answerer, topic = self.pair.offerer, self.pair.answerer, self.pair.topic
        offer = {"info": offerer.identity, "offer": offerer.description}
        code = (await offering.must(offerer.request(self.base, "POST", f"/{topic}/offer", offer)))["code"]
        listed = await answering.must(answerer.request(self.base, "GET", f"/{topic}/sessions"))
        if [session["offer"] for session in listed["sessions"]] != [offerer.description]:
            raise BenchError(f"{self.base} does not list what was offered")

        async def ask(connection: client.Connection, peer: peers.Peer, side: str, path: str, **fields: object) -> dict:
            return await connection.must(peer.request(self.base, "POST", path, {"code": code, "side": side, **fields}))

        sides = (offering, offerer, "offerer"), (answering, answerer, "answerer")
        ask_offerer, ask_answerer = (partial(ask, *side) for side in sides)
        await ask_answerer("/answer", answer=answerer.description)
        for one, other in zip(offerer.candidates, answerer.candidates, strict=True):
            await ask_offerer("/answer", candidate=one)
            await ask_answerer("/answer", candidate=other)
        by_offerer, by_answerer = await ask_offerer("/poll"), await ask_answerer("/poll")
        received = by_offerer["answerCandidates"], by_answerer["offerCandidates"]
        if received != (answerer.candidates, offerer.candidates):
            raise BenchError(f"{self.base} does not hand over the candidates")


class Socketed:
    """Seven requests over two WebSockets: an offer, a listing, an answer, two batches, two subscriptions."""

    ends = False  # whether the subscriptions have to be unsubscribed

    def __init__(self, base: str, pair: peers.Pair) -> None:
        self._base, self._pair = base, pair

    async def opened(self) -> list[sockets.WebSocket]:
        both = (self._pair.offerer, self._pair.answerer)
        return [await sockets.open_socket(self._base, peer.upgrade(self._base, "/ws"), peer.address) for peer in both]

    async def done(self, both: list[sockets.WebSocket]) -> None:
        for socket in both:
            await socket.close()

    async def broker(self) -> None:
        one, other, topic = self._pair.offerer, self._pair.answerer, self._pair.topic
        offerer, answerer = both = await self.opened()
        events: dict[sockets.WebSocket, list[dict]] = {offerer: [], answerer: []}

        async def ask(socket: sockets.WebSocket, method: str, **params: object) -> dict:
            socket.send_json({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            while "id" not in (message := orjson.loads(await socket.next())):
                events[socket].append(message["params"]["data"])
            if "result" not in message:
                raise BenchError(f"a server answered {message}")
            return message["result"]

        code = (await ask(offerer, "offer", topic=topic, info=one.identity, offer=one.description))["code"]
        by_offerer, by_answerer = {"code": code, "side": "offerer"}, {"code": code, "side": "answerer"}
        subscriptions = [await ask(offerer, "subscribe", **by_offerer)]
        listed = (await ask(answerer, "sessions", topic=topic))["sessions"]
        if [session["offer"] for session in listed] != [one.description]:
            raise BenchError("a server does not list what was offered")
        await ask(answerer, "answer", **by_answerer, answer=other.description)
        subscriptions.append(await ask(answerer, "subscribe", **by_answerer))
        await ask(answerer, "answer", **by_answerer, candidates=other.candidates)
        await ask(offerer, "answer", **by_offerer, candidates=one.candidates)
        for socket, peer in ((offerer, other), (answerer, one)):
            while len(events[socket]) < 1 + len(peer.candidates):
                events[socket].append(orjson.loads(await socket.next())["params"]["data"])
            if [data["candidate"] for data in events[socket] if "candidate" in data] != peer.candidates:
                raise BenchError("a server does not hand over the candidates")
        if self.ends:
            for socket, subscription in zip(both, subscriptions, strict=True):
                await ask(socket, "unsubscribe", **subscription)
        await self.done(both)


class Kept(Socketed):
    """Nine requests over two WebSockets of an earlier pair, if it is done: the same, and two to unsubscribe."""

    ends = True
    _idle: ClassVar[defaultdict[str, list[list[sockets.WebSocket]]]] = defaultdict(list)

    async def opened(self) -> list[sockets.WebSocket]:
        idle = self._idle[self._base]
        return idle.pop() if idle else await super().opened()

    async def done(self, both: list[sockets.WebSocket]) -> None:
        self._idle[self._base].append(both)


# The ways in which pairs meet, and the limit of their cost as a multiple of PeerJS.
KINDS = {"13 requests": (Polled, 2.0), "WebSocket": (Socketed, 1.0), "WebSocket, kept": (Kept, 2.0)}


@dataclass
class Contestant:
    name: str
    server: Server
    way: Callable  # creates a pair's way, which has a method `broker`
    most: float | None = None  # the limit as a multiple of PeerJS, if it is judged
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of its pairs

    async def turn(self, count: int, rate: float) -> None:
        """Start pairs at a fixed rate, regardless of earlier ones, and wait until all are done."""
        ways = [self.way(self.server.base, peers.pair(next(self.numbers))) for _ in range(count)]
        running = []
        with client.quiet():
            began_s = time.perf_counter()
            for at, way in enumerate(ways):
                await asyncio.sleep(max(0.0, began_s + at / rate - time.perf_counter()))
                running.append(asyncio.ensure_future(way.broker()))
            try:
                await asyncio.wait_for(asyncio.gather(*running), PATIENCE_S)
            except TimeoutError:
                raise BenchError(f"{self.name}: pairs have not met after {PATIENCE_S} s") from None


def life(bench: Bench) -> None:
    length_s, rate = bench.size.life_s, RATE
    lifetime_s = max(LEAST_LIFETIME_S, min(LIFETIME_S, length_s / LIFETIMES))
    options = {"session-timeout-ms": round(lifetime_s * 1000), "unlimited-addresses": "none"}
    with ExitStack() as stack:
        contestants = []
        for name, (way, most) in KINDS.items():
            server = stack.enter_context(bench.server(durability="fsync", **options))
            contestants.append(Contestant(name, server, way, most))
        server = stack.enter_context(originals.peerjs(bench.where))
        peerjs = Contestant("PeerJS", server, Meeting)
        contestants.append(peerjs)
        stack.enter_context(apart(*(contestant.server for contestant in contestants)))
        turns = max(LEAST_TURNS, round(length_s / TURN_S / len(contestants)))
        count = max(1, round(length_s / turns / len(contestants) * rate))
        used_s, busy = uvloop.run(_run(contestants, turns, count, rate))
    note = (
        f"{count * turns:,} pairs each, {rate:g} a second in turns; a session lives {lifetime_s:.0f} s; fsync; {APART}"
        ". The reference is PeerJS"
    )
    add = partial(bench.add, PART, judged=length_s >= JUDGED_S)
    *ours, theirs_ms = ([used / count * 1e3 for used in used_s[each.server]] for each in contestants)
    for contestant, ours_ms in zip(contestants, ours, strict=False):
        name, mean_ms = contestant.name, statistics.fmean(ours_ms)
        add(name, mean_ms, "ms", reference=statistics.fmean(theirs_ms), note=note)
        of_turns = ratio(ours_ms, theirs_ms)
        add(f"{name}, to PeerJS", of_turns, "times", most=contestant.most, note="median of the turns")
    add(peerjs.name, statistics.fmean(theirs_ms), "ms", note=note)
    add("the load, of its own processor", busy * 100, "%", note="near 100 % the figures would be wrong")


async def _run(contestants: list[Contestant], turns: int, count: int, rate: float) -> tuple[dict, float]:
    """Broker pairs. Return the CPU times of the servers in each turn, and the load of this process."""
    for contestant in contestants:
        warm = WARM_NODE_PAIRS if contestant.way is Meeting else WARM_PAIRS
        await contestant.turn(min(warm, turns * count), max(rate, WARM_RATE))
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    used_s = await alternate({each.server: partial(each.turn, count, rate) for each in contestants}, turns)
    return used_s, (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)
