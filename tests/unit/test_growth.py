"""The cost of one step does not grow with the number of clients or watches that wait."""

import asyncio
import time

import pytest

from tornado_signal.limits.fair_queue import FairQueue
from tornado_signal.stores.watches import Watches

FEW, MANY = 1_000, 64_000
MOST = 6  # a scan of all waiting ones would make a step 64 times as expensive


async def serve_clients(count):
    """Serve clients of a queue, and return the processor time."""
    queue, served = FairQueue(), []
    for client in range(count):
        queue.submit(client, lambda: served.append(None))
    began_s = time.process_time()
    while len(served) < count:  # noqa: ASYNC110  (the queue runs between two iterations)
        await asyncio.sleep(0)
    return time.process_time() - began_s


async def wake_watches(count):
    """Wake the watches of one key, and return the processor time."""
    watches = Watches()
    waits = [watches.watch(b"key").wait(watches.loop.time() + 600) for _ in range(count)]
    watches.changed(b"key")
    began_s = time.process_time()
    await asyncio.wait(waits)
    return time.process_time() - began_s


@pytest.mark.parametrize("work", [serve_clients, wake_watches])
async def test_step_costs_the_same_at_any_number(work):
    few_s = min([await work(FEW) for _ in range(5)]) / FEW
    many_s = min([await work(MANY) for _ in range(2)]) / MANY
    assert many_s < MOST * few_s
