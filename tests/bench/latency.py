"""Latency at a steady rate, normally and while many sessions expire."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import uvloop

from . import client, fill, messages, processes
from .figures import Bench
from .processes import BenchError, Server, Target

PREPARED_S = 20  # time to create the other sessions before measuring


def latency(bench: Bench) -> None:
    seen = {}
    for name in ("as given",) if bench.external else ("os", "fsync"):
        with bench.server(name) as server:
            seen[name] = _steady(bench, server)
    with bench.ceiling() as ceiling:
        above = _steady(bench, ceiling)
    part = f"latency at {bench.size.rate:,} requests a second"
    note = (
        "7 polls, a listing, an offer and a candidate in 10; counted from when each was due. A garbage collection, "
        "or whatever else this machine does, is in it"
    )
    for name, latencies_s in seen.items():
        for words, share in (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)):
            mine, least = client.percentile(latencies_s, share), client.percentile(above, share)
            bench.add(part, f"{words}, {name}", mine, "ms", ceiling=least, ratio=mine / least, note=note)


def _steady(bench: Bench, target: Target) -> list[float]:
    async def measure() -> list[tuple[float, float]]:
        make = await client.mix(target.base, messages.ORIGIN, bench.size.mixed)
        await client.steady(target.base, make, bench.size.rate, _after(bench.size.steady_s / 4))
        return await client.steady(target.base, make, bench.size.rate, _after(bench.size.steady_s))

    return [latency_s for _, latency_s in uvloop.run(measure())]


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= end_s


def sweep(bench: Bench) -> None:
    if bench.external:
        return
    size = bench.size
    filled = bench.filled
    lead_s = size.steady_s + 6 + size.mixed * 0.005  # time from opening the store to create the sessions of `mix`
    fill.set_clock(filled.path, filled.expires_ms - round(lead_s * 1e3))
    with processes.tornado_signal(filled.path, durability="fsync") as server:
        before, during = uvloop.run(
            while_expiring(server, size, filled.expires_ms, lambda: "compacted" in server.log())
        )
        compacted = "compacted" in server.log()
    left = fill.left(filled.path, filled.expires_ms)
    add = partial(bench.add, f"while {size.sessions:,} sessions expire")
    note = (
        f"{size.rate:,} requests a second of another origin, durability fsync, {len(during) / size.rate:.0f} s from "
        f"the moment of expiry{', compaction included' if compacted else ''}; {left:,} sessions were left to sweep then"
    )
    for name, share in (("p99", 0.99), ("p99.9", 0.999), ("longest", 1.0)):
        before_ms, during_ms = (client.percentile(seen, share) for seen in (before, during))
        add(f"{name} before", before_ms, "ms")
        add(f"{name} from then on", during_ms, "ms", note=note)
        if name == "p99":
            add("p99, how much more", during_ms - before_ms, "ms", most=10, judged=bench.whole)
    add("sessions left to sweep", left, "")


async def while_expiring(server: Server, size, expires_ms: int, done, pause_s: float = 0) -> tuple[list, list]:
    """Return the latencies before and after the expiry, until the sweep is done or the time is up."""

    async def left_s() -> float:
        (connection,) = await client.connect(server.base, 1)
        health = await connection.ask(messages.request(server.base, "GET", "/health"))
        connection.close()
        return (expires_ms - health["timestamp"]) / 1e3

    # Sessions of the other peers may have a lifetime of only one minute.
    await asyncio.sleep(max(0, await left_s() - size.steady_s - PREPARED_S))
    make = await client.mix(server.base, messages.ORIGIN, size.mixed)
    lead_s = await left_s()
    if lead_s < size.steady_s:
        raise BenchError("this machine is too slow: the sessions expire before anything else can be measured")
    await asyncio.sleep(lead_s - size.steady_s)
    expiry_s = time.perf_counter() + size.steady_s

    def stop() -> bool:
        after_s = time.perf_counter() - expiry_s
        return after_s > 1 and (after_s > size.sweep_s or done())

    seen = await client.steady(server.base, make, size.rate, stop, pause_s=pause_s)
    before = [took_s for due_s, took_s in seen if due_s < expiry_s]
    return before, [took_s for due_s, took_s in seen if due_s >= expiry_s]
