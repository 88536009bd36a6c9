"""`ping`: how long it takes from an offer to its answer."""

import argparse
import asyncio
import contextlib
import math
import secrets
import statistics
import time
import uuid

from ..client import APIError, SignalClient
from ..system import terminal
from . import run
from .signaling import answered

TTL_MS = 60_000


def ping(arguments: argparse.Namespace) -> None:
    """Measure each server."""
    measured = []
    for url in run.urls(arguments):
        took_ms: list[float] = []

        async def work(client: SignalClient, took_ms: list[float] = took_ms) -> None:
            topic = f"ping-{uuid.uuid4()}"
            await round_trip(client, topic)  # the first one opens the connection
            for _ in range(arguments.count):
                took_ms.append(await round_trip(client, topic))

        run.with_client(arguments, work, interrupted="interrupted", servers=(url,))
        took_ms.sort()
        p99_ms = took_ms[math.ceil(len(took_ms) * 0.99) - 1]
        found = {"min_ms": took_ms[0], "median_ms": statistics.median(took_ms), "p99_ms": p99_ms}
        measured.append({"url": url, "count": len(took_ms), **{name: round(ms, 2) for name, ms in found.items()}})
    if terminal.wants_tables(arguments.json):
        heads = ["SERVER", "COUNT", "MIN (ms)", "MEDIAN (ms)", "P99 (ms)"]
        print(terminal.table(heads, [list(each.values()) for each in measured]))
    else:
        for each in measured:
            terminal.print_line(each)


async def round_trip(client: SignalClient, topic: str) -> float:
    """Publish, answer, and read the answer as the offerer; how many milliseconds that took."""
    secret = secrets.token_urlsafe(24)
    begun_s = time.perf_counter()
    code = await client.offer(topic, "ping", "ping", ttl_ms=TTL_MS, secret=secret)
    waiting = asyncio.create_task(answered(client, code, secret))
    try:
        await client.answer(code, "pong")
        await waiting
        return (time.perf_counter() - begun_s) * 1000
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)  # one connection may have broken for both
        with contextlib.suppress(APIError):
            await client.withdraw(code, "offerer", secret=secret)
