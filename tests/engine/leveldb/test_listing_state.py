"""Detection of changed listings, at a cost that is independent of the history of the topic."""

import asyncio
import functools
import random
import time

import pytest
from support.stores import TIMEOUT_MS, sweep

from tornado_signal.stores.leveldb import records
from tornado_signal.stores.leveldb import state as state_module
from tornado_signal.stores.leveldb.positions import TopicPosition

TOPICS = ["one", "two", "three"]
WORN = 4000
NEVER_MS = 10**6


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


@pytest.mark.parametrize(
    ("end", "kept"),
    [("withdraw", None), ("answer", None), ("expire", None), ("withdraw", "oldest"), ("withdraw", "newest")],
)
async def test_worn_topic_costs_no_more_than_a_new_one_and_slows_no_other(store, one, clock, end, kept):
    """A single old session costs its own topic more: LevelDB skips the deleted entries that are newer."""
    if kept == "oldest":
        await one.create("worn", ttl_ms=NEVER_MS)
    for _ in range(WORN // 500):
        codes = await asyncio.gather(*[one.create("worn") for _ in range(500)])
        if end != "expire":
            await asyncio.gather(*[(one.answer if end == "answer" else one.withdraw)(code) for code in codes])
    if kept == "newest":
        await one.create("worn", ttl_ms=NEVER_MS)
    clock.ms += TIMEOUT_MS if end == "expire" else 0
    await store.expiry.expire_due(clock.ms)
    topics = ["before", "worn", "x"]  # their keys are next to each other
    await asyncio.gather(*[one.create(topic) for topic in topics if topic != "worn"])
    positions = {topic: await one.knowing(topic) for topic in (*topics, "new")}
    for asked in (one.state, one.sessions, lambda topic: one.events(positions[topic], topic)):
        took_s = {topic: await shortest_s(20, functools.partial(asked, topic)) for topic in (*topics, "new")}
        for topic in topics if kept != "oldest" else ("before", "x"):
            assert took_s[topic] < 5 * took_s["new"] + 0.0001, (topic, took_s)
