"""The parts of the benchmark: each measures a few figures, on its own servers."""

import asyncio
import resource
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from . import client, fill, messages, processes, wrk
from .processes import BenchError, Server, Target
from .report import Figure

STANDARD_POLLS = 98_000  # polls a second of the bare ceiling on the machine that the target for CPU was set on
TOPICS = 100  # among which offers are spread


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: how often the servers take turns; figures are medians.
        run_s: how long one run of wrk takes.
        flows: brokered connections in one round.
        rate: requests a second under the steady load.
        steady_s: how long that lasts, and how long before the million expires.
        connections: idle ones.
        sessions: the many.
        few: the few that they are compared with.
        mixed: sessions among which the steady load spreads.
        sweep_s: the longest time to wait for the sweep of the many.
    """

    rounds: int
    run_s: float
    flows: int
    rate: int
    steady_s: float
    connections: int
    sessions: int
    few: int = 1000
    mixed: int = 1000
    sweep_s: float


FULL = Size(rounds=3, run_s=1, flows=800, rate=1000, steady_s=6, connections=8000, sessions=1_000_000, sweep_s=60)
QUICK = Size(rounds=1, run_s=0.5, flows=300, rate=1000, steady_s=2, connections=1000, sessions=20_000, sweep_s=8)
SMOKE = Size(
    rounds=1, run_s=0.1, flows=20, rate=200, steady_s=0.5, connections=50, sessions=2000, few=100, mixed=50, sweep_s=1
)


@dataclass
class Bench:
    """What the parts share.

    Attributes:
        size: how much is measured.
        where: a directory for databases and logs.
        given: another server, measured in the place of this package's.
        figures: what was measured so far.
    """

    size: Size
    where: Path
    given: Target | None = None
    figures: list[Figure] = field(default_factory=list)
    _made: int = 0

    def directory(self) -> Path:
        """A fresh place for a database."""
        self._made += 1
        return self.where / f"db-{self._made}"

    @contextmanager
    def server(self, durability: str = "os") -> Iterator[Target]:
        """The server to measure."""
        if self.given:
            yield self.given
        else:
            with processes.tornado_signal(self.directory(), durability=durability) as server:
                yield server

    @contextmanager
    def ceiling(self, durability: str = "os") -> Iterator[Server]:
        """The bare ceiling server."""
        with processes.ceiling(self.directory(), durability=durability) as server:
            yield server

    def add(self, part: str, name: str, value: float | None, unit: str, **rest: object) -> None:
        """Keep a figure, unless there is no value."""
        if value is not None:
            self.figures.append(Figure(part, name, value, unit, **rest))  # type: ignore[arg-type]

    @property
    def whole(self) -> bool:
        """Whether the many are a million, as the targets say."""
        return self.size.sessions == FULL.sessions


def median(values: list[float | None]) -> float | None:
    """The median, or None where nothing was measured."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def ratio(values: list[float | None], others: list[float | None]) -> float | None:
    """The median of the ratios within each round."""
    pairs = zip(values, others, strict=True)
    return median([value / other for value, other in pairs if value is not None and other])


# Endpoints


@dataclass(frozen=True)
class Endpoint:
    """One endpoint and its request."""

    name: str
    make: Callable[[str], bytes]
    parts: str = ""  # what stands for `@`: topics, codes that were polled or answered before, new ones
    target: float = 0.0


# First what only reads, from a small store; how much it holds matters only from `offer` on.
ENDPOINTS = (
    Endpoint("GET /", lambda base: messages.request(base, "GET", "/")),
    Endpoint("GET /health", lambda base: messages.request(base, "GET", "/health")),
    Endpoint("GET /topics", lambda base: messages.request(base, "GET", "/topics?limit=100")),
    Endpoint("GET /:topic/sessions", lambda base: messages.sessions(base, "listed")),
    Endpoint("POST /poll", lambda base: messages.poll(base, messages.CODE, "answerer"), "polled", 0.30),
    Endpoint("POST /:topic/offer", lambda base: messages.offer(base, messages.TOPIC), "topics", 0.45),
    Endpoint("POST /answer, answer", lambda base: messages.answer(base, messages.CODE), "new"),
    Endpoint("POST /answer, candidate", lambda base: messages.candidate(base, messages.CODE, "offerer"), "codes"),
)
LISTED = 10
POLLED = 100


def offer_topics() -> list[str]:
    """Names as long as the template's."""
    return [f"topic-{number:04}" for number in range(TOPICS)]


def new_codes(target: Target, where: Path, seconds: float) -> list[str]:
    """Publish offers for so long; their codes."""
    template = messages.template(messages.offer(target.base, messages.TOPIC))
    wrk.run(target, template, offer_topics(), seconds=seconds, collect=where / "codes")
    return (where / "codes").read_text().split()


def endpoints(bench: Bench) -> None:
    """Requests a second and CPU a request of each endpoint, as fast as 32 connections can ask."""
    with bench.server() as server, bench.ceiling() as ceiling:
        both = (server, ceiling)
        parts = {}
        for target in both:
            asyncio.run(client.create(target.base, ["listed"] * LISTED))
            polled = asyncio.run(client.create(target.base, ["polled"] * POLLED))
            parts[target] = {"": [""], "topics": offer_topics(), "polled": polled}
        for endpoint in ENDPOINTS:
            runs: dict[Target, list[wrk.Run]] = {target: [] for target in both}
            for _ in range(bench.size.rounds):
                for target in both:
                    if target is ceiling and endpoint.name == "GET /topics":
                        continue  # it has none
                    runs[target].append(_run(bench, target, endpoint, parts[target]))
            _endpoint_figures(bench, endpoint, runs[server], runs[ceiling])


def _run(bench: Bench, target: Target, endpoint: Endpoint, parts: dict[str, list[str]]) -> wrk.Run:
    template = messages.template(endpoint.make(target.base))
    seconds = bench.size.run_s
    if endpoint.parts != "new":
        return wrk.run(target, template, parts[endpoint.parts], seconds=seconds)
    for longer in (2, 4, 8):
        parts["codes"] = new_codes(target, bench.where, seconds * longer)
        run = wrk.run(target, template, parts["codes"], seconds=seconds)
        if run.requests <= len(parts["codes"]) or target.forgetful:
            return run
    raise BenchError(f"{target.base} takes answers so much faster than offers that there are not enough of them")


def _endpoint_figures(bench: Bench, endpoint: Endpoint, ours: list[wrk.Run], theirs: list[wrk.Run]) -> None:
    rates: list[float | None] = [run.rate for run in ours]
    above: list[float | None] = [run.rate for run in theirs]
    reached = ratio(rates, above) if theirs else None
    wanted = f"ratio >= {endpoint.target:.2f}" if endpoint.target else ""
    verdict = reached >= endpoint.target if wanted and reached is not None else None
    note = f"32 connections, one process, durability os; offers of {len(messages.OFFER)} bytes, a listing of {LISTED}"
    bench.add(
        "endpoints",
        endpoint.name,
        median(rates),
        "/s",
        ceiling=median(above),
        ratio=reached,
        target=wanted,
        reached=verdict,
        note=note,
    )
    used, least = [run.cpu_us for run in ours], [run.cpu_us for run in theirs]
    bench.add(
        "endpoints",
        f"{endpoint.name}, CPU",
        median(used),
        "µs",
        ceiling=median(least),
        ratio=ratio(used, least) if theirs else None,
    )


def durability(bench: Bench) -> None:
    """Offers with `fsync` beside offers with `os`."""
    if bench.given:
        return
    with bench.server("fsync") as synced, bench.server("os") as ours, bench.ceiling("fsync") as ceiling:
        runs: dict[Target, list[float | None]] = {synced: [], ours: [], ceiling: []}
        used = []
        for _ in range(bench.size.rounds):
            for target, rates in runs.items():
                template = messages.template(messages.offer(target.base, messages.TOPIC))
                run = wrk.run(target, template, offer_topics(), seconds=bench.size.run_s)
                rates.append(run.rate)
                if target is synced:
                    used.append(run.cpu_us)
    share = ratio(runs[synced], runs[ours])
    part = "durability, 32 connections"
    note = "the ceiling syncs on its loop, each offer for itself"
    rates = runs[synced], runs[ceiling]
    bench.add(
        part,
        "POST /:topic/offer, fsync",
        median(rates[0]),
        "/s",
        ceiling=median(rates[1]),
        ratio=ratio(*rates),
        note=note,
    )
    bench.add(part, "POST /:topic/offer, fsync, CPU", median(used), "µs")
    bench.add(
        part,
        "POST /:topic/offer, fsync to os",
        share,
        "",
        target=">= 0.70",
        reached=None if share is None else share >= 0.7,
    )


def broker(bench: Bench) -> None:
    """CPU of one brokered connection."""
    flows, at_once = bench.size.flows, min(32, bench.size.flows)
    with ExitStack() as stack:
        targets = {"the ceiling, os": stack.enter_context(bench.ceiling())}
        kinds = ("as given",) if bench.given else ("fsync", "os")
        targets |= {kind: stack.enter_context(bench.server(kind)) for kind in kinds}
        cpu_ms: dict[str, list[float | None]] = {name: [] for name in targets}
        speed: dict[str, list[float | None]] = {name: [] for name in targets}
        above = targets["the ceiling, os"]
        code = asyncio.run(client.create(above.base, ["polled"]))
        polls = []
        for _ in range(bench.size.rounds):
            template = messages.template(messages.poll(above.base, messages.CODE, "answerer"))
            polls.append(wrk.run(above, template, code, seconds=bench.size.run_s).rate)
            for name, target in targets.items():
                used, rate = asyncio.run(client.broker(target, flows, at_once))
                cpu_ms[name].append(used)
                speed[name].append(rate)
    part = "one brokered connection (13 requests)"
    note = (
        f"{at_once} at a time, each in a topic of its own. At the standard: where the ceiling does {STANDARD_POLLS:,} "
        f"polls a second (here: {statistics.median(polls):,.0f})"
    )
    least = cpu_ms["the ceiling, os"]
    for kind in kinds:
        used = cpu_ms[kind]
        bench.add(part, f"CPU, {kind}", median(used), "ms", ceiling=median(least), ratio=ratio(used, least))
        rounds = zip(used, polls, strict=True)
        standard = median([None if ms is None else ms * rate / STANDARD_POLLS for ms, rate in rounds])
        verdict = None if standard is None else standard <= 0.45
        bench.add(
            part, f"CPU, {kind}, at the standard", standard, "ms", target="<= 0.45 ms", reached=verdict, note=note
        )
        bench.add(
            part,
            f"brokered, {kind}",
            median(speed[kind]),
            "/s",
            ceiling=median(speed["the ceiling, os"]),
            note="one Python process asks: its limit, not the server's",
        )


# Latency


def latency(bench: Bench) -> None:
    """Percentiles under a steady load that the server can bear easily."""
    seen = {}
    for name in ("as given",) if bench.given else ("os", "fsync"):
        with bench.server(name) as server:
            seen[name] = _steady(bench, server)
    with bench.ceiling() as ceiling:
        above = _steady(bench, ceiling)
    note = (
        "7 polls, a listing, an offer and a candidate in 10; counted from when each was due. A garbage collection, "
        "or whatever else this machine does, is in it"
    )
    for name, latencies_s in seen.items():
        for words, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)):
            mine, least = client.percentile(latencies_s, share), client.percentile(above, share)
            bench.add(
                f"latency at {bench.size.rate:,} requests a second",
                f"{words}, {name}",
                mine,
                "ms",
                ceiling=least,
                ratio=mine / least,
                note=note,
            )


def _steady(bench: Bench, target: Target) -> list[float]:
    async def measure() -> list[tuple[float, float]]:
        make = await client.mix(target.base, messages.ORIGIN, bench.size.mixed)
        await client.steady(target.base, make, bench.size.rate, _after(bench.size.steady_s / 4))
        return await client.steady(target.base, make, bench.size.rate, _after(bench.size.steady_s))

    return [latency_s for _, latency_s in asyncio.run(measure())]


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end_s


# Memory of connections


def connections(bench: Bench) -> None:
    """Memory of an idle keep-alive connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the servers too
    try:
        count = min(bench.size.connections, hard - 1000)
        with bench.server() as server, bench.ceiling() as ceiling:
            mine, least = _idle_bytes(server, count), _idle_bytes(ceiling, count)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if mine is None or least is None:
        return
    bench.add(
        "memory",
        "an idle keep-alive connection",
        mine / 1024,
        "KiB",
        ceiling=least / 1024,
        ratio=mine / least,
        target="<= 4 KiB",
        reached=mine <= 4096,
        note=f"{count:,} connections, each after one request; resident, the kernel's buffers not counted",
    )


def _idle_bytes(target: Target, count: int) -> float | None:
    parts = urlsplit(target.base)
    data = messages.request(target.base, "GET", "/health")

    def ask(opened: socket.socket) -> None:
        opened.sendall(data)
        if not opened.recv(4096).startswith(b"HTTP/1.1 200"):
            raise BenchError(f"{target.base} does not answer GET /health on {count} connections")

    with ExitStack() as stack:

        def opened() -> socket.socket:
            return stack.enter_context(socket.create_connection((parts.hostname, parts.port or 80), timeout=10))

        first = opened()
        for _ in range(200):
            ask(first)
        before = target.memory_bytes()
        if before is None:
            return None
        for _ in range(count):
            ask(opened())
        time.sleep(0.2)
        return (target.memory_bytes() - before) / count


# What grows with what is stored


def growth(bench: Bench) -> None:
    """What listings, polls and memory cost with many sessions, beside few."""
    if bench.given:
        return
    few, many = bench.size.few, bench.size.sessions
    for a_topic in (10, 1):
        now_ms = time.time_ns() // 1_000_000
        paths = {}
        codes = {}
        for count in (few, many):
            paths[count] = bench.directory()
            codes[count] = fill.fill(paths[count], count, a_topic, now_ms, now_ms + 3_600_000)
        with processes.tornado_signal(paths[few]) as small, processes.tornado_signal(paths[many]) as large:
            part = f"{many:,} sessions, {a_topic} a topic"
            bench.add(part, "from start to listening", large.opened_s, "s")
            bench.add(part, f"from start to listening, {few:,} sessions", small.opened_s, "s")
            each = (large.memory_bytes() - small.memory_bytes()) / (many - few)
            size = sum(file.stat().st_size for file in paths[many].iterdir()) / many
            bench.add(
                part,
                "memory of a session",
                each,
                "B",
                target="<= 200 B",
                reached=each <= 200 if bench.whole else None,
                note=f"resident beyond the server with {few:,}, LevelDB's block cache (up to 32 MiB) included, its "
                "mapped files not",
            )
            bench.add(part, "disk of a session", size, "B")
            _grow(bench, part, a_topic, {few: small, many: large}, codes)


def _grow(bench: Bench, part: str, a_topic: int, servers: dict[int, Server], codes: dict[int, list[str]]) -> None:
    few, many = servers
    origin = fill.ORIGIN
    for server in servers.values():
        asyncio.run(client.create(server.base, ["zzz-alone"], origin=origin))

    def last(count: int) -> int:
        return count // a_topic // TOPICS

    cases: list[tuple[str, bool, Callable[[Server, int], tuple[bytes, list[str]]]]] = [
        (
            "GET /topics?limit=100, first page",
            True,
            lambda server, count: (messages.request(server.base, "GET", "/topics?limit=100", origin=origin), [""]),
        ),
        (
            "GET /topics?limit=100, last full page",
            True,
            lambda server, count: (
                messages.request(server.base, "GET", f"/topics?limit=100&page={max(1, last(count))}", origin=origin),
                [""],
            ),
        ),
        (
            "GET /:topic/sessions of one session",
            True,
            lambda server, count: (messages.sessions(server.base, "zzz-alone", origin=origin), [""]),
        ),
        (
            "POST /poll of any of them",
            False,
            lambda server, count: (
                messages.template(messages.poll(server.base, messages.CODE, "answerer", origin=origin)),
                codes[count],
            ),
        ),
        (
            "POST /:topic/offer beside them",
            False,
            lambda server, count: (
                messages.template(messages.offer(server.base, messages.TOPIC, origin=origin)),
                offer_topics(),
            ),
        ),
    ]
    if a_topic == 1:
        cases = cases[:2]  # what the number of topics matters for
    for name, judged, case in cases:
        rates: dict[int, list[float | None]] = {few: [], many: []}
        for _ in range(bench.size.rounds):
            for count, server in servers.items():
                template, parts = case(server, count)
                rates[count].append(wrk.run(server, template, parts, seconds=bench.size.run_s).rate)
        times = ratio(rates[few], rates[many])
        verdict = times <= 1.5 if judged and bench.whole and times is not None else None
        bench.add(
            part,
            name,
            times,
            "times",
            target="<= 1.5 times" if judged else "",
            reached=verdict,
            note=f"the time that it takes, to the time with {few:,} sessions (32 connections, durability os)",
        )


# Expiry of many at once


def sweep(bench: Bench) -> None:
    """What other requests feel of a million sessions that expire together."""
    if bench.given:
        return
    size = bench.size
    allowance_s = size.sessions * 45e-6 + 2  # to fill and open, before the time to measure beforehand
    for _ in range(3):
        path = bench.directory()
        expires_s = time.time() + allowance_s + size.steady_s
        fill.fill(path, size.sessions, 10, time.time_ns() // 1_000_000, int(expires_s * 1e3))
        with processes.tornado_signal(path, durability="fsync") as server:
            measured = asyncio.run(_while_expiring(server, size, expires_s))
            compacted = "compacted" in server.log()
        if measured:
            break
        allowance_s *= 2
    else:
        raise BenchError("this machine is too slow: all sessions expire before anything can be measured")
    before, during = measured
    left = fill.left(path)
    part = f"while {size.sessions:,} sessions expire"
    note = (
        f"{size.rate:,} requests a second of another origin, durability fsync, {len(during) / size.rate:.0f} s from "
        f"the moment of expiry{', compaction included' if compacted else ''}; {left:,} sessions were left to sweep then"
    )
    p99 = [client.percentile(seen, 0.99) for seen in (before, during)]
    more = p99[1] - p99[0]
    bench.add(part, "p99 before", p99[0], "ms")
    bench.add(part, "p99 from then on", p99[1], "ms", note=note)
    bench.add(
        part,
        "p99, how much more",
        more,
        "ms",
        target="<= 10 ms",
        reached=more <= 10 and not left if bench.whole else None,
        note="",
    )
    for name, share in (("p99.9", 0.999), ("longest", 1.0)):
        bench.add(part, f"{name} before", client.percentile(before, share), "ms")
        bench.add(part, f"{name} from then on", client.percentile(during, share), "ms")
    bench.add(part, "sessions left to sweep", left, "")


async def _while_expiring(server: Server, size: Size, expires_s: float) -> tuple[list[float], list[float]] | None:
    """Latencies before and after the moment of expiry, until the sweep is done or the time is up; None if too late."""
    make = await client.mix(server.base, messages.ORIGIN, size.mixed)
    expiry = time.perf_counter() + expires_s - time.time()  # by the clock of the client
    wait_s = expires_s - size.steady_s - time.time()
    if wait_s < 0:
        return None
    await asyncio.sleep(wait_s)

    def stop() -> bool:
        after_s = time.perf_counter() - expiry
        return after_s > 1 and (after_s > size.sweep_s or "compacted" in server.log())

    seen = await client.steady(server.base, make, size.rate, stop)
    return [took for due, took in seen if due < expiry], [took for due, took in seen if due >= expiry]


PARTS: dict[str, Callable[[Bench], None]] = {
    part.__name__: part for part in (endpoints, durability, broker, latency, connections, growth, sweep)
}
