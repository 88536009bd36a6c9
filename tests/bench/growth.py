"""What memory and time cost with many: idle connections, stored sessions."""

import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import uvloop

from . import client, fill, messages, processes, wrk
from .figures import Bench, offer_topics, ratio
from .processes import BenchError, Server, Target


def connections(bench: Bench) -> None:
    """Memory of an idle keep-alive connection."""
    if bench.given and bench.given.pid is None:
        return
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


def growth(bench: Bench) -> None:
    """What listings, polls and memory cost with many sessions, beside few."""
    if bench.given:
        return
    few, many = bench.size.few, bench.size.sessions
    for a_topic in (10, 1):
        small_at = bench.fill(few, a_topic)
        large_at = bench.fill_once() if a_topic == 10 else bench.fill(many, a_topic)
        admin = {"admin-port": 0}
        with (
            processes.tornado_signal(small_at.path, **admin) as small,
            processes.tornado_signal(large_at.path, **admin) as large,
        ):
            part = f"{many:,} sessions, {a_topic} a topic"
            bench.add(part, "from start to listening", large.opened_s, "s")
            bench.add(part, "from start to listening, CPU", large.cpu_s(), "s")
            bench.add(part, f"from start to listening, {few:,} sessions", small.opened_s, "s")
            each = (large.beyond_caches_bytes() - small.beyond_caches_bytes()) / (many - few)
            size = sum(file.stat().st_size for file in large_at.path.iterdir()) / many
            bench.add(
                part,
                "memory of a session",
                each,
                "B",
                target="<= 200 B",
                reached=each <= 200 if bench.whole else None,
                note=f"resident beyond the server with {few:,}, without LevelDB's caches and its mapped files",
            )
            bench.add(part, "disk of a session", size, "B")
            _grow(bench, part, a_topic, {few: small, many: large}, {few: small_at.codes, many: large_at.codes})


def _grow(bench: Bench, part: str, a_topic: int, servers: dict[int, Server], codes: dict[int, list[str]]) -> None:
    few, many = servers
    origin = fill.ORIGIN
    for server in servers.values():
        uvloop.run(client.create(server.base, ["zzz-alone"], origin=origin))

    def last(count: int) -> int:
        return count // a_topic // 100

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
