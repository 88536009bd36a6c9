"""A step costs the same however much clients have open, and no iteration works for all of them.

The table of docs/design.md#growth lists the collections.
"""

import asyncio
import ipaddress
import itertools
import math
import statistics
import time
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from tornado_signal.auth.authority import Authority
from tornado_signal.auth.grants import Grant
from tornado_signal.auth.keys import Key
from tornado_signal.limits.fair_queue import FairQueue
from tornado_signal.limits.forwarded import parse_address
from tornado_signal.limits.per_address import Limits
from tornado_signal.limits.recent import RecentCounts
from tornado_signal.operator.actions import Actions, perform
from tornado_signal.operator.status import Status
from tornado_signal.outgoing.webhook_events import EventQueue, WebhookMetrics, session_event
from tornado_signal.relay import Channel, Lease
from tornado_signal.relay.memory import MemoryRelay
from tornado_signal.session import TopicRange
from tornado_signal.settings.settings import Settings
from tornado_signal.stores.leveldb.locks import SessionLocks
from tornado_signal.stores.leveldb.memory import ANY_SERIAL, Memory, Record, Removals
from tornado_signal.stores.watches import Watches
from tornado_signal.transport.listener import Server
from tornado_signal.transport.state import MemoryBudget, ServerState
from tornado_signal.websocket.presence import Presence

NUMBERS = {1_000: 5, 16_000: 5}  # of items, each with the number of measurements
MAX_EXPONENT = 1.4  # of the cost of all items. If each looked at all others, it would be 2
MAX_SHARE = 0.3  # of the longest iteration in the cost of the most items, if they are handled in slices
WEEKLY = pytest.param({1_000: 5, 10_000: 2, 100_000: 1}, marks=pytest.mark.weekly, id="100,000")


async def measure(work, count):
    """Return the seconds of each iteration of the event loop between the first and the second `yield` of a work.

    They are processor time of the thread, so a busy machine changes nothing. Without a second `yield` the end counts.
    """

    def mark():
        nonlocal following
        following = loop.call_soon(mark)
        marks_s.append(time.thread_time())

    steps, loop = work(count), asyncio.get_running_loop()
    await anext(steps)
    marks_s = [time.thread_time()]
    following = loop.call_soon(mark)
    await anext(steps, None)
    following.cancel()
    marks_s.append(time.thread_time())
    await anext(steps, None)
    return [after_s - before_s for before_s, after_s in itertools.pairwise(marks_s)]


async def until(condition):
    while not condition():  # noqa: ASYNC110  (an iteration is what is measured)
        await asyncio.sleep(0)


async def serve_clients(count):
    queue, served = FairQueue(), []
    for client in range(count):
        queue.submit(client, lambda: served.append(None))
    yield
    await until(lambda: len(served) == count)


async def wake_watches(count):
    watches = Watches()
    waits = [watches.watch(b"key").wait(watches.loop.time() + 600) for _ in range(count)]
    yield
    watches.changed(b"key")
    await until(lambda: not watches._changed_keys)
    yield
    assert all(wait.done() for wait in waits)


async def find_new_clients(count):
    """Find clients while `count` others and one with a connection are known."""
    limits = Limits(Settings(unlimited_addresses=()))
    limits.connected("192.0.2.1", 0)
    for number in range(count):
        limits.client(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    yield
    for number in range(count):
        limits.client(f"11.{number >> 16}.{number >> 8 & 255}.{number & 255}")


async def count_peers(count):
    limits = Limits(Settings(unlimited_addresses=()))
    client = limits.client("192.0.2.1")
    yield
    for swarm in range(count):
        limits.acquire_peer(client, swarm, 1)
    for swarm in range(count):
        limits.release_peer(client, swarm)


class Connection:
    """A connection with 2 KB of an unfinished message."""

    size, idle, deadline_s = 2048, True, 1e-9

    def __init__(self, number=0, ended=None):
        self.remote_ip = self.client_address = f"192.0.2.{number % 200}"
        self.ended = [] if ended is None else ended

    def abort(self):
        self.ended.append(self)

    close = deadline_passed = abort


async def shrink_budget(count):
    budget = MemoryBudget(Connection.size * count, lambda connection: connection.size)
    ended = []
    connections = [Connection(number, ended) for number in range(count + 1)]
    for connection in connections[1:]:
        budget.update(connection, connection.size)
    yield
    budget.update(connections[0], connections[0].size)
    await until(lambda: len(ended) == budget.ended)
    yield
    assert budget.ended > count / 5


def transport_state(count):
    state = ServerState(None, None, None)
    state.connections = {Connection(number) for number in range(count)}
    state.idle = OrderedDict.fromkeys(state.connections, 0.0)
    return state


async def search_idle_connections(count):
    server = Server(transport_state(count))
    yield
    for _ in range(count // 100):
        assert not server.close_idle(lambda address: address == "198.51.100.1")


async def close_idle_connections(count):
    server = Server(transport_state(count))
    yield
    for _ in range(count):
        assert server.close_idle()


async def disconnect_network(count):
    service = SimpleNamespace(waits={})
    actions = Actions(service, transport_state(count), {})
    yield
    result = await perform(actions.performers, "disconnect", {"address": "192.0.2.0/24"}, "a test")
    yield
    assert result == {"connections": count}


async def remove_key(count):
    key, ended = Key("old", "HS256", b"", b""), []
    authority = Authority({"old": key}, Settings())
    grant = Grant(frozenset(), key=key)
    bearers = [authority.make_bearer(grant, lambda: 0.0, lambda: ended.append(None)) for _ in range(count)]
    authority.keys = {}
    yield
    for bearer in bearers:
        bearer._is_due = True
        authority.end_in_turn(bearer)
    await until(lambda: len(ended) == count)


class Receiver:
    def __init__(self, received):
        self.relayed = received.append


async def publish_message(count):
    relay, channel, received = MemoryRelay(), Channel("scope", "channel"), []
    for _ in range(count):
        relay.subscribe(channel, Receiver(received))
    yield
    relay.publish(channel, b"a message")
    await until(lambda: len(received) == count)


async def leave_group(count):
    relay, group = MemoryRelay(), Channel("scope", "group")
    for number in range(count):
        await relay.join(group, Lease(f"{number}", "owner"), count)
    yield
    for number in range(count):
        await relay.leave(group, f"{number}", "owner")


async def hold_the_same_offer(count):
    settings = SimpleNamespace(hold_grace_ms=10_000)
    store = SimpleNamespace(now_ms=lambda: 0, process_id=b"process")
    service = SimpleNamespace(store=store, settings=settings, log=SimpleNamespace(metrics=SimpleNamespace(held=0)))
    presence, key = Presence(service), ("origin", b"code")
    fields = {"lease": b"", "reserved": 1, "closed": False}
    holders = [SimpleNamespace(**fields, held=[], counts=SimpleNamespace(held=1)) for _ in range(count)]
    yield
    for holder in holders:
        presence.begin(holder, key, "topic", b"", 600_000)
    presence.forget(key)
    yield
    assert not service.log.metrics.held


async def append_to_one_session(count):
    locks, appended = SessionLocks(), []
    first = await locks.acquire(b"key")

    async def append():
        with await locks.acquire(b"key"):
            appended.append(1)

    tasks = [asyncio.ensure_future(append()) for _ in range(count)]
    await asyncio.sleep(0)
    yield
    first.release()
    await until(lambda: len(appended) == count)
    yield
    await asyncio.gather(*tasks)


async def list_sessions(count, topic_of, look):
    memory = Memory(bytes(38))
    records = [Record(b"S" + serial.to_bytes(16, "big"), 0, serial // 4, serial, b"") for serial in range(1, count)]
    yield
    for record in records:
        memory.add(record, "origin", topic_of(record.serial))
        look(memory, record.serial)
    for record in records[::2]:
        memory.refresh(record, count)
    while (record := memory.due(count)) is not None:
        memory.expire(record, 1)
        memory.remove(record)


def list_sessions_of_one_topic(count):
    first = ("origin", "topic", 0, ANY_SERIAL)
    return list_sessions(count, lambda serial: "topic", lambda memory, serial: next(memory.listing(*first)))


def count_pages(memory, serial):
    memory.page("origin", serial, 1)
    memory.page("origin", 0, 1, [TopicRange("1", True)])


def count_sessions_of_many_topics(count):
    return list_sessions(count, str, count_pages)


async def count_recent_names(count):
    counts = RecentCounts(lambda name: name[:1], "others")
    yield
    for number in range(count):
        counts.count(f"{number}", 200)


async def check_blocked_addresses(count):
    limits = Limits(Settings(unlimited_addresses=()))
    limits.block(ipaddress.ip_network("198.51.100.0/24"), 0)
    parse_address.cache_clear()  # it holds the addresses of small numbers, but not those of large ones
    yield
    for number in range(count):
        limits.is_blocked(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")


async def remember_topics_of_sessions(count):
    authority = Authority({"key": Key("key", "HS256", b"", b"")}, Settings())
    yield
    for number in range(count):
        authority.remember_topic("origin", b"%d" % number, "topic")


async def keep_verified_tokens(count):
    authority, grant = Authority({"key": Key("key", "HS256", b"", b"")}, Settings()), Grant(frozenset())
    yield
    for number in range(count):
        authority._keep(b"%d" % number, grant, 500)


async def remember_removals(count):
    removals = Removals()
    yield
    for number in range(count):
        topic = b"%d" % (number if number % 2 else 0)
        removals.add(topic, Record(b"S" + bytes(16), 0, 0, number, b""), None, number)
        removals.after(topic, number, 10)
    removals.forget(count)


async def queue_webhook_events(count):
    queue = EventQueue("server", WebhookMetrics())
    event = session_event(0, "created", "origin", b"c" * 16, "topic", 0, 1)
    yield
    for _ in range(count):
        queue.add(b"c" * 16, event)
    while queue:
        queue.done(queue.take(), "")


async def pass_deadlines(count):
    state, passed = transport_state(0), []
    state.connections.update(Connection(number, passed) for number in range(count))
    server = Server(state)
    yield
    server._check_deadlines()
    server._tick.cancel()
    await until(lambda: len(passed) == count)
    yield


async def end_waits(count):
    """End waits at the same tick, which is read from the watches: no time has to pass."""
    watches = Watches()
    waits = [watches.watch(b"%d" % number).wait(watches.loop.time() + 600) for number in range(count)]
    watches._to_end.extend(watch for waiting in watches.timers._by_tick.values() for watch in waiting)
    yield
    watches._wake_soon()
    await until(lambda: all(wait.done() for wait in waits[-1:]) and not watches._to_end)
    yield
    assert not watches.timers._by_tick


class Waiting:
    def __init__(self, number):
        self.origin = f"{number}"


async def describe_use(count):
    service = SimpleNamespace(waits=dict.fromkeys(map(Waiting, range(count)), "topic"), settings=Settings(), version="")
    status = Status(service, transport_state(count), None, "server", 0, 0)
    yield
    origins, _ = await status._find_usage()
    yield
    assert len(origins) == count


async def publish_messages_to_a_crowd(count):
    relay, channel, received = MemoryRelay(), Channel("scope", "channel"), []
    for _ in range(100):
        relay.subscribe(channel, Receiver(received))
    yield
    sent = sum(bool(relay.publish(channel, b"a message")) for _ in range(count // 100))
    await until(lambda: len(received) == 100 * sent)


# Work that each client causes for itself.
STEPS = [find_new_clients, count_peers, count_recent_names, check_blocked_addresses, search_idle_connections]
STEPS += [close_idle_connections, leave_group, hold_the_same_offer, list_sessions_of_one_topic]
STEPS += [count_sessions_of_many_topics, shrink_budget, remember_topics_of_sessions, keep_verified_tokens]
STEPS += [remember_removals, queue_webhook_events, publish_messages_to_a_crowd]
# Work for many clients, which continues in later event-loop iterations.
SLICED = [serve_clients, wake_watches, end_waits, pass_deadlines, disconnect_network, describe_use, remove_key]
SLICED += [publish_message, append_to_one_session]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("numbers", [pytest.param(NUMBERS, id="16,000"), WEEKLY])
@pytest.mark.parametrize("work", [*STEPS, *SLICED])
async def test_cost_grows_with_the_number_of_items_and_iterations_stay_short(work, numbers):
    found = {number: [] for number in numbers}
    for turn in range(max(numbers.values())):  # by turns, because caches and the processor's speed change meanwhile
        for number, times in numbers.items():
            if turn < times:
                found[number].append(await measure(work, number))
    costs_s = [min(map(sum, measured)) for measured in found.values()]
    exponent = statistics.linear_regression([*map(math.log, found)], [*map(math.log, costs_s)]).slope
    assert exponent < MAX_EXPONENT
    if work in SLICED:
        assert min(max(iterations_s) / sum(iterations_s) for iterations_s in found[max(found)]) < MAX_SHARE
