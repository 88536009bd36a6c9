"""Watches: they are notified of every change, woken in turn, and removed when closed."""

import asyncio
import contextlib
import gc

import pytest

from tornado_signal.stores import watches
from tornado_signal.stores.watches import Watches


@pytest.fixture
def all_watches(io_loop):
    """New watches, which must all be closed at the end."""

    async def make():
        return Watches()

    new_watches = io_loop.run_sync(make)
    yield new_watches
    assert len(new_watches) == 0


@pytest.fixture
def watching(all_watches):
    """A function that opens `count` watches of a key. They are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda key, count=1: [stack.enter_context(all_watches.watch(key)) for _ in range(count)]


def soon():
    """Return a deadline far enough in the future for tests that expect to be woken."""
    return asyncio.get_running_loop().time() + 30


async def test_change_between_opening_and_waiting_wakes(all_watches):
    with all_watches.watch(b"k") as watch:
        all_watches.changed(b"k")
        await asyncio.sleep(0)
        assert await watch.wait(soon())
        began_s = asyncio.get_running_loop().time()
        assert await watch.wait(began_s + 0.1)
        assert asyncio.get_running_loop().time() >= began_s + 0.1


async def test_wait_times_out_within_a_few_ticks(all_watches):
    loop = asyncio.get_running_loop()
    began_s = 0

    async def wait(key, delay_s):
        with all_watches.watch(key) as watch:
            assert await watch.wait(began_s + delay_s)
            return loop.time() - began_s - delay_s

    delays_s = []
    while not any(max(late_s) < 3 * watches.TICK_S for late_s in delays_s):  # a slow machine may be late several times
        assert len(delays_s) < 20, delays_s
        began_s = loop.time()
        delays_s.append(await asyncio.gather(wait(b"a", 0.12), wait(b"a", 0.01), wait(b"b", 0.3)))
        assert min(delays_s[-1]) >= 0


async def test_end_wakes_many_at_a_bounded_rate(all_watches, monkeypatch):
    monkeypatch.setattr(watches, "END_PER_S", 1000)
    loop = asyncio.get_running_loop()
    woken_s = []

    async def wait():
        with all_watches.watch(b"k") as watch:
            assert not await watch.wait(soon() + 60)
            woken_s.append(loop.time())

    waiting = asyncio.gather(*(wait() for _ in range(1800)))
    await asyncio.sleep(0)
    began_s = loop.time()
    all_watches.end()
    all_watches.end()
    iterations = 0
    while len(woken_s) < 1800:
        await asyncio.sleep(0)
        iterations += 1
    await waiting
    assert iterations > 1800 / watches.WAKE_STEP / 2
    late_s = [moment_s - began_s for moment_s in woken_s]
    max_per_tick = watches.END_PER_S * watches.TICK_S
    for tick in range(30):  # no watch is woken before its time
        assert sum(late <= tick * watches.TICK_S for late in late_s) <= max_per_tick * (tick + 1)
    assert late_s[-1] > 1.5


async def test_end_takes_a_bounded_time(all_watches, watching, monkeypatch):
    monkeypatch.setattr(watches, "END_PER_S", 10)
    monkeypatch.setattr(watches, "END_S", 0.4)
    opened = watching(b"k", 2000)
    waits = [watch.wait(soon() + 300) for watch in opened]
    began_s = asyncio.get_running_loop().time()
    all_watches.end()
    assert not any(await asyncio.gather(*waits))
    refused = opened[0].wait(soon())
    assert refused.done()
    assert not refused.result()
    opened[0].close()  # and again at the end
    assert 0.3 < asyncio.get_running_loop().time() - began_s < 60  # it would take 200 s at that rate


async def iterations_until(condition):
    iterations = 0
    while not condition():
        await asyncio.sleep(0)
        iterations += 1
        assert iterations < 100_000
    return iterations


async def test_single_watch_is_woken_immediately(all_watches, watching):
    waits = [watch.wait(soon()) for watch in watching(b"many", 1000)]
    (lone,) = watching(b"lone")
    waiting = lone.wait(soon())
    all_watches.changed(b"many")
    await asyncio.sleep(0)
    all_watches.changed(b"lone")
    assert waiting.done()
    assert waiting.result()
    assert sum(wait.done() for wait in waits) < 100
    await asyncio.gather(*waits)


async def test_keys_take_turns(all_watches, watching):
    counts = {b"many": 2000, b"more": 2000, b"few": 5}
    waits = {key: [watch.wait(soon()) for watch in watching(key, count)] for key, count in counts.items()}
    for key in waits:
        all_watches.changed(key)
    assert await iterations_until(lambda: all(wait.done() for wait in waits[b"few"])) <= 3
    assert sum(wait.done() for wait in waits[b"many"] + waits[b"more"]) < 200
    await iterations_until(lambda: all(wait.done() for key in waits for wait in waits[key]))


async def test_repeated_changes_queue_a_watch_once(all_watches, watching):
    woken = 0

    async def wait(watch):
        nonlocal woken
        while True:
            await watch.wait(soon())
            woken += 1

    tasks = [asyncio.ensure_future(wait(watch)) for watch in watching(b"k", 1000)]
    await asyncio.sleep(0)
    for changes, expected in [(500, 1000), (1, 2000)]:  # one more wake-up for later changes
        for _ in range(changes):
            all_watches.changed(b"k")
        iterations = await iterations_until(lambda: not all_watches._changed)
        await asyncio.sleep(0)
        assert woken == expected
        assert iterations <= 1000 / watches.WAKE_STEP + 3
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_change_while_waking_is_not_lost(all_watches, watching):
    opened = watching(b"k", 200)
    waits = [watch.wait(soon()) for watch in opened]
    all_watches.changed(b"k")
    await iterations_until(lambda: any(wait.done() for wait in waits))
    first = next(watch for watch, wait in zip(opened, waits, strict=True) if wait.done())
    again = first.wait(soon())
    assert not again.done()
    all_watches.changed(b"k")
    await iterations_until(lambda: again.done() and all(wait.done() for wait in waits))


async def test_closed_watch_leaves_nothing_behind(all_watches, uncollected):
    watching = [all_watches.watch(b"k") for _ in range(100)]
    others = [all_watches.watch(b"other") for _ in range(100)]
    waits = [watch.wait(soon()) for watch in watching]
    all_watches.changed(b"k")
    all_watches.changed(b"other")
    await asyncio.sleep(0)
    for watch in watching:
        watch.close()
    assert not all_watches._changed[b"k"]
    assert b"k" not in all_watches._by_key
    assert [wait.result() for wait in waits].count(False) >= 100 - 2 * watches.WAKE_STEP
    for watch in others:
        watch.close()
    await iterations_until(lambda: not all_watches._waking)
    assert (all_watches._changed, all_watches._by_key, all_watches.timers._by_tick) == ({}, {}, {})
    del watch, watching, others
    await asyncio.sleep(0)
    assert not [obj for obj in gc.get_objects() if type(obj) is watches.Watch]


@pytest.mark.parametrize("timed", [True, False])
async def test_watch_that_cannot_be_woken_stops_no_other(all_watches, watching, monkeypatch, timed):
    """The event loop logs the exception."""
    failed = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failed.append(type(context["exception"])))
    waiting = watching(b"k", 100)
    waits = [watch.wait(0.01 + asyncio.get_running_loop().time() if timed else soon()) for watch in waiting]
    broken = {id(watch) for watch in waiting[::9]}
    wake = watches.Watch.wake
    monkeypatch.setattr(watches.Watch, "wake", lambda watch: 1 // 0 if id(watch) in broken else wake(watch))
    if not timed:
        all_watches.changed(b"k")
    await asyncio.wait_for(asyncio.gather(*(wait for at, wait in enumerate(waits) if at % 9)), 60)
    monkeypatch.undo()
    assert set(failed) == {ZeroDivisionError}
