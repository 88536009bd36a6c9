"""Kills of a working server lose no acknowledged change and leave no partial one."""

import asyncio
import contextlib
import functools
import random
import signal
import time

import pytest
from support import writers
from support.command import BOUND_S
from support.rpc import open_socket
from support.stores import check_memory, open_leveldb
from support.writers import NO_LIMIT_MS

pytest_plugins = ["support.redis_traffic"]
pytestmark = pytest.mark.slow

LONG_MS = 3_600_000
SHORT_MS = 1000  # which a held offer outlives


@pytest.fixture
def moment():
    """Return the random generator for the times of kills. Its seed is printed."""
    seed = time.time_ns()
    print("seed", seed)
    return random.Random(seed)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("durability", "timeout_ms"), [("fsync", 2000), ("os", NO_LIMIT_MS)])
def test_repeated_kills_lose_nothing_acknowledged(durability, timeout_ms, moment, start, tmp_path):
    """Some texts are so long that LevelDB changes logs and merges tables, and some sessions so short that it sweeps."""
    flags = ("--durability", durability, "--session-timeout-ms", timeout_ms, "--sweep-interval-ms", 10)
    sessions = []
    for turn in range(8):
        server = start(*flags)
        padding = "x" * moment.choice([0, 0, 30_000])
        with writers.Writers(server.url, f"{moment.random()} {turn}", padding=padding) as working:
            for _ in range(moment.randrange(1, 500)):
                assert working.acknowledgements.acquire(timeout=BOUND_S), working.wrong
            server.stop(signal.SIGKILL)
        assert working.wrong == []
        sessions += working.sessions
        known, _ = writers.compare_stopped(tmp_path / "data", sessions, timeout_ms)
        assert known > 0
    assert start(*flags).stop() == 0


class Holder:
    """A client that publishes offers that its connection holds, until that is cut off."""

    def __init__(self, name, **lifetime):
        self.name, self._secret, self._lifetime = name, f"the secret of {name}", lifetime
        self.held = {}  # what was acknowledged: code -> offer
        self.asked = set()  # what may have been published without that

    async def publish(self, server, acknowledged):
        """Publish one after the other, and say when each is acknowledged."""
        async with open_socket(server) as client:
            with contextlib.suppress(ConnectionError):
                while True:
                    offer = f"{self.name} {len(self.held)}"
                    self.asked.add(offer)
                    params = {"topic": "lobby", "info": "i", "offer": offer, "secret": self._secret, "hold": True}
                    code = (await client.call("offer", **params, **self._lifetime))["code"]
                    self.asked.discard(offer)
                    self.held[code] = offer
                    acknowledged.release()

    async def come_back(self, client):
        await asyncio.gather(*(client.call("hold", code=code, secret=self._secret) for code in self.held))


async def killed_while_they_publish(server, holders, number):
    """Have clients publish, and kill the server once a number of offers is acknowledged."""
    acknowledged = asyncio.Semaphore(0)
    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
        for holder in holders:
            group.create_task(holder.publish(server, acknowledged))
        for _ in range(number):
            await acknowledged.acquire()
        server.process.kill()
    server.wait()


class Watcher:
    """The sessions that a subscriber to the topic knows, across its connections."""

    def __init__(self):
        self.listed = set()  # codes
        self.gone = {}  # code -> reason
        self._since = {}

    async def come_back(self, client):
        self._client = client
        await client.call("subscribe", topic="lobby", **self._since)

    async def watch(self, until):
        """Hear of everything once, until something is true."""
        while not until():
            kind, data, cursor = await self._client.event()
            self._since = {"since": cursor}
            if kind == "reset":  # with LevelDB, as after every restart
                self.listed.clear()
                continue
            code = data["code"]
            assert (kind == "gone") == (code in self.listed)
            assert code not in self.gone
            self.listed ^= {code}
            if kind == "gone":
                self.gone[code] = data["reason"]


@pytest.mark.parametrize("engine", ["leveldb", "redis"])
async def test_kill_withdraws_held_offers_after_the_restart(engine, moment, tmp_path, start, redis_server):
    """Clients that reconnect in time take over their held offers. The offers of others are withdrawn later.

    With Redis they reconnect to another server, which has been running all the time. The killed one has a heartbeat
    until they are back: after seconds without one its offers would be withdrawn, and a busy machine is slower.
    """
    flags, beats = ("--hold-grace-ms", 300, "--sweep-interval-ms", 100), "tornado-signal:processes"
    begin = start
    if engine == "redis":
        redis = redis_server()
        begin = functools.partial(start, "--durability", "os", redis=redis)
    server, watcher, asked = begin(*flags), Watcher(), set()
    for turn in range(2):
        back = [Holder(f"{turn} back {number}") for number in range(4)]
        away = [Holder(f"{turn} away {number}", ttl=SHORT_MS) for number in range(4)]
        killed, server = server, begin(*flags) if engine == "redis" else None
        await killed_while_they_publish(killed, back + away, moment.randrange(1, 300))
        if engine == "redis":
            lost = redis.ask("ZRANGE", beats, 0, -1)
            for process in lost:
                redis.ask("ZADD", beats, time.time() * 1000 + LONG_MS, process)
        server = server or begin(*flags)
        asked |= {offer for holder in back + away for offer in holder.asked}
        lasting = {code: offer for holder in back + away for code, offer in holder.held.items()}
        leaving = {code for holder in back[:2] + away for code in holder.held}
        async with contextlib.AsyncExitStack() as stack:
            *clients, watching = [await stack.enter_async_context(open_socket(server)) for _ in [*back, watcher]]
            for holder, client in zip(back, clients, strict=True):
                await holder.come_back(client)
            found = {each["code"]: each["offer"] for each in server.call("/lobby/sessions")[1]["sessions"]}
            assert lasting.items() <= found.items()
            assert {offer for code, offer in found.items() if code not in watcher.listed | lasting.keys()} <= asked
            await watcher.come_back(watching)
            await watcher.watch(lambda lasting=lasting: lasting.keys() <= watcher.listed)
            if engine == "redis":
                for process in lost:
                    redis.ask("ZADD", beats, 0, process)
            await clients[0].socket.close()
            clients[1].socket.transport.abort()
            await watcher.watch(lambda leaving=leaving: leaving <= watcher.gone.keys())
            assert lasting.keys() - leaving <= set(server.codes())
        assert {watcher.gone[code] for code in leaving} <= {"withdrawn"}
    assert server.stop() == 0
    if engine == "leveldb":
        store = await open_leveldb(tmp_path / "data", session_timeout_ms=LONG_MS)
        check_memory(store)
        await store.close()
