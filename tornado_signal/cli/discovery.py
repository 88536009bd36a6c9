"""`topics`, `sessions` and `watch`."""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ..client import Session, SignalClient
from ..client.servers import back_off_s
from ..client.types import Topic
from ..system import terminal
from . import run

T = TypeVar("T", Topic, Session)

LOOK_S = 1.0  # between two requests for the topics, on which the API has no wait


def topics(arguments: argparse.Namespace) -> None:
    """List all topics."""
    _list(arguments, all_topics, topics_table)


def sessions(arguments: argparse.Namespace) -> None:
    """List the sessions of a topic."""

    async def find(client: SignalClient) -> list[Session]:
        return (await client.sessions(arguments.topic)).sessions

    _list(arguments, find, sessions_table)


def _list(
    arguments: argparse.Namespace,
    find: Callable[[SignalClient], Awaitable[list[T]]],
    table: Callable[[list[T]], str],
) -> None:
    async def work(client: SignalClient) -> None:
        found = await find(client)
        if terminal.wants_tables(arguments.json):
            print(table(found))
        else:
            for each in found:
                terminal.print_line(each)

    run.with_client(arguments, work, interrupted="interrupted")


def watch(arguments: argparse.Namespace) -> None:
    """Follow a topic, or the topics."""
    follow = watch_topic if arguments.topic else watch_topics
    run.with_client(arguments, lambda client: follow(client, arguments))


async def watch_topic(client: SignalClient, arguments: argparse.Namespace) -> None:
    """Print a line for each event; on a terminal the listing, every second."""
    if not terminal.wants_tables(arguments.json):
        async for event in client.topic_events(arguments.topic):
            terminal.print_line({"event": event.name, **event.data})
        return
    there: dict[str, Session] = {}

    async def follow() -> None:
        async for event in client.topic_events(arguments.topic):
            if event.name == "session":
                there[event.data["code"]] = event.data  # type: ignore[assignment]
            else:
                there.pop(event.data["code"], None)

    following = asyncio.create_task(follow())
    pause_s = 0.1  # for the sessions that are there already
    while True:
        await asyncio.wait([following], timeout=pause_s)
        pause_s = LOOK_S
        if following.done():
            return following.result()
        _draw(f"{terminal.shortened(arguments.topic)}: {len(there)} waiting", sessions_table(reversed(there.values())))


async def watch_topics(client: SignalClient, arguments: argparse.Namespace) -> None:
    """Print a line for each topic whose count has changed; on a terminal all topics."""
    before: dict[str, int] = {}
    while True:
        found = await all_topics(client)
        client.retry_timeout_s = run.OUTAGE_S
        if terminal.wants_tables(arguments.json):
            _draw(f"{len(found)} topics", topics_table(found))
        else:
            now = {each["topic"]: each["count"] for each in found}
            for topic in sorted({*before, *now}):
                if before.get(topic) != now.get(topic):
                    terminal.print_line({"topic": topic, "count": now.get(topic, 0)})
            before = now
        await asyncio.sleep(back_off_s(0, LOOK_S))


async def all_topics(client: SignalClient) -> list[Topic]:
    """The topics of all pages."""
    found: list[Topic] = []
    page = 1
    while True:
        part = await client.topics(page, 1000)
        found += part["topics"]
        if not part["pagination"]["hasMore"]:
            return found
        page += 1


def _draw(head: str, table: str) -> None:
    print(f"{terminal.CLEAR}{head}, {time.strftime('%H:%M:%S')}\n\n{table}", flush=True)


def topics_table(found: list[Topic]) -> str:
    """Topics as a table."""
    return terminal.table(["TOPIC", "SESSIONS"], [[each["topic"], each["count"]] for each in found])


def sessions_table(found: Iterable[Session]) -> str:
    """Sessions as a table."""
    now_ms = time.time() * 1000
    rows = [
        [
            each["code"],
            each["info"],
            _duration(now_ms - each["createdAt"]),
            _duration(each["expiresAt"] - now_ms),
            len(each["offer"]),
            len(each["offerCandidates"]),
        ]
        for each in found
    ]
    return terminal.table(["CODE", "INFO", "AGE", "LEFT", "OFFER", "CANDIDATES"], rows)


def _duration(ms: float) -> str:
    """A time span in words."""
    left_s = max(0, round(ms / 1000))
    return f"{left_s} s" if left_s < 120 else f"{left_s // 60} min" if left_s < 7200 else f"{left_s // 3600} h"
