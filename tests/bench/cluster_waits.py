"""Polls that wait at one server for what is sent to another, and what they cost Redis."""

import asyncio
import time
from functools import partial

import uvloop

from ..support.redis_servers import RedisCluster
from . import client, messages
from .cluster_nodes import empty, used_bytes
from .figures import Bench
from .processes import Server, many_files
from .waits import settled

WAIT_S = 60
ANSWERED = 500
MORE_MS = {"p50": (0.5, 0.5), "p99": (0.99, 3.0)}  # the share, and how much longer it may take
MOST_MB = 2


class Waiting:
    """Offerers that wait for their answers at one server, while they are answered at one."""

    def __init__(self, at: Server, answered_at: Server) -> None:
        self._at, self._answered_at = at, answered_at
        self.late_s: list[float] = []

    async def create(self, count: int) -> None:
        """Publish their offers, and connect them."""
        topics = [f"waited-{number:05}" for number in range(count)]
        self.codes = await client.create(self._answered_at.base, topics)
        self._connections = await client.connect(self._at.base, count)
        (self._asker,) = await client.connect(self._answered_at.base, 1)

    async def wait(self) -> None:
        """Have all of them wait."""
        self._told: list[asyncio.Future[float]] = []
        for connection, code in zip(self._connections, self.codes, strict=True):
            told = asyncio.get_running_loop().create_future()
            self._told.append(told)
            data = messages.poll(self._at.base, code, "offerer", wait=WAIT_S)
            connection.send(data, lambda status, body, told=told: told.done() or told.set_result(time.perf_counter()))
        await settled(self._at)

    async def answer(self, number: int) -> None:
        """Answer one of them, and see how long after that was sent it knows."""
        data = messages.answer(self._answered_at.base, self.codes[number])
        began_s = time.perf_counter()
        answering = asyncio.ensure_future(self._asker.ask(data))
        self.late_s.append(await asyncio.wait_for(self._told[number], client.PATIENCE_S) - began_s)
        await answering

    def close(self) -> None:
        for connection in (self._asker, *self._connections):
            connection.close()


def waits(bench: Bench, leveldb: Server, one: Server, other: Server, shards: RedisCluster) -> None:
    """Answers to waiting offerers, with LevelDB and across two servers on Redis in turns."""
    empty(shards)
    alone, across = Waiting(leveldb, leveldb), Waiting(one, other)
    with many_files() as most:
        count = min(bench.size.cluster_waiting, most // 2)
        kept_bytes = uvloop.run(_measure(alone, across, shards, count))
    add = partial(bench.add, "cluster: requests that wait", judged=bench.whole and count == 5000)
    note = f"{count:,} waiting, {len(across.late_s)} of them answered; from the sending of the answer to the wait's end"
    for name, (share, most_ms) in MORE_MS.items():
        mine, least = (client.percentile(each.late_s, share) for each in (across, alone))
        target = {"target": f"<= {most_ms} ms more", "reached": mine - least <= most_ms}
        name = f"answered at another server, {name}, to LevelDB"
        add(name, mine, "ms", ceiling=least, ratio=mine / least, note=note, **target)
    note = f"{count:,} waiting; all primaries, by their own account"
    add("memory of Redis for what waits", kept_bytes / 1e6, "MB", most=MOST_MB, note=note)


async def _measure(alone: Waiting, across: Waiting, shards: RedisCluster, count: int) -> int:
    for each in (alone, across):
        await each.create(count)
    await alone.wait()
    before = used_bytes(shards.primaries)
    await across.wait()
    kept_bytes = used_bytes(shards.primaries) - before
    with client.quiet():
        for number in range(0, count, max(1, count // ANSWERED)):
            for each in (alone, across):
                await each.answer(number)
    for each in (alone, across):
        each.close()
    return kept_bytes
