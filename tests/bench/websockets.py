"""Cost of connected WebSockets while idle, and the delay until they receive an event."""

import asyncio
import json
import sys
import time
from functools import partial
from urllib.parse import urlsplit

import uvloop
from hostile import wire
from support.waiting import kill, start_holder

from tornado_signal.settings.settings import Settings

from . import client, processes, sockets
from .figures import Bench, busy_share, connections_kib, settled
from .processes import ROOT, Server

PINGED_S = 21.0  # time in which each connection receives a ping
TOPIC = "watched"
OFFERS = 5
PROBE_PAUSE_S = 0.002
ANSWERED = 300


def websockets(bench: Bench) -> None:
    with processes.many_files() as most:
        with bench.server(**{"session-timeout-ms": Settings().session_timeout_ms}) as server:
            uvloop.run(_holding(bench, server, min(bench.size.sockets, most)))
        with bench.server() as server, processes.apart(server):
            uvloop.run(_watching(bench, server, min(bench.size.watchers, most)))


def _call(method: str, **params: object) -> dict:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


async def _holding(bench: Bench, server: Server, count: int) -> None:
    codes = await client.create(server.base, [f"held-{number:05}" for number in range(count)])

    async def hold() -> list[sockets.WebSocket]:
        opened = await sockets.open_many(server.base, count, first=lambda number: _call("hold", code=codes[number]))
        for connection, code in zip(opened, codes, strict=True):
            connection.send_json(_call("subscribe", code=code, side="offerer"))
            await connection.received(2)
        return opened

    connections, each = await connections_kib(server, hold)
    busy = await busy_share(server, PINGED_S if bench.whole else 1)
    late_s = []
    asker = client.Connection(server.base)
    for connection, code in [*zip(connections, codes, strict=True)][:: max(1, count // ANSWERED)]:
        expected = connection.messages + 1
        answer = {"code": code, "side": "answerer", "answer": client.NOISE[500:]}
        await asker.must(wire.request("POST", "/answer", answer, origin=sockets.ORIGIN))
        answered_s = time.perf_counter()
        while connection.messages < expected:  # noqa: ASYNC110 (an event would be one event-loop iteration later)
            await asyncio.sleep(0)
        late_s.append(max(0.0, connection.last_s - answered_s))
    for opened in (asker, *connections):
        opened.abort()
    note = f"{count:,} connected, each holds an offer and watches it"
    add = partial(bench.add, "websockets")
    add("an idle WebSocket", each, "KiB", most=8, note=f"{note}; resident, beyond its session")
    add("CPU while all are idle", busy * 100, "%", most=3, note=f"{note}; each has a ping in 20 s")
    note = f"after the answer's own 200; {note}"
    for name, share, most_ms in (("median", 0.5, 2), ("p99", 0.99, 10)):
        value = client.percentile(late_s, share)
        add(f"answer to its offerer's event, {name}", value, "ms", most=most_ms, note=note)


async def _watching(bench: Bench, server: Server, count: int) -> None:
    clients = await sockets.open_many(server.base, count, first=lambda _: _call("subscribe", topic=TOPIC))
    await settled(server)
    asker = client.Connection(server.base)
    command = [sys.executable, "-m", "hostile.probe", str(PROBE_PAUSE_S), str(urlsplit(server.base).port)]
    probe = await asyncio.to_thread(start_holder, *command, cwd=ROOT / "tests")
    late_s = []
    try:
        for _ in range(OFFERS):
            await asyncio.sleep(0.3)
            arrived = asyncio.gather(*(each.received(each.messages + 1) for each in clients))
            began_s = time.perf_counter()
            await asyncio.gather(asker.must(client.offer(TOPIC)), arrived)
            late_s.append(max(each.last_s for each in clients) - began_s)
        said, _ = await asyncio.to_thread(probe.communicate)
    finally:
        kill(probe)
    taken_s = [taken_s for _, taken_s in json.loads(said)["taken"][1:]]  # the first probe has to connect
    for each in (asker, *clients):
        each.abort()
    add = partial(bench.add, "websockets", note=f"{count:,} watch it; the longest of {OFFERS}")
    add("an offer, until the last that watches its topic has it", max(late_s) * 1e3, "ms", most=1000)
    add("the longest that another request takes meanwhile", max(taken_s) * 1e3, "ms", most=20, judged=bench.whole)
