"""Kills of a working server lose no acknowledged change and leave no partial one."""

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


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("durability", "timeout_ms"), [("fsync", 2000), ("os", NO_LIMIT_MS)])
def test_repeated_kills_lose_nothing_acknowledged(durability, timeout_ms, start, tmp_path):
    """Some texts are so long that LevelDB changes logs and merges tables, and some sessions so short that it sweeps."""
    seed = time.time_ns()
    print("seed", seed)
    moment = random.Random(seed)
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
async def test_kill_withdraws_held_offers_after_the_restart(engine, tmp_path, start, redis_server):
    """An offer that another client takes over stays. With Redis that client is at another server."""
    serve = functools.partial(start, "--hold-grace-ms", 300, "--sweep-interval-ms", 100)
    if engine == "redis":
        serve = functools.partial(serve, "--durability", "os", redis=redis_server())
    killed, server = serve(), serve() if engine == "redis" else None
    params = {"topic": "lobby", "info": "i", "offer": "o", "secret": "the secret of both", "hold": True}
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_socket(killed))
        kept, lost = [(await client.call("offer", **params))["code"] for _ in range(2)]
        if server is None:
            killed.stop(signal.SIGKILL)
            server = serve()
        other = await stack.enter_async_context(open_socket(server))
        await other.call("hold", code=kept, secret=params["secret"])
        if engine == "redis":
            killed.stop(signal.SIGKILL)
        await other.call("subscribe", topic="lobby")
        while (event := await other.event())[0] == "session":
            pass
        assert event[:2] == ("gone", {"code": lost, "reason": "withdrawn"})
        assert server.codes() == [kept]
    assert server.stop() == 0
    if engine == "leveldb":
        store = await open_leveldb(tmp_path / "data")
        check_memory(store)
        await store.close()
