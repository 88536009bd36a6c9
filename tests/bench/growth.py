"""Memory and time for many idle connections and stored sessions."""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from urllib.parse import urlsplit

import uvloop

from . import client, fill, messages, processes, wrk
from .figures import Bench, offer_topics, ratio
from .processes import BenchError, Server, Target, many_files


def connections(bench: Bench) -> None:
    if bench.external and bench.external.pid is None:
        return
    with many_files() as most, bench.server() as server, bench.ceiling() as ceiling:
        count = min(bench.size.connections, most)
        mine, least = _idle_bytes(server, count), _idle_bytes(ceiling, count)
    note = f"{count:,} connections, each after one request; resident, the kernel's buffers not counted"
    compared = {"ceiling": least / 1024, "ratio": mine / least, "note": note}
    bench.add("memory", "an idle keep-alive connection", mine / 1024, "KiB", most=4, **compared)


def _idle_bytes(target: Target, count: int) -> float:
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
        for _ in range(count):
            ask(opened())
        time.sleep(0.2)
        return (target.memory_bytes() - before) / count


def growth(bench: Bench) -> None:
    if bench.external:
        return
    few, many = bench.size.few, bench.size.sessions
    for a_topic in (10, 1):
        small_at = bench.fill(few, a_topic)
        large_at = bench.filled if a_topic == 10 else bench.fill(many, a_topic)
        small, large = (processes.tornado_signal(at.path, **{"admin-port": 0}) for at in (small_at, large_at))
        with small, large:
            add = partial(bench.add, f"{many:,} sessions, {a_topic} a topic")
            add("from start to listening", large.opened_s, "s")
            add("from start to listening, CPU", large.cpu_s(), "s")
            add(f"from start to listening, {few:,} sessions", small.opened_s, "s")
            each = (large.beyond_caches_bytes() - small.beyond_caches_bytes()) / (many - few)
            note = f"resident beyond the server with {few:,}, without LevelDB's caches and its mapped files"
            add("memory of a session", each, "B", most=200, judged=bench.whole, note=note)
            add("disk of a session", sum(file.stat().st_size for file in large_at.path.iterdir()) / many, "B")
            _grow(bench, add, a_topic, {few: small, many: large}, {few: small_at.codes, many: large_at.codes})


def _grow(bench: Bench, add: Callable, a_topic: int, servers: dict[int, Server], codes: dict[int, list[str]]) -> None:
    few, many = servers
    ours = {"origin": fill.ORIGIN}
    for server in servers.values():
        uvloop.run(client.create(server.base, ["zzz-alone"], **ours))

    def topics(base: str, count: int, last: bool = False) -> bytes:
        page = f"&page={max(1, count // a_topic // 100)}" if last else ""
        return messages.request(base, "GET", f"/topics?limit=100{page}", **ours)

    def alone(base: str, count: int) -> bytes:
        return messages.sessions(base, "zzz-alone", **ours)

    def poll(base: str, count: int) -> bytes:
        return messages.poll(base, messages.CODE, "answerer", **ours)

    def offer(base: str, count: int) -> bytes:
        return messages.offer(base, messages.TOPIC, **ours)

    # Each case: the request, the values for `@` in it, and whether more sessions must not slow it down much.
    cases: list[tuple[str, Callable[[str, int], bytes], dict[int, list[str]], bool]] = [
        ("GET /topics?limit=100, first page", topics, {}, True),
        ("GET /topics?limit=100, last full page", partial(topics, last=True), {}, True),
        ("GET /:topic/sessions of one session", alone, {}, True),
        ("POST /poll of any of them", poll, codes, False),
        ("POST /:topic/offer beside them", offer, dict.fromkeys(servers, offer_topics()), False),
    ]
    if a_topic == 1:
        cases = cases[:2]  # the cases that depend on the number of topics
    note = f"the time that it takes, to the time with {few:,} sessions (32 connections, durability os)"
    for name, make, parts, judged in cases:
        rates: dict[int, list[float | None]] = {few: [], many: []}
        for _ in range(bench.size.rounds):
            for count, server in servers.items():
                template = messages.template(make(server.base, count))
                run = wrk.run(server, template, parts.get(count, [""]), seconds=bench.size.run_s)
                rates[count].append(run.rate)
        most = {"most": 1.5, "judged": bench.whole} if judged else {}
        add(name, ratio(rates[few], rates[many]), "times", note=note, **most)
