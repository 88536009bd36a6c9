"""Held offers of a process that is gone, on Redis."""

import asyncio
import functools
import time

import pytest
from support.redis_servers import KINDS, RedisServer, fixture
from support.stores import opened_on

from tornado_signal.errors import SessionNotFound
from tornado_signal.redis.client import RedisClient
from tornado_signal.session import Side
from tornado_signal.stores.redis import leases

pytestmark = pytest.mark.slow

GRACE_MS = 500


node = fixture(RedisServer, KINDS)


open_one = functools.partial(opened_on, session_timeout_ms=300_000, hold_grace_ms=GRACE_MS)


async def stop_beating(store):
    """Leave a store as a process that was killed leaves it."""
    for each in store._leases._repeated:
        await each.stop()
    store._leases._repeated = []


async def test_offers_held_by_a_dead_process_are_withdrawn(node, under, until, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    monkeypatch.setattr(leases, "PIECE", 3)
    monkeypatch.setattr(RedisClient, "now_ms", lambda *_: time.time_ns() // 10**6)  # exactly the node's clock
    async with open_one(node) as gone, open_one(node) as other:
        one, two = under(gone), under(other)
        held = [await one.create(lease=gone.process_id + bytes(3) + bytes([number])) for number in range(10)]
        free, answered, taken, own = (
            await one.create(),
            await one.create(lease=gone.process_id + b"more"),
            await one.create(lease=gone.process_id + b"more"),
            await two.create(lease=other.process_id + b"more"),
        )
        await two.answer(answered)
        await two.hold(taken, other.process_id + b"more")
        watch = other.watch_topic(two.origin, "topic")
        await asyncio.sleep(5 * leases.BEAT_S)
        assert len(await two.codes()) == 13  # both are alive

        await stop_beating(gone)
        beaten_ms = node.ask("ZSCORE", "tornado-signal:processes", gone.process_id)
        async with asyncio.timeout(60):
            while len(await two.codes()) > 3:
                await watch.wait(asyncio.get_running_loop().time() + 30)
        late_ms = leases.LATE_BEATS * leases.BEAT_S * 1000 + GRACE_MS
        assert other.now_ms() - beaten_ms >= late_ms
        watch.close()
        assert set(await two.codes()) == {free, taken, own}
        for code in held:
            with pytest.raises(SessionNotFound):
                await two.read(code, Side.OFFERER)
        assert (await two.read(answered, Side.ANSWERER)).description == "answer"
        await until(lambda: node.ask("ZRANGE", "tornado-signal:processes", 0, -1) == [other.process_id])
        await asyncio.sleep(5 * leases.BEAT_S)
        assert set(await two.codes()) == {free, taken, own}


async def test_first_held_offer_is_recorded_although_the_heartbeat_fails(node, under, until, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    async with open_one(node) as gone, open_one(node) as other:
        node.ask("SET", "tornado-signal:processes", "no sorted set")
        code = await under(gone).create(lease=gone.process_id + b"more")
        assert node.ask("ZCARD", f"tornado-signal:held:{gone.process_id.hex()}") == 1
        node.ask("DEL", "tornado-signal:processes")
        await until(lambda: node.ask("ZRANGE", "tornado-signal:processes", 0, -1) == [gone.process_id])
        await stop_beating(gone)
        await until(lambda: node.ask("ZCARD", "tornado-signal:processes") == 0)
        with pytest.raises(SessionNotFound):
            await under(other).read(code, Side.OFFERER)


async def test_outage_keeps_offers_held_by_living_processes(node, under, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    async with open_one(node) as first, open_one(node) as second, open_one(node) as third:
        stores = (first, second, third)
        one = under(stores[0])
        codes = {await under(store).create(lease=store.process_id + b"more") for store in stores}
        node.ask("CLIENT", "PAUSE", 2000, "ALL")  # for longer than all beats and the grace period
        await asyncio.sleep(5)
        assert set(await one.codes()) == codes


def slowly(release):
    async def wait_and_release(*arguments):
        await asyncio.sleep(0.1)  # times 40: several times as long as a heartbeat may be late
        await release(*arguments)

    return wait_and_release


async def test_release_for_a_dead_process_costs_no_live_offer(node, under, until, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    monkeypatch.setattr(leases, "PIECE", 1)
    async with open_one(node) as gone, open_one(node) as one, open_one(node) as two, open_one(node) as three:
        living = (one, two, three)
        for number in range(40):
            await under(gone).create(lease=gone.process_id + number.to_bytes(4, "big"))
        for store in living:
            store._leases._release = slowly(store._leases._release)
        live = {await under(store, "https://live.example").create(lease=store.process_id + b"more") for store in living}
        await stop_beating(gone)

        async def work(store):
            """Publish and answer, as a busy server does."""
            while True:
                await under(store, "https://busy.example").answer(await under(store, "https://busy.example").create())

        working = [asyncio.create_task(work(store)) for store in living]
        await until(lambda: node.ask("ZSCORE", "tornado-signal:processes", gone.process_id) is None)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        assert await under(living[0]).codes() == []
        assert set(await under(living[0], "https://live.example").codes()) == live


async def test_lost_claim_ends_the_release(node, under, until, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.2)
    monkeypatch.setattr(leases, "PIECE", 1)
    async with open_one(node) as gone, open_one(node) as other:
        for number in range(3):
            await under(gone).create(lease=gone.process_id + number.to_bytes(4, "big"))
        claim = f"tornado-signal:claim:{gone.process_id.hex()}"
        remaining_ms = []

        async def release(*arguments):
            remaining_ms.append(node.ask("PTTL", claim))
            node.ask("PEXPIRE", claim, 1000)
            if len(remaining_ms) == 2:
                node.ask("SET", claim, "another process", "PX", 60_000)

        other._leases._release = release
        await stop_beating(gone)
        await until(lambda: len(remaining_ms) == 2)
        looks = node.calls("zrange") + 3  # of processes, for lost ones and for their offers
        await until(lambda: node.calls("zrange") >= looks)
        assert len(remaining_ms) == 2
        assert min(remaining_ms) > 1000  # each step has renewed the claim
