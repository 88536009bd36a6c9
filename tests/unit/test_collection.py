"""Reference cycles are collected without a look at everything that is open."""

import asyncio
import gc
import subprocess
import sys
import weakref

import pytest

from tornado_signal.process import tuning
from tornado_signal.process.tuning import GarbageCollection

BOUND_S = 60


class Cycle:
    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def restored():
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.freeze()


@pytest.fixture
def collecting(monkeypatch):
    """Return a function that starts the collection with a number of open connections."""
    monkeypatch.setattr(tuning, "FREEZE_S", 0.01)
    return lambda connections: GarbageCollection(lambda: connections)


async def reaches(condition):
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 (the collector reports nothing)
            await asyncio.sleep(0.01)


def full_collections():
    return gc.get_stats()[2]["collections"]


async def test_many_lasting_objects_cause_no_full_collection(collecting):
    collection = collecting(10_000)
    before = full_collections()
    lasting = [[] for _ in range(200_000)]
    await reaches(lambda: not any(gc.get_count()[1:]) and gc.get_freeze_count() > len(lasting))
    lasting += [[] for _ in range(200_000)]
    assert full_collections() == before
    await collection.stop()


async def test_young_cycle_is_freed_while_many_connections_are_open(collecting):
    collection = collecting(10_000)
    freed = weakref.ref(Cycle())
    await reaches(lambda: freed() is None)
    await collection.stop()


@pytest.mark.parametrize(("setting", "connections"), [("COLLECT_IDLE_S", 0), ("COLLECT_S", 10_000)])
async def test_old_cycle_is_freed_when_few_connections_are_open_and_after_a_day(
    setting, connections, collecting, monkeypatch
):
    cycle = Cycle()
    freed = weakref.ref(cycle)
    collection = collecting(connections)
    await reaches(lambda: gc.get_freeze_count() > 0)
    del cycle
    await asyncio.sleep(0)
    assert freed() is not None
    monkeypatch.setattr(tuning, setting, 0.0)
    await reaches(lambda: freed() is None)
    await collection.stop()


def test_old_cycles_are_freed_when_memory_has_doubled_without_connections():
    """In a process of its own, whose memory is small. Memory that doubles with the connections is in use."""
    program = """
import asyncio, gc, weakref
from tornado_signal.process import tuning

class Cycle(bytearray):
    pass

async def main():
    tuning.FREEZE_S = 0.01
    connections = 0
    collection = tuning.GarbageCollection(lambda: connections)
    cycle = Cycle(1)
    cycle.itself, freed = cycle, weakref.ref(cycle)
    frozen = gc.get_freeze_count()
    while gc.get_freeze_count() <= frozen:
        await asyncio.sleep(0.01)
    del cycle
    connections = 10_000
    much = [b"x" * (2048 * tuning.peak_memory())]
    await asyncio.sleep(0.1)
    print("kept" if freed() is not None else "freed")
    much.append(b"x" * (2048 * tuning.peak_memory()))
    async with asyncio.timeout(50):
        while freed() is not None:
            await asyncio.sleep(0.01)
    await collection.stop()

asyncio.run(main())
"""
    assert run(program) == "kept\n"


def test_memory_of_many_closed_connections_is_returned_at_most_now_and_then():
    """The memory is that of blocks between others that are in use, as connections over TLS leave it."""
    program = """
import asyncio, re
from pathlib import Path
from tornado_signal.process import tuning

BLOCKS, BLOCK_BYTES = 4000, 16_000

def anonymous_bytes():
    return 1024 * int(re.search("RssAnon:\\\\s+([0-9]+)", Path("/proc/self/status").read_text())[1])

async def main():
    tuning.FREEZE_S = 0.01
    tuning.tune_malloc()
    connections = 0
    collection = tuning.GarbageCollection(lambda: connections)
    before = anonymous_bytes()

    async def wave():
        nonlocal connections
        blocks = [bytearray(BLOCK_BYTES) for _ in range(BLOCKS)]
        connections = tuning.TRIM_CONNECTIONS
        await asyncio.sleep(0.1)
        connections = 0
        return blocks[::20]

    def is_returned():
        return anonymous_bytes() - before < BLOCKS * BLOCK_BYTES / 2

    kept = await wave()
    async with asyncio.timeout(50):
        while not is_returned():
            await asyncio.sleep(0.01)
    kept = await wave()
    await asyncio.sleep(0.1)
    print("kept" if not is_returned() else "returned")
    await collection.stop()

asyncio.run(main())
"""
    assert run(program) == "kept\n"


def run(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout
