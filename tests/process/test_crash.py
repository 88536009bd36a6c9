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


@pytest.mark.parametrize("engine", ["leveldb", "redis"])
async def test_kill_withdraws_held_offers_after_the_restart(engine, moment, tmp_path, start, redis_server):
    """Clients that reconnect in time take over their held offers. The offers of others are withdrawn later.

    With Redis they reconnect to another server, which has been running all the time. The killed one has a heartbeat
    until they are back: after seconds without one its offers would be withdrawn, and a busy machine is slower.
    """
    begin, beats = (
        functools.partial(start, "--hold-grace-ms", 300, "--sweep-interval-ms", 100),
        "tornado-signal:processes",
    )
    if engine == "redis":
        redis = redis_server()
        begin = functools.partial(begin, "--durability", "os", redis=redis)
    killed, server = begin(), begin() if engine == "redis" else None
    held, acknowledged = {name: [] for name in ("stays", "closes", "aborts", "is away")}, asyncio.Semaphore(0)

    async def publish(name, codes):
        params = {"topic": "lobby", "info": "i", "offer": name, "secret": f"the secret of {name}", "ttl": SHORT_MS}
        async with open_socket(killed) as client:
            with contextlib.suppress(ConnectionError):
                while True:
                    codes.append((await client.call("offer", **params, hold=True))["code"])
                    acknowledged.release()

    async with asyncio.timeout(BOUND_S), asyncio.TaskGroup() as group:
        for each in held.items():
            group.create_task(publish(*each))
        for _ in range(moment.randrange(1, 300)):
            await acknowledged.acquire()
        killed.process.kill()
    killed.wait()
    if engine == "redis":
        lost = redis.ask("ZRANGE", beats, 0, -1)
        for process in lost:
            redis.ask("ZADD", beats, time.time() * 1000 + LONG_MS, process)
    server = server or begin()
    lasting, listed, gone = {code for codes in held.values() for code in codes}, set(), {}
    async with contextlib.AsyncExitStack() as stack:
        *back, watching = [await stack.enter_async_context(open_socket(server)) for _ in held]
        for client, (name, codes) in zip(back, held.items(), strict=False):
            await asyncio.gather(*(client.call("hold", code=code, secret=f"the secret of {name}") for code in codes))
        await watching.call("subscribe", topic="lobby")
        while not lasting <= listed:
            listed.add((await watching.event())[1]["code"])
        if engine == "redis":
            for process in lost:
                redis.ask("ZADD", beats, 0, process)
        await back[1].socket.close()
        back[2].socket.transport.abort()
        while not lasting - {*held["stays"]} <= gone.keys():
            kind, data, _ = await watching.event()
            if kind == "gone":
                assert data["code"] not in gone
                gone[data["code"]] = data["reason"]
        assert {*gone.values()} == {"withdrawn"}
        assert not gone.keys() & {*held["stays"]}
        assert {*held["stays"]} <= {*server.codes()}
    assert server.stop() == 0
    if engine == "leveldb":
        store = await open_leveldb(tmp_path / "data", session_timeout_ms=LONG_MS)
        check_memory(store)
        await store.close()
