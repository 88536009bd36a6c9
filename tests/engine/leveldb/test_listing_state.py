"""Detection of changed listings, at a cost that is independent of the history of the topic."""

import asyncio
import functools
import random
import time

import pytest
from support.service import ORIGIN
from support.stores import TIMEOUT_MS, Under, sweep

from tornado_signal.session import Side
from tornado_signal.stores.leveldb import records
from tornado_signal.stores.leveldb import state as state_module
from tornado_signal.stores.leveldb.positions import TopicPosition

pytest_plugins = ["support.http_fixtures"]

TOPICS = ["one", "two", "three"]
WITHDRAWN = 9900
FRESH = "z"  # no keys of the worn one come behind its own


def stored(store, one, topic):
    return records.newest_serial(store.database.view, one.origin, topic)


@pytest.mark.parametrize("kept", [2, 10_000])
@pytest.mark.parametrize("seed", range(5))
async def test_state_is_restored_from_disk(seed, kept, opened, clock, monkeypatch, restarted):
    monkeypatch.setattr(state_module, "NEWEST_KEPT", kept)
    rng = random.Random(seed)
    store, one = await opened()
    live = {}
    for _ in range(150):
        step = rng.choice(["create", "create", "create", "answer", "withdraw", "pass", "restart"])
        if step == "create":
            topic = rng.choice(TOPICS)
            live[await one.create(topic)] = (topic, clock.ms + TIMEOUT_MS)
        elif step == "pass":
            clock.ms += TIMEOUT_MS // 5
            await store.expiry.expire_due(clock.ms)
            live = {code: each for code, each in live.items() if each[1] > clock.ms}
        elif step == "restart" and rng.random() < 0.2:
            store, one = await restarted(store)
        elif step in ("answer", "withdraw") and live:
            code = rng.choice(list(live))
            del live[code]
            await (one.answer(code) if step == "answer" else one.withdraw(code))
        for topic in rng.sample(TOPICS, 2):
            state = await one.state(topic)
            expiries = [expires_ms for name, expires_ms in live.values() if name == topic]
            assert state.position == TopicPosition(stored(store, one, topic), len(expiries))
            assert state.changes_ms == min(expiries, default=None)
        assert len(store.state.newest) <= max(kept, 3)


async def test_state_never_decreases_when_departures_are_forgotten(store, one, clock):
    await one.withdraw(await one.create())
    before = await one.state()
    clock.ms += TIMEOUT_MS
    await sweep(store)
    assert stored(store, one, "topic") == 0
    assert (await one.state()) == before
    store.state.newest.clear()
    assert (await one.state()).position.serial <= before.position.serial
    await one.create()
    assert (await one.state()).position.serial > before.position.serial


async def shortest_s(times, work):
    taken = []
    for _ in range(times):
        began_s = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - began_s)
    return min(taken)


async def test_emptied_topic_costs_no_more_than_a_new_one(start_service, until):
    worn = await start_service()
    for _ in range(WITHDRAWN // 300):
        created = await asyncio.gather(*[worn.store.create(ORIGIN, "worn", "i", "o") for _ in range(300)])
        await asyncio.gather(*[worn.store.withdraw(ORIGIN, code, Side.OFFERER) for code, _ in created])
    one = Under(worn.store, ORIGIN)
    await one.state("worn")  # the first look is at the disk
    for asked in (one.state, one.sessions):
        took_s = {topic: await shortest_s(20, functools.partial(asked, topic)) for topic in ("worn", FRESH)}
        assert took_s["worn"] < 5 * took_s[FRESH] + 0.0001

    for topic in (FRESH, "worn"):  # and to wake those who wait for it
        code = await worn.offer(topic)
        cursor = (await worn.get(f"/{topic}/sessions?wait=0"))["cursor"]
        waiting = [asyncio.create_task(worn.get(f"/{topic}/sessions?wait=20&since={cursor}")) for _ in range(300)]
        await until(lambda: len(worn.store.watches) == 300)
        began_s = time.process_time()
        await worn.post("/withdraw", code=code, side="offerer")
        found = await asyncio.gather(*waiting)
        took_s[topic] = time.process_time() - began_s
        assert all(each["sessions"] == [] for each in found)
    assert took_s["worn"] < 2 * took_s[FRESH] + 0.2
