"""Requests per second and CPU time per request, of endpoints with and without syncing, and of brokered connections."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from . import client, messages, wrk
from .figures import Bench, median, offer_topics, ratio
from .processes import APART, BenchError, Target, apart

STANDARD_POLL_US = 1e6 / 98_000  # what the bare ceiling used for a poll on the machine for which the target was set


@dataclass(frozen=True)
class Endpoint:
    name: str
    make: Callable[[str], bytes]
    parts: str = ""  # values for `@`: topics, codes that were polled or answered before, new codes
    target: float = 0.0


# Read-only requests come first, on a small store. The size of the store matters only from `offer` on.
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


def new_codes(target: Target, where: Path, seconds: float) -> list[str]:
    template = messages.template(messages.offer(target.base, messages.TOPIC))
    wrk.run(target, template, offer_topics(), seconds=seconds, collect=where / "codes")
    return (where / "codes").read_text().split()


def endpoints(bench: Bench) -> None:
    with bench.server() as server, bench.ceiling() as ceiling:
        both = (server, ceiling)
        parts = {}
        for target in both:
            uvloop.run(client.create(target.base, ["listed"] * LISTED))
            polled = uvloop.run(client.create(target.base, ["polled"] * POLLED))
            parts[target] = {"": [""], "topics": offer_topics(), "polled": polled}
        for endpoint in ENDPOINTS:
            runs: dict[Target, list[wrk.Run]] = {target: [] for target in both}
            for _ in range(bench.size.rounds):
                for target in both:
                    if target is ceiling and endpoint.name == "GET /topics":
                        continue  # it has no such figure
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
    note = f"32 connections, one process, durability os; offers of {len(messages.OFFER)} bytes, a listing of {LISTED}"
    rates, used, executed = (_compared(ours, theirs, name) for name in ("rate", "cpu_us", "kilo_instructions"))
    if endpoint.target:
        rates["target"] = f"ratio >= {endpoint.target:.2f}"
        rates["reached"] = rates["ratio"] is not None and rates["ratio"] >= endpoint.target
    bench.add("endpoints", endpoint.name, unit="/s", note=note, **rates)
    bench.add("endpoints", f"{endpoint.name}, CPU", unit="µs", **used)
    bench.add("endpoints", f"{endpoint.name}, instructions", unit="k", **executed)


def _compared(ours: list[wrk.Run], theirs: list[wrk.Run], name: str) -> dict:
    mine, least = ([getattr(run, name) for run in runs] for runs in (ours, theirs))
    return {"value": median(mine), "ceiling": median(least), "ratio": ratio(mine, least) if theirs else None}


def durability(bench: Bench) -> None:
    if bench.external:
        return
    with bench.server("fsync") as synced, bench.server("os") as unsynced, bench.ceiling("fsync") as ceiling:
        runs: dict[Target, list[wrk.Run]] = {synced: [], unsynced: [], ceiling: []}
        for _ in range(bench.size.rounds):
            for target, seen in runs.items():
                template = messages.template(messages.offer(target.base, messages.TOPIC))
                seen.append(wrk.run(target, template, offer_topics(), seconds=bench.size.run_s))
    part, name = "durability, 32 connections", "POST /:topic/offer, fsync"
    note = "the ceiling syncs on its loop, each offer for itself"
    bench.add(part, name, unit="/s", note=note, **_compared(runs[synced], runs[ceiling], "rate"))
    bench.add(part, f"{name}, CPU", median([run.cpu_us for run in runs[synced]]), "µs")
    share = _compared(runs[synced], runs[unsynced], "rate")["ratio"]
    bench.add(part, f"{name} to os", share, "", target=">= 0.70", reached=share is not None and share >= 0.7)


def broker(bench: Bench) -> None:
    flows, at_once = bench.size.flows, min(32, bench.size.flows)
    kinds = ("as given",) if bench.external else ("fsync", "os")
    with ExitStack() as stack:
        ceiling = stack.enter_context(bench.ceiling())
        targets = {"ceiling": ceiling} | {kind: stack.enter_context(bench.server(kind)) for kind in kinds}
        code = uvloop.run(client.create(ceiling.base, ["polled"]))
        if not bench.external:
            stack.enter_context(apart(*targets.values()))
        cpu_ms: dict[str, list[float | None]] = {name: [] for name in targets}
        speed: dict[str, list[float | None]] = {name: [] for name in targets}
        polls_us: list[float | None] = []
        for _ in range(bench.size.rounds):
            template = messages.template(messages.poll(ceiling.base, messages.CODE, "answerer"))
            polls_us.append(wrk.run(ceiling, template, code, seconds=bench.size.run_s).cpu_us)
            for name, target in targets.items():
                used_ms, rate = uvloop.run(client.broker(target, flows, at_once))
                cpu_ms[name].append(used_ms)
                speed[name].append(rate)
    add = partial(bench.add, "one brokered connection (13 requests)")
    note = (
        f"{at_once} at a time, each in a topic of its own; {APART}. At the standard: where the ceiling uses "
        f"{STANDARD_POLL_US:.1f} µs for a poll and so does 98,000 a second (here: {median(polls_us):.1f} µs)"
    )
    slow = "one Python process asks: its limit, not the server's"
    least = cpu_ms["ceiling"]
    for kind in kinds:
        used = cpu_ms[kind]
        add(f"CPU, {kind}", median(used), "ms", ceiling=median(least), ratio=ratio(used, least))
        in_polls = ratio(used, polls_us)
        standard_ms = None if in_polls is None else in_polls * STANDARD_POLL_US
        add(f"CPU, {kind}, at the standard", standard_ms, "ms", most=0.45, note=note)
        add(f"brokered, {kind}", median(speed[kind]), "/s", ceiling=median(speed["ceiling"]), note=slow)
