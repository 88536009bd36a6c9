"""`topics`, `sessions` and `watch`."""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from ..client import Session, SignalClient
from ..client.servers import back_off_s
from ..client.types import Topic
from . import run as session
from . import show

T = TypeVar("T", Topic, Session)

LOOK_S = 1.0  # between two looks at the topics, for which the API has no wait


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
        if show.for_people(arguments.json):
            print(table(found))
        else:
            for each in found:
                show.line(each)

    session.run(arguments, work, interrupted="interrupted")


def watch(arguments: argparse.Namespace) -> None:
    """Follow a topic, or the topics."""

    async def work(client: SignalClient) -> None:
        await (watch_topic(client, arguments) if arguments.topic else watch_topics(client, arguments))

    session.run(arguments, work)


async def watch_topic(client: SignalClient, arguments: argparse.Namespace) -> None:
    """A line for each event; for people the listing, drawn anew every second."""
    if not show.for_people(arguments.json):
        async for event in client.topic_events(arguments.topic):
            show.line({"event": event.name, **event.data})
        return
    there: dict[str, Session] = {}

    async def follow() -> None:
        async for event in client.topic_events(arguments.topic):
            if event.name == "session":
                there[event.data["code"]] = event.data  # type: ignore[assignment]
            else:
                there.pop(event.data["code"], None)

    following = asyncio.create_task(follow())
    pause_s = 0.1  # for those that are there already
    while True:
        await asyncio.wait([following], timeout=pause_s)
        pause_s = LOOK_S
        if following.done():
            return following.result()
        head = f"{show.printable(arguments.topic)}: {len(there)} waiting, {time.strftime('%H:%M:%S')}"
        print(f"{show.CLEAR}{head}\n\n{sessions_table(reversed(there.values()))}", flush=True)


async def watch_topics(client: SignalClient, arguments: argparse.Namespace) -> None:
    """A line for each topic whose count has changed; for people all of them."""
    before: dict[str, int] = {}
    while True:
        found = await all_topics(client)
        client.patience_s = session.OUTAGE_S
        if show.for_people(arguments.json):
            print(f"{show.CLEAR}{len(found)} topics, {time.strftime('%H:%M:%S')}\n\n{topics_table(found)}", flush=True)
        else:
            now = {each["topic"]: each["count"] for each in found}
            for topic in sorted({*before, *now}):
                if before.get(topic) != now.get(topic):
                    show.line({"topic": topic, "count": now.get(topic, 0)})
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


def topics_table(found: list[Topic]) -> str:
    """Topics for people."""
    return show.table(["TOPIC", "SESSIONS"], [[each["topic"], each["count"]] for each in found])


def sessions_table(found: Iterable[Session]) -> str:
    """Sessions for people."""
    now_ms = time.time() * 1000
    rows = [
        [
            each["code"],
            each["info"],
            show.seconds(now_ms - each["createdAt"]),
            show.seconds(each["expiresAt"] - now_ms),
            len(each["offer"]),
            len(each["offerCandidates"]),
        ]
        for each in found
    ]
    return show.table(["CODE", "INFO", "AGE", "LEFT", "OFFER", "CANDIDATES"], rows)
