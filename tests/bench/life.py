"""What a brokered pair costs in real life: peers as browsers are, durability fsync, a store that has been in use.

Beside it the PeerJS server brokers the same pairs, in turns: what the machine does meanwhile hits everybody. Each peer
has an address of its own, so that the limits per address are in the figure, too. Preflights are not: their answers are
kept by the browsers.
"""

import asyncio
import shlex
import statistics
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

import orjson
import uvloop

from . import client, messages, peers, processes, sockets
from .figures import Bench
from .peerjs import Meeting, PeerJs, version
from .processes import APART, OURS, BenchError, Server, apart

PART = "life: CPU of the whole server for one brokered pair"
FIFTHS = 5
TURN_S = 2  # about
LIFETIME_S = 20
LEAST_LIFETIME_S = 5.0  # for a pair to meet, however busy the machine is
LIFETIMES = 6  # of sessions, in one run
JUDGED_S = 3 * LIFETIME_S  # a shorter run says nothing of a store that is in use
# Before anything is measured, at most: Node.js compiles what it runs often, and PeerJS has no store that must be fresh.
WARM_PAIRS, WARM_NODE_PAIRS, WARM_RATE = 100, 2000, 250
WAIT_S = 60
PATIENCE_S = 60
MOST_GROWTH = 1.15
SMALL = 0.02  # the share of a thread that is not shown


class Way(Protocol):
    """How one pair meets, its bytes prepared."""

    def broker(self) -> Coroutine[None, None, None]:
        """Let them meet: two new connections, all their requests or messages, and the end of the connections."""
        ...


class Requests:
    """What both ways over HTTP have in common.

    Args:
        base: the base URL of the server.
        pair: the peers.
        other: the base URL of the server that the answerer asks; None for the same one.
    """

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        self.base = base
        self.pair = pair
        self._other = other or base
        offerer, answerer = pair.offerer, pair.answerer
        self.offer = offerer.request(
            base, "POST", f"/{pair.topic}/offer", {"info": offerer.identity, "offer": offerer.description}
        )
        self.listing = answerer.request(base, "GET", f"/{pair.topic}/sessions")
        self.answer = self.post("answerer", "/answer", answer=answerer.description)

    def post(self, side: str, path: str, code: str = messages.CODE, **fields: object) -> bytes:
        """A request of one side for the session."""
        peer = self.pair.offerer if side == "offerer" else self.pair.answerer
        return peer.request(self.base, "POST", path, {"code": code, "side": side, **fields})

    async def connect(self, peer: peers.Peer) -> client.Connection:
        """A new connection."""
        base = self.base if peer is self.pair.offerer else self._other
        parts = urlsplit(base)
        loop = asyncio.get_running_loop()
        try:
            _, opened = await loop.create_connection(
                client.Connection, parts.hostname, parts.port, local_addr=(peer.address, 0)
            )
        except OSError as error:
            raise BenchError(f"cannot connect to {base}: {error}") from error
        return opened

    async def find(self, answerer: client.Connection) -> str:
        """The code that the answerer finds in the topic."""
        listed = (await answerer.ask(self.listing))["sessions"]
        if [session["offer"] for session in listed] != [self.pair.offerer.description]:
            raise BenchError(f"{self.base} does not list what was offered")
        return listed[0]["code"]

    def check(self, received: list[str], peer: peers.Peer) -> None:
        """See that the other side has got all the candidates."""
        if received != peer.candidates:
            raise BenchError(f"{self.base} does not hand over the candidates")


class Polled(Requests):
    """13 requests: an offer, a listing, an answer, eight candidates, two polls."""

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        super().__init__(base, pair, other)
        both = zip(pair.offerer.candidates, pair.answerer.candidates, strict=True)
        self._candidates = [
            (self.post("offerer", "/answer", candidate=one), self.post("answerer", "/answer", candidate=other))
            for one, other in both
        ]
        self._polls = self.post("offerer", "/poll"), self.post("answerer", "/poll")

    async def broker(self) -> None:
        offerer = await self.connect(self.pair.offerer)
        await offerer.ask(self.offer)
        answerer = await self.connect(self.pair.answerer)
        code = (await self.find(answerer)).encode()

        async def ask(connection: client.Connection, template: bytes) -> dict:
            return await connection.ask(template.replace(messages.CODE.encode(), code))

        await ask(answerer, self.answer)
        for one, other in self._candidates:
            await ask(offerer, one)
            await ask(answerer, other)
        mine, theirs = self._polls
        self.check((await ask(offerer, mine))["answerCandidates"], self.pair.answerer)
        self.check((await ask(answerer, theirs))["offerCandidates"], self.pair.offerer)
        offerer.close()
        answerer.close()


class Waited(Requests):
    """8 requests: an offer, a listing, an answer, two batches of four candidates, a wait for each."""

    def __init__(self, base: str, pair: peers.Pair, other: str | None = None) -> None:
        super().__init__(base, pair, other)
        self._batches = [
            self.post(side, "/answer", candidates=peer.candidates)
            for side, peer in (("offerer", pair.offerer), ("answerer", pair.answerer))
        ]
        self._waits = [self.post(side, "/poll", wait=WAIT_S) for side in ("offerer", "answerer")]

    async def broker(self) -> None:
        offerer = await self.connect(self.pair.offerer)
        await offerer.ask(self.offer)
        answerer = await self.connect(self.pair.answerer)
        code = await self.find(answerer)

        async def ask(connection: client.Connection, template: bytes) -> dict:
            return await connection.ask(template.replace(messages.CODE.encode(), code.encode()))

        waiting = asyncio.ensure_future(ask(offerer, self._waits[0]))
        await asyncio.sleep(0)  # so that it waits before there is an answer
        await ask(answerer, self.answer)
        since = (await waiting)["cursor"]
        again = self.post("offerer", "/poll", code=code, wait=WAIT_S, since=since)
        waiting = asyncio.ensure_future(offerer.ask(again))
        await ask(answerer, self._batches[1])
        self.check((await waiting)["answerCandidates"], self.pair.answerer)
        await ask(offerer, self._batches[0])
        self.check((await ask(answerer, self._waits[1]))["offerCandidates"], self.pair.offerer)
        offerer.close()
        answerer.close()


class Socketed:
    """Seven requests over two WebSockets: an offer, a listing, an answer, two batches of candidates, two subscriptions.

    Args:
        base: the base URL of the server.
        pair: the peers.
    """

    ends = False
    """Whether its subscriptions have to be ended."""

    def __init__(self, base: str, pair: peers.Pair) -> None:
        parts = urlsplit(base)
        self._at = parts.hostname, parts.port
        self._pair = pair
        self._upgrades = [peer.upgrade(base, "/ws") for peer in (pair.offerer, pair.answerer)]
        offer = {"topic": pair.topic, "info": pair.offerer.identity, "offer": pair.offerer.description}
        self._offer = self._call("offer", **offer)
        self._listing = self._call("sessions", topic=pair.topic)
        self._answer = self._call("answer", code=messages.CODE, side="answerer", answer=pair.answerer.description)
        sides = {"offerer": pair.offerer, "answerer": pair.answerer}
        self._batches = {
            side: self._call("answer", code=messages.CODE, side=side, candidates=peer.candidates)
            for side, peer in sides.items()
        }
        self._subscriptions = {side: self._call("subscribe", code=messages.CODE, side=side) for side in sides}

    @staticmethod
    def _call(method: str, **params: object) -> bytes:
        return orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})

    async def opened(self) -> list[sockets.WebSocket]:
        """The WebSockets of both peers."""
        peers_ = self._pair.offerer, self._pair.answerer
        return [
            await sockets.open_socket(*self._at, peer.address, upgrade)
            for peer, upgrade in zip(peers_, self._upgrades, strict=True)
        ]

    async def done(self, both: list[sockets.WebSocket]) -> None:
        """Neither is needed any more."""
        for socket in both:
            await socket.close()

    async def broker(self) -> None:
        offerer, answerer = both = await self.opened()
        events: dict[sockets.WebSocket, list[dict]] = {offerer: [], answerer: []}

        async def read(socket: sockets.WebSocket) -> dict:
            while "id" not in (found := orjson.loads(await socket.next())):
                events[socket].append(found["params"])
            if "result" not in found:
                raise BenchError(f"a server answered {found}")
            return found["result"]

        async def told(socket: sockets.WebSocket, count: int) -> list[dict]:
            while len(events[socket]) < count:
                events[socket].append(orjson.loads(await socket.next())["params"])
            return [event["data"] for event in events[socket]]

        async def ask(socket: sockets.WebSocket, template: bytes) -> dict:
            socket.send(sockets.frame(template.replace(messages.CODE.encode(), code)))
            return await read(socket)

        code = b""
        code = (await ask(offerer, self._offer))["code"].encode()
        subscriptions = [(offerer, await ask(offerer, self._subscriptions["offerer"]))]
        listed = (await ask(answerer, self._listing))["sessions"]
        if [session["offer"] for session in listed] != [self._pair.offerer.description]:
            raise BenchError("a server does not list what was offered")
        await ask(answerer, self._answer)
        subscriptions.append((answerer, await ask(answerer, self._subscriptions["answerer"])))
        await ask(answerer, self._batches["answerer"])
        await ask(offerer, self._batches["offerer"])
        for socket, peer in ((offerer, self._pair.answerer), (answerer, self._pair.offerer)):
            received = [
                data["candidate"] for data in await told(socket, 1 + len(peer.candidates)) if "candidate" in data
            ]
            if received != peer.candidates:
                raise BenchError("a server does not hand over the candidates")
        if self.ends:
            for socket, subscription in subscriptions:
                await ask(socket, self._call("unsubscribe", **subscription))
        await self.done(both)


class Kept(Socketed):
    """Nine requests over two WebSockets that an earlier pair has opened, if it is done: the same, and what ends it."""

    ends = True
    _idle: ClassVar[dict[tuple[str | None, int | None], list[list[sockets.WebSocket]]]] = {}

    async def opened(self) -> list[sockets.WebSocket]:
        idle = self._idle.setdefault(self._at, [])
        return idle.pop() if idle else await super().opened()

    async def done(self, both: list[sockets.WebSocket]) -> None:
        self._idle[self._at].append(both)


KINDS: dict[str, tuple[Callable[[str, peers.Pair], Way], float]] = {
    "13 requests": (Polled, 2.0),
    "waits and batches": (Waited, 1.5),
    "WebSocket": (Socketed, 1.0),
    "WebSocket, kept": (Kept, 2.0),
}


@dataclass
class Contestant:
    """One server, and the way in which peers meet by it.

    Attributes:
        name: which of them.
        server: the server.
        way: makes a pair's way.
        most: how many times PeerJS it may cost, if that is to be judged.
        pairs: how many were brokered in each fifth.
        used_s: the server's CPU in each fifth.
        threads_s: that of each of its threads.
    """

    name: str
    server: Server
    way: Callable[[str, peers.Pair], Way]
    most: float | None = None
    pairs: list[int] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    threads_s: list[dict[int, float]] = field(default_factory=list)

    def fifths_ms(self, used_s: list[float]) -> list[float]:
        """What was used for one pair, in each fifth."""
        return [used / pairs * 1e3 for used, pairs in zip(used_s, self.pairs, strict=True)]

    def whole_ms(self, used_s: list[float]) -> float:
        """What was used for one pair, in all of the run."""
        return sum(used_s) / sum(self.pairs) * 1e3


def life(bench: Bench) -> None:
    """Pairs of browser-like peers, at a fixed rate, with servers in turns."""
    if bench.given:
        return
    lifetime_s = max(LEAST_LIFETIME_S, min(LIFETIME_S, bench.size.life_s / LIFETIMES))
    options = {"session-timeout-ms": round(lifetime_s * 1000), "unlimited-addresses": "none"}
    servers = {"": OURS} | {
        f", server {number}": tuple(shlex.split(command)) for number, command in enumerate(bench.others, 2)
    }
    with ExitStack() as stack:
        contestants = []
        for which, command in servers.items():
            for kind, (way, most) in KINDS.items():
                server = processes.tornado_signal(bench.directory(), durability="fsync", command=command, **options)
                stack.enter_context(server)
                contestants.append(Contestant(kind + which, server, way, None if which else most))
        peerjs = Contestant(f"PeerJS {version()}", stack.enter_context(PeerJs(bench.where / "peerjs.log")), Meeting)
        contestants.append(peerjs)
        stack.enter_context(apart(*(contestant.server for contestant in contestants)))
        busy = uvloop.run(_run(contestants, bench.size.life_s, bench.size.life_rate))
        note = (
            f"{sum(peerjs.pairs):,} pairs each, {bench.size.life_rate:g} a second in turns; a session lives "
            f"{lifetime_s:.0f} s; fsync; {APART}. The ceiling here is PeerJS"
        )
        for number, command in enumerate(bench.others, 2):
            note += f"; server {number} is {command}"
        for contestant in contestants:
            _figures(bench, contestant, peerjs, note)
    bench.add(PART, "the load, of its own processor", busy * 100, "%", note="near 100 % the figures would be wrong")


async def _run(contestants: list[Contestant], length_s: float, rate: float) -> float:
    """Broker for so long; how busy this process was."""
    fifth_s = length_s / FIFTHS
    rounds = max(1, round(fifth_s / TURN_S / len(contestants)))
    count = max(1, round(fifth_s / rounds / len(contestants) * rate))  # of pairs in a turn
    planned = FIFTHS * rounds * count
    for contestant in contestants:
        warm = WARM_NODE_PAIRS if contestant.way is Meeting else WARM_PAIRS
        await _turn(contestant, planned, min(warm, planned), max(rate, WARM_RATE))
    first = 0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    for fifth in range(FIFTHS):
        before = [_used(contestant.server) for contestant in contestants]
        for turn in range(rounds):
            shift = (fifth * rounds + turn) % len(contestants)  # nobody always comes behind the same one
            for contestant in contestants[shift:] + contestants[:shift]:
                await _turn(contestant, first, count, rate)
            first += count
        for contestant, (total_s, threads_s) in zip(contestants, before, strict=True):
            now_s, now_threads_s = _used(contestant.server)
            contestant.pairs.append(rounds * count)
            contestant.used_s.append(now_s - total_s)
            contestant.threads_s.append(
                {thread: used_s - threads_s.get(thread, 0.0) for thread, used_s in now_threads_s.items()}
            )
    return (time.process_time() - began_cpu_s) / (time.perf_counter() - began_s)


def _used(server: Server) -> tuple[float, dict[int, float]]:
    used_s = server.cpu_s()
    assert used_s is not None
    return used_s, server.threads_cpu_s()


async def _turn(contestant: Contestant, first: int, count: int, rate: float) -> None:
    """Begin so many pairs at a fixed rate, whatever becomes of the earlier ones, and wait for the end of them all."""
    base = contestant.server.base
    ways = [contestant.way(base, peers.pair(number)) for number in range(first, first + count)]
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
    name, used_s = contestant.name, contestant.used_s
    whole_ms, fifths_ms = contestant.whole_ms(used_s), contestant.fifths_ms(used_s)
    if contestant is peerjs:
        bench.add(PART, name, whole_ms, "ms", fifths=fifths_ms, note=note)
    else:
        _compared(bench, contestant, peerjs, note)
    threads = sorted({thread for fifth in contestant.threads_s for thread in fifth})
    for number, thread in enumerate(threads, 1):
        each_s = [fifth.get(thread, 0.0) for fifth in contestant.threads_s]
        if sum(each_s) >= SMALL * sum(used_s):
            words = f"{name}, {_called(contestant.server, thread, number)}"
            fifths_ms = contestant.fifths_ms(each_s)
            bench.add(PART, words, contestant.whole_ms(each_s), "ms", fifths=fifths_ms)


def _compared(bench: Bench, contestant: Contestant, peerjs: Contestant, note: str) -> None:
    name, used_s = contestant.name, contestant.used_s
    whole_ms, fifths_ms = contestant.whole_ms(used_s), contestant.fifths_ms(used_s)
    least_ms, least_fifths_ms = peerjs.whole_ms(peerjs.used_s), peerjs.fifths_ms(peerjs.used_s)
    judged = bench.size.life_s >= JUDGED_S and contestant.most is not None
    times = _times(whole_ms, least_ms)
    bench.add(
        PART,
        name,
        whole_ms,
        "ms",
        ceiling=least_ms,
        ratio=times,
        target=f"<= {contestant.most} times PeerJS" if contestant.most else "",
        reached=times <= contestant.most if judged and times is not None else None,
        fifths=fifths_ms,
        note=note,
    )
    ratios = [_times(mine, least) for mine, least in zip(fifths_ms, least_fifths_ms, strict=True)]
    if None not in ratios:
        bench.add(
            PART, f"{name}, to PeerJS", statistics.median(ratios), "times", fifths=ratios, note="median of the fifths"
        )
    grown, least_grown = _times(fifths_ms[-1], fifths_ms[0]), _times(least_fifths_ms[-1], least_fifths_ms[0])
    bench.add(
        PART,
        f"{name}, last fifth to first",
        grown,
        "times",
        ceiling=least_grown,
        target=f"<= {MOST_GROWTH}" if contestant.most else "",
        reached=grown <= MOST_GROWTH if judged and grown is not None else None,
    )


def _times(value: float, other: float) -> float | None:
    """The ratio, if there is one: CPU is told in steps of a hundredth of a second."""
    return value / other if other else None


def _called(server: Server, thread: int, number: int) -> str:
    """A thread's name where it has one of its own, and its place in the order in which they began."""
    if thread == server.pid:
        return "main thread"
    own, main = (_named(each) for each in (thread, server.pid))
    return f"thread {number}" if own in ("", main) else f"thread {number} ({own})"


def _named(thread: int | None) -> str:
    try:
        return Path(f"/proc/{thread}/comm").read_text().strip()
    except OSError:
        return ""
