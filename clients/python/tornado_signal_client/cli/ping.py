"""`ping`: the time from an offer to its answer."""

import argparse
import asyncio
import math
import statistics
import time
import uuid

from .. import SignalClient
from ..offers import new_secret, withdraw
from . import run, terminal
from .signaling import wait_for_answer

TTL_MS = 60_000


def ping(arguments: argparse.Namespace) -> None:
    """Measure each server."""
    results = []
    for url in run.urls(arguments):
        took_ms: list[float] = []

        async def work(client: SignalClient, took_ms: list[float] = took_ms) -> None:
            topic = f"ping-{uuid.uuid4()}"
            await round_trip(client, topic)  # not measured, because it opens the connection
            for _ in range(arguments.count):
                took_ms.append(await round_trip(client, topic))

        run.with_client(arguments, work, interrupted="interrupted", chosen=(url,))
        took_ms.sort()
        p99_ms = took_ms[math.ceil(len(took_ms) * 0.99) - 1]
        statistics_ms = {"min_ms": took_ms[0], "median_ms": statistics.median(took_ms), "p99_ms": p99_ms}
        results.append(
            {"url": url, "count": len(took_ms), **{name: round(ms, 2) for name, ms in statistics_ms.items()}}
        )
    heads = ["SERVER", "COUNT", "MIN (ms)", "MEDIAN (ms)", "P99 (ms)"]
    terminal.print_rows(arguments.json, heads, [(result, [*result.values()]) for result in results])


async def round_trip(client: SignalClient, topic: str) -> float:
    """Publish an offer, answer it, read the answer as the offerer, and return the time in milliseconds."""
    secret = new_secret()
    start_s = time.perf_counter()
    code = await client.offer(topic, "ping", "ping", ttl_ms=TTL_MS, secret=secret)
    waiting = asyncio.create_task(wait_for_answer(client, code, secret))
    try:
        await client.answer(code, "pong")
        await waiting
        return (time.perf_counter() - start_s) * 1000
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)  # both may use the same broken connection
        await withdraw(client, code, secret)
