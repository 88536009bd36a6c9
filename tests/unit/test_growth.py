"""The cost of one step does not grow with the number of clients or watches that wait."""

import asyncio
import time

import pytest

from tornado_signal.limits.fair_queue import FairQueue
from tornado_signal.limits.per_address import Limits
from tornado_signal.settings.settings import Settings
from tornado_signal.stores.watches import Watches
from tornado_signal.transport.state import MemoryBudget

FEW, MANY = 1_000, 110_000
MOST = 6  # a scan of all waiting ones would make a step 110 times as expensive


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


async def find_new_clients(count):
    """Find new clients, with one open, after `count` addresses of a network. Return the time for `count` of them."""
    limits = Limits(Settings(unlimited_addresses=()))
    limits.connected("192.0.2.1", 0)
    for number in range(count):
        limits.client(f"2001:db8::{number:x}")
    began_s = time.process_time()
    for number in range(FEW):
        limits.client(f"2001:db8:{number:x}::1")
    return (time.process_time() - began_s) * count / FEW


class Unfinished:
    """A connection with 2 KB of an unfinished message."""

    size = 2048

    def __init__(self, number):
        self.client_address = f"192.0.2.{number % 200}"

    def abort(self):
        pass


async def shrink_budget(count):
    """Exceed a memory budget with `count` connections, and return the processor time of the sweep."""
    budget = MemoryBudget(Unfinished.size * count, lambda connection: connection.size)
    connections = [Unfinished(number) for number in range(count + 1)]
    for connection in connections[1:]:
        budget.grown(connection, connection.size)
    began_s = time.process_time()
    budget.grown(connections[0], connections[0].size)
    assert budget.ended > count / 5
    return time.process_time() - began_s


@pytest.mark.parametrize("work", [shrink_budget, serve_clients, wake_watches, find_new_clients])
async def test_step_costs_the_same_at_any_number(work):
    few_s = min([await work(FEW) for _ in range(5)]) / FEW
    many_s = min([await work(MANY) for _ in range(2)]) / MANY
    assert many_s < MOST * few_s
