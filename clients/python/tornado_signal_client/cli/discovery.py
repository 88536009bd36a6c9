"""`topics`, `sessions` and `watch`."""

import argparse
import asyncio
import itertools
import time
from collections.abc import Iterable, Sequence

from .. import Session, SignalClient
from ..errors import Foreign
from ..tasks import back_off_s
from ..types import Topic
from . import run, terminal
from .terminal import CommandError

Row = tuple[str, str, float, float, int, int]  # code, info, creation and expiry (ms), characters, candidates
TOPIC_HEADS = ["TOPIC", "SESSIONS"]
SESSION_HEADS = ["CODE", "INFO", "AGE", "LEFT", "OFFER", "CANDIDATES"]
MAX_TOPICS = 100_000  # of a listing
MAX_TOPIC_CHARACTERS = 8 * 2**20  # of all topics of a listing
MAX_ROWS = 1000  # newest sessions in the table of `watch`
PAGE = 1000  # topics of a request
POLL_S = 1.0  # between two requests for the topics, because the API has no long poll for them


async def topics(client: SignalClient, arguments: argparse.Namespace) -> None:
    rows = [(topic, topic_row(topic)) for topic in await all_topics(client)]
    terminal.print_rows(arguments.json, TOPIC_HEADS, rows)


async def sessions(client: SignalClient, arguments: argparse.Namespace) -> None:
    rows = [(session, shown(session_row(session))) for session in (await client.sessions(arguments.topic)).sessions]
    terminal.print_rows(arguments.json, SESSION_HEADS, rows)


async def watch(client: SignalClient, arguments: argparse.Namespace) -> None:
    await (watch_topic if arguments.topic else watch_topics)(client, arguments)


async def watch_topic(client: SignalClient, arguments: argparse.Namespace) -> None:
    """Print a line for each event, or on a terminal the listing every second."""
    if not terminal.wants_tables(arguments.json):
        async for event in client.topic_events(arguments.topic):
            terminal.print_line({"event": event.name, **event.data})
        return
    listed: dict[str, Row] = {}

    async def follow() -> None:
        async for event in client.topic_events(arguments.topic):
            if event.name == "session":
                listed[event.data["code"]] = session_row(event.data)  # type: ignore[arg-type]
                if len(listed) > MAX_ROWS:
                    del listed[next(iter(listed))]
            else:
                listed.pop(event.data["code"], None)

    following = asyncio.create_task(follow())
    pause_s = 0.1  # for the sessions that exist already
    try:
        while True:
            await asyncio.wait([following], timeout=pause_s)
            pause_s = POLL_S
            if following.done():
                return following.result()
            head = f"{terminal.shortened(arguments.topic)}: {len(listed)} waiting"
            _draw(head, SESSION_HEADS, map(shown, reversed(listed.values())))
    finally:
        following.cancel()


async def watch_topics(client: SignalClient, arguments: argparse.Namespace) -> None:
    """Print a line for each topic with a changed count, or on a terminal all topics."""
    before: dict[str, int] = {}
    while True:
        current = await all_topics(client)
        client.retry_timeout_s = run.OUTAGE_S
        if terminal.wants_tables(arguments.json):
            _draw(f"{len(current)} topics", TOPIC_HEADS, map(topic_row, current))
        else:
            now = {topic["topic"]: topic["count"] for topic in current}
            for name in sorted({*before, *now}):
                if before.get(name) != now.get(name):
                    terminal.print_line({"topic": name, "count": now.get(name, 0)})
            before = now
        await asyncio.sleep(back_off_s(0, POLL_S))


async def all_topics(client: SignalClient) -> list[Topic]:
    result: list[Topic] = []
    characters = 0
    for page in itertools.count(1):
        part = await client.topics(page, PAGE)
        result += part["topics"]
        characters += sum(len(topic["topic"]) for topic in part["topics"])
        more = part["pagination"]["hasMore"]
        if len(part["topics"]) > PAGE or (more and not part["topics"]):
            raise Foreign
        if not more:
            break
        if len(result) > MAX_TOPICS or characters > MAX_TOPIC_CHARACTERS:
            raise CommandError(f"the server has more than {MAX_TOPICS} topics; read them in pages with GET /topics")
    return result


def _draw(head: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    print(f"{terminal.CLEAR}{head}, {time.strftime('%H:%M:%S')}\n\n{terminal.table(heads, [*rows])}", flush=True)


def topic_row(topic: Topic) -> Sequence[object]:
    return topic["topic"], topic["count"]


def session_row(session: Session) -> Row:
    texts = terminal.shortened(session["code"]), terminal.shortened(session["info"])
    times_ms = session["createdAt"], session["expiresAt"]
    return *texts, *times_ms, len(session["offer"]), len(session["offerCandidates"])


def shown(row: Row) -> Sequence[object]:
    code, info, created_at_ms, expires_at_ms, *numbers = row
    now_ms = time.time() * 1000
    return code, info, _duration(now_ms - created_at_ms), _duration(expires_at_ms - now_ms), *numbers


def _duration(ms: float) -> str:
    left_s = max(0, round(ms / 1000))
    return f"{left_s} s" if left_s < 120 else f"{left_s // 60} min" if left_s < 7200 else f"{left_s // 3600} h"
