"""What connected WebSockets cost while nothing happens, and how soon they are told when something does."""

import asyncio
import resource
import struct
import sys
import time
from urllib.parse import urlsplit

import orjson
import uvloop

from tornado_signal.settings.settings import Settings

from . import client, messages, processes, sockets
from .figures import Bench
from .processes import ROOT, Server
from .waits import ANSWERED, settled

PART = "websockets"
OPENED = 200  # at once
PINGED_S = 21.0  # in which each connection has had its ping
TOPIC = "watched"
OFFERS = 5


class Client(sockets.WebSocket):
    """A connected client; when its last event came is all it keeps.

    Attributes:
        told_s: when that was.
    """

    told_s = 0.0

    def arrived(self, text: bytes) -> None:
        if text.startswith(b'{"jsonrpc":"2.0","method":"event"'):
            self.told_s = time.perf_counter()
        else:
            super().arrived(text)

    async def ask(self, method: str, **params: object) -> dict:
        """The result of a request."""
        self.send(sockets.frame(orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})))
        return orjson.loads(await self.next())["result"]


def websockets(bench: Bench) -> None:
    """Connections that hold an offer and watch it, and connections that watch one topic."""
    if bench.given:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for the server too
    try:
        lifetime = {"session-timeout-ms": Settings().session_timeout_ms}
        with processes.tornado_signal(bench.directory(), **lifetime) as server:
            uvloop.run(_holding(bench, server, min(bench.size.sockets, hard - 1000)))
        with bench.server() as server, processes.apart(server):
            uvloop.run(_watching(bench, server, min(bench.size.watchers, hard - 1000)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _connect(base: str, count: int) -> list[Client]:
    parts = urlsplit(base)
    upgrade = messages.request(base, "GET", "/ws").removesuffix(b"\r\n") + (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )

    async def connect() -> Client:
        _, opened = await asyncio.get_running_loop().create_connection(Client, parts.hostname, parts.port)
        opened.send(upgrade)
        await opened.opened
        return opened

    found: list[Client] = []
    while len(found) < count:
        found += await asyncio.gather(*(connect() for _ in range(min(OPENED, count - len(found)))))
    return found


async def _holding(bench: Bench, server: Server, count: int) -> None:
    base = server.base
    codes = await client.create(base, [f"held-{number:05}" for number in range(count)])
    before_bytes = server.memory_bytes()
    connections = await _connect(base, count)
    for connection, code in zip(connections, codes, strict=True):
        await connection.ask("hold", code=code)
        await connection.ask("subscribe", code=code, side="offerer")
    await settled(server)
    each = (server.memory_bytes() - before_bytes) / count
    used_s, began_s = server.cpu_s(), time.perf_counter()
    await asyncio.sleep(PINGED_S if bench.whole else 1)
    busy = (server.cpu_s() - used_s) / (time.perf_counter() - began_s)
    (asker,) = await client.connect(base, 1)
    late_s = []
    for number in range(0, count, max(1, count // ANSWERED)):
        await asker.ask(messages.answer(base, codes[number]))
        answered_s = time.perf_counter()
        while not connections[number].told_s:  # noqa: ASYNC110 (an event would be one more turn late)
            await asyncio.sleep(0)
        late_s.append(connections[number].told_s - answered_s)
    asker.close()
    _leave(connections)
    late_s.sort()
    note = f"{count:,} connected, each holds an offer and watches it"
    bench.add(PART, "an idle WebSocket", each / 1024, "KiB", target="<= 8 KiB", reached=each <= 8192,
              note=f"{note}; resident, beyond its session")  # fmt: skip
    bench.add(PART, "CPU while all are idle", busy * 100, "%", target="<= 3 %", reached=busy <= 0.03,
              note=f"{note}; each has a ping in 20 s")  # fmt: skip
    for name, at, most_s in (("median", 0.5, 0.002), ("p99", 0.99, 0.010)):
        value_s = late_s[int(len(late_s) * at)]
        bench.add(PART, f"answer to its offerer's event, {name}", value_s * 1e3, "ms",
                  target=f"<= {most_s * 1e3:.0f} ms", reached=value_s <= most_s,
                  note=f"after the answer's own 200; {note}")  # fmt: skip


async def _watching(bench: Bench, server: Server, count: int) -> None:
    connections = await _connect(server.base, count)
    for connection in connections:
        await connection.ask("subscribe", topic=TOPIC)
    await settled(server)
    (asker,) = await client.connect(server.base, 1)
    command = [sys.executable, "-m", "tests.bench.longest", server.base]
    others = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    last_s = []
    try:
        assert others.stdout is not None
        await others.stdout.readline()
        for _ in range(OFFERS):
            for connection in connections:
                connection.told_s = 0.0
            await asker.ask(messages.offer(server.base, TOPIC))
            began_s = time.perf_counter()
            while not all(connection.told_s for connection in connections):  # noqa: ASYNC110 (as above)
                await asyncio.sleep(0.001)
            last_s.append(max(connection.told_s for connection in connections) - began_s)
        found, _ = await others.communicate(b"")
    finally:
        if others.returncode is None:
            others.kill()
    asker.close()
    _leave(connections)
    longest_s = float(found)
    note = f"{count:,} watch it; the longest of {OFFERS}"
    bench.add(PART, "an offer, until the last that watches its topic has it", max(last_s) * 1e3, "ms",
              target="<= 1000 ms", reached=max(last_s) <= 1, note=note)  # fmt: skip
    bench.add(PART, "the longest that another request takes meanwhile", longest_s * 1e3, "ms",
              target="<= 20 ms", reached=longest_s <= 0.02 if bench.whole else None,
              note=f"one after the other, by a process of its own; {note}")  # fmt: skip


def _leave(connections: list[Client]) -> None:
    for connection in connections:
        connection.send(sockets.frame(struct.pack("!H", 1001), sockets.CLOSE))
