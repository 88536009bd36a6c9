"""`offer` and `answer`: a shell as a peer. `ping`: the time from an offer to its answer."""

import argparse
import asyncio
import contextlib
import math
import os
import re
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing

from .. import SessionUpdate, SignalClient, SignalError
from ..api import new_secret
from ..errors import MAX_RESPONSE_BYTES, Foreign
from . import run, terminal
from .terminal import CommandError

PING_TTL_MS = 60_000
_CODE = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


async def offer(client: SignalClient, arguments: argparse.Namespace) -> None:
    text = await run.read_input("offer")
    secret = new_secret()
    code = await client.offer(arguments.topic, arguments.info, text, secret=secret, hold=True)
    client.retry_timeout_s = run.OUTAGE_S
    try:
        await client.candidates(code, "offerer", arguments.candidate, secret=secret)
        # Afterwards, so that readers of the code find all candidates.
        print(f"code: {terminal.printable(code)}", file=sys.stderr, flush=True)
        async with time_limit(arguments.wait, "answer"):
            update = await wait_for_answer(client, code, secret)
    except BaseException:
        client.retry_timeout_s = 0
        await client._try_to_withdraw(code, secret)
        raise
    if arguments.json:
        terminal.print_line({"code": code, "answer": update.description, "answerCandidates": update.candidates})
    else:
        terminal.print_text(update.description or "")


async def answer(client: SignalClient, arguments: argparse.Namespace) -> None:
    async with time_limit(arguments.wait, "offer"):
        code, text, candidates = await find_session(client, arguments.target)
    print(f"code: {terminal.printable(code)}", file=sys.stderr, flush=True)
    if arguments.json:
        terminal.print_line({"code": code, "offer": text, "offerCandidates": candidates})
    else:
        terminal.print_text(text)
    # The program that makes the answer may read the offer until the end of the output.
    sys.stdout.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    reply = await run.read_input("answer")
    secret = new_secret()
    client.retry_timeout_s = run.OUTAGE_S
    try:
        await client.answer(code, reply, secret=secret)
    except SignalError as error:
        if error.lost_race:
            raise CommandError("another peer has answered the session, or it has ended") from None
        raise
    await client.candidates(code, "answerer", arguments.candidate, secret=secret)


@contextlib.asynccontextmanager
async def time_limit(wait_s: float | None, event: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(wait_s):
            yield
    except TimeoutError:
        raise CommandError(f"no {event} within {wait_s:g} s") from None


async def wait_for_answer(client: SignalClient, code: str, secret: str) -> SessionUpdate:
    """Return the answer, and the candidates until then.

    The candidates have at most `MAX_RESPONSE_BYTES` characters.
    """
    candidates: list[str] = []
    async with aclosing(client.news(code, "offerer", secret=secret)) as updates:
        async for update in updates:
            candidates += update.candidates
            if sum(map(len, candidates)) > MAX_RESPONSE_BYTES:
                raise Foreign
            if update.description is not None:
                return update._replace(candidates=candidates)
    raise AssertionError("unreachable")


async def find_session(client: SignalClient, target: str) -> tuple[str, str, list[str]]:
    """Wait for a session, given by its code, or by a topic of which it is the oldest.

    Return the code, the offer and the candidates.
    """
    if _CODE.fullmatch(target):
        try:
            update = await client.poll(target, "answerer")
        except SignalError as error:
            if error.status != 404:  # after 404 it may be a topic that looks like a code
                raise
        else:
            return target, update.description or "", update.candidates
    async with aclosing(client.listings(target)) as listings:
        async for listing in listings:
            client.retry_timeout_s = run.OUTAGE_S
            if listing.sessions:
                oldest = listing.sessions[-1]
                return oldest["code"], oldest["offer"], oldest["offerCandidates"]
    raise AssertionError("unreachable")


async def ping(_: SignalClient, arguments: argparse.Namespace) -> None:
    """Measure each server, with a client of its own."""
    results = []
    for url in run.urls(arguments):
        async with run.new_client(arguments, url) as client:
            topic = f"ping-{uuid.uuid4()}"
            await round_trip(client, topic)  # not measured, because it opens the connection
            took_ms = sorted([await round_trip(client, topic) for _ in range(arguments.count)])
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
    code = await client.offer(topic, "ping", "ping", ttl_ms=PING_TTL_MS, secret=secret)
    waiting = asyncio.create_task(wait_for_answer(client, code, secret))
    try:
        await client.answer(code, "pong")
        await waiting
        return (time.perf_counter() - start_s) * 1000
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)  # both may use the same broken connection
        await client._try_to_withdraw(code, secret)
