"""Cost of connected WebSockets while idle, and the delay until they receive an event."""

import asyncio
import struct
import sys
import time
from functools import partial
from urllib.parse import urlsplit

import orjson
import uvloop
from hostile import wire

from tornado_signal.settings.settings import Settings

from . import client, processes, sockets
from .figures import Bench, busy_share, settled
from .processes import ROOT, Server

PINGED_S = 21.0  # time in which each connection receives a ping
TOPIC = "watched"
OFFERS = 5
ANSWERED = 300
PROBE_PAUSE_S = 0.002


class Client(sockets.WebSocket):
    """A connected client that records only `event_s`, the time of its last event."""

    event_s = 0.0

    def arrived(self, text: bytes) -> None:
        if text.startswith(b'{"jsonrpc":"2.0","method":"event"'):
            self.event_s = time.perf_counter()
        else:
            super().arrived(text)

    async def ask(self, method: str, **params: object) -> dict:
        self.send(sockets.frame(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})))
        return orjson.loads(await self.next())["result"]


def websockets(bench: Bench) -> None:
    with processes.many_files() as most:
        with bench.server(**{"session-timeout-ms": Settings().session_timeout_ms}) as server:
            uvloop.run(_holding(bench, server, min(bench.size.sockets, most)))
        with bench.server() as server, processes.apart(server):
            uvloop.run(_watching(bench, server, min(bench.size.watchers, most)))


async def _holding(bench: Bench, server: Server, count: int) -> None:
    base = server.base
    codes = await client.create(base, [f"held-{number:05}" for number in range(count)])
    before_bytes = server.memory_bytes()
    connections = await sockets.open_many(base, count, Client)
    for connection, code in zip(connections, codes, strict=True):
        await connection.ask("hold", code=code)
        await connection.ask("subscribe", code=code, side="offerer")
    await settled(server)
    each = (server.memory_bytes() - before_bytes) / count
    busy = await busy_share(server, PINGED_S if bench.whole else 1)
    (asker,) = await client.connect(base, 1)
    late_s = []
    for number in range(0, count, max(1, count // ANSWERED)):
        answer = {"code": codes[number], "side": "answerer", "answer": client.NOISE[500:]}
        await asker.ask(wire.request("POST", "/answer", answer, origin=sockets.ORIGIN))
        answered_s = time.perf_counter()
        while not connections[number].event_s:  # noqa: ASYNC110 (an event would be one event-loop iteration later)
            await asyncio.sleep(0)
        late_s.append(connections[number].event_s - answered_s)
    asker.close()
    _leave(connections)
    note = f"{count:,} connected, each holds an offer and watches it"
    add = partial(bench.add, "websockets")
    add("an idle WebSocket", each / 1024, "KiB", most=8, note=f"{note}; resident, beyond its session")
    add("CPU while all are idle", busy * 100, "%", most=3, note=f"{note}; each has a ping in 20 s")
    note = f"after the answer's own 200; {note}"
    for name, share, most_ms in (("median", 0.5, 2), ("p99", 0.99, 10)):
        value = client.percentile(late_s, share)
        add(f"answer to its offerer's event, {name}", value, "ms", most=most_ms, note=note)


async def _watching(bench: Bench, server: Server, count: int) -> None:
    connections = await sockets.open_many(server.base, count, Client)
    for connection in connections:
        await connection.ask("subscribe", topic=TOPIC)
    await settled(server)
    (asker,) = await client.connect(server.base, 1)
    command = [sys.executable, "-m", "hostile.probe", str(PROBE_PAUSE_S), str(urlsplit(server.base).port)]
    pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
    probe = await asyncio.create_subprocess_exec(*command, cwd=ROOT / "tests", **pipes)
    last_s = []
    try:
        await probe.stdout.readline()
        for _ in range(OFFERS):
            for connection in connections:
                connection.event_s = 0.0
            await asker.ask(client.offer(TOPIC))
            began_s = time.perf_counter()
            while not all(connection.event_s for connection in connections):  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.001)
            last_s.append(max(connection.event_s for connection in connections) - began_s)
        probed, _ = await probe.communicate(b"")
    finally:
        if probe.returncode is None:
            probe.kill()
    longest_s = max(taken_s for _, taken_s in orjson.loads(probed)["taken"][1:])  # the first probe has to connect
    asker.close()
    _leave(connections)
    note = f"{count:,} watch it; the longest of {OFFERS}"
    add = partial(bench.add, "websockets")
    add("an offer, until the last that watches its topic has it", max(last_s) * 1e3, "ms", most=1000, note=note)
    name = "the longest that another request takes meanwhile"
    note = f"one after the other, by a process of its own; {note}"
    add(name, longest_s * 1e3, "ms", most=20, judged=bench.whole, note=note)


def _leave(connections: list[Client]) -> None:
    for connection in connections:
        connection.send(sockets.frame(struct.pack("!H", 1001), sockets.CLOSE))
