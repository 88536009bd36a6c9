"""The relay in memory, on one server of Valkey, and on a cluster. On Valkey it connects two processes."""

import contextlib
import functools
import inspect
import json
import time

import pytest
from support import redis_servers
from support.rpc import until
from support.stores import Inbox, opened_on

from tornado_signal.errors import Unavailable
from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import COUNTED, SENT_BYTES_PER_UNIT, Channel, JoinResult, Lease
from tornado_signal.relay import redis as redis_relay
from tornado_signal.relay.memory import MAX_BACKLOG_BYTES, RECEIVER_BYTES, SLICE, MemoryRelay
from tornado_signal.relay.opening import open_relay
from tornado_signal.relay.redis import PROCESS_BYTES

CHANNEL = Channel("scope", "channel")
GROUP = Channel("scope", "group")
MANY = 1000


@functools.cache
def server(cluster):
    return redis_servers.until_end(redis_servers.RedisCluster if cluster else redis_servers.RedisServer, "valkey")


async def result_of(value):
    return await value if inspect.isawaitable(value) else value


@pytest.fixture(params=["memory", "redis", "cluster"])
def backend(request):
    return request.param


class Budget:
    """The units that publishers may still cause at other processes, and what was charged."""

    def __init__(self):
        self.units = 10
        self.charged = []

    def charge(self, publisher, units):
        self.charged.append((publisher, units))
        self.units -= units
        return self.units >= 0


@pytest.fixture
def budget():
    return Budget()


@pytest.fixture
def processes(io_loop, backend, budget, request):
    """The relays of two processes that share a backend. In memory both are the same."""
    if backend == "memory":
        relay = MemoryRelay()
        yield relay, relay
        io_loop.run_sync(relay.close)
        return
    nodes = server(True).servers if backend == "cluster" else [server(False)]
    options = {"prefix": f"{request.node.name.partition('[')[0]}:", "session_timeout_ms": 1000}
    relays, stack = [], contextlib.AsyncExitStack()

    async def start():
        for _ in range(2):
            store = await stack.enter_async_context(opened_on(*nodes, **options))
            relay = open_relay(store.shared_redis, budget.charge)
            stack.push_async_callback(relay.close)
            relays.append(relay)

    io_loop.run_sync(start)
    yield relays
    io_loop.run_sync(stack.aclose)


async def subscribe(relay, channel=CHANNEL):
    inbox = Inbox()
    await result_of(relay.subscribe(channel, inbox))
    return inbox


async def test_messages_reach_all_receivers_of_their_channel_once_and_in_order(processes):
    one, other = processes
    others = (Channel("scope", "other"), Channel("other", "channel"), Channel("scope ", "channel"))
    strangers = [await subscribe(other, channel) for channel in others]
    near, far = await subscribe(one), await subscribe(other)
    await result_of(one.subscribe(CHANNEL, near))  # again, which changes nothing
    assert one.receivers(CHANNEL) == (2 if one is other else 1)
    for number in range(100):
        one.publish(CHANNEL, b"%d" % number)
    expected = [b"%d" % number for number in range(100)]
    await until(lambda: len(far.messages) >= 100 and len(near.messages) >= 100)
    assert near.messages == far.messages == expected
    assert [stranger.messages for stranger in strangers] == [[], [], []]


async def test_a_channel_can_be_left_and_subscribed_again(processes):
    """Publishing returns whether anybody received the message."""
    one, other = processes

    async def is_unreachable():
        return not await result_of(one.publish(CHANNEL, b"lost"))

    assert await is_unreachable()
    for number in range(20):
        inbox = await subscribe(other)
        assert await result_of(one.publish(CHANNEL, b"%d" % number)) == 1
        await until(lambda inbox=inbox: inbox.messages)
        other.unsubscribe(CHANNEL, inbox)
        other.unsubscribe(CHANNEL, inbox)
        await until(is_unreachable)
        assert inbox.messages == [b"%d" % number]


async def test_many_receivers_are_served_in_slices_and_in_order(processes, caplog):
    one, _ = processes
    await result_of(one.subscribe(CHANNEL, object()))  # it raises for each message, which concerns no other receiver
    inboxes = [await subscribe(one) for _ in range(3 * SLICE)]
    assert one.publish(CHANNEL, b"first") == 1 + len(inboxes)
    one.unsubscribe(CHANNEL, inboxes[-1])
    late = await subscribe(one)
    one.publish(CHANNEL, b"second")
    await until(lambda: late.messages)
    await until(lambda: inboxes[-2].messages[1:])
    assert all(inbox.messages == [b"first", b"second"] for inbox in inboxes[:-1])
    assert inboxes[-1].messages == []
    assert late.messages == [b"second"]
    assert {record.name for record in caplog.records if record.exc_info} == {"tornado_signal.relay.memory"}
    caplog.clear()


async def test_messages_beyond_the_backlog_are_dropped_for_all_receivers(processes):
    one, _ = processes
    inboxes, accepted = [await subscribe(one) for _ in range(10 * SLICE)], 0
    while one.publish(CHANNEL, b"1") == len(inboxes):
        accepted += 1
    assert accepted == MAX_BACKLOG_BYTES // (1 + RECEIVER_BYTES * len(inboxes))
    await until(lambda: len(inboxes[-1].messages) >= accepted)
    assert {len(inbox.messages) for inbox in inboxes} == {accepted}
    assert [one.publish(CHANNEL, b"small") for _ in range(2)] == [len(inboxes)] * 2


REDIS = pytest.mark.parametrize("backend", ["redis", "cluster"], indirect=True)


@REDIS
@pytest.mark.parametrize("publisher", ["192.0.2.7", "2001:db8:1::7", "255.255.255.255", "::"])
async def test_receivers_at_another_process_are_charged_there_or_get_nothing(publisher, budget, processes):
    one, other = processes
    near, far = await subscribe(one), [await subscribe(other) for _ in range(3)]
    large = b"{%s}" % bytes(SENT_BYTES_PER_UNIT)
    for message in (large, large, b"{}", large, large, b"{1}"):  # three units for each large one
        one.publish(CHANNEL, message, publisher)
    await until(lambda: far[-1].messages[4:])
    assert near.messages == [large, large, b"{}", large, large, b"{1}"]
    assert all(inbox.messages == [large, large, b"{}", large, b"{1}"] for inbox in far)
    assert budget.charged == [(publisher, 3)] * 4
    one.publish(CHANNEL, large)  # a message of the server itself
    await until(lambda: far[-1].messages[5:])
    assert len(budget.charged) == 4


@REDIS
async def test_processes_of_an_earlier_version_exchange_messages_with_those_of_this_one(budget, processes):
    """They send a process id and the message, and pass on everything after the id."""
    one, other = processes
    inbox = await subscribe(other)
    large = json.dumps({"data": "x" * SENT_BYTES_PER_UNIT}).encode()
    key = one._key(CHANNEL)
    await one._client.call(key_slot(key), (b"SPUBLISH", key, b"earlier." + large), write=False)
    await until(lambda: inbox.messages)
    assert (inbox.messages, budget.charged) == ([large], [])
    seen = []
    other._feed.on_message = lambda channel, message: seen.append(message[PROCESS_BYTES:])
    one.publish(CHANNEL, large, "2001:db8::7")
    one.publish(CHANNEL, b"arrived")
    await until(lambda: seen[1:])
    assert [json.loads(seen[0]), seen[1]] == [json.loads(large), b"arrived"]


async def test_a_member_is_found_until_its_owner_leaves_and_a_full_group_takes_no_new_one(processes):
    one, other = processes
    lease = Lease("member\0 ÿ", "owner", "token", "data")
    assert await one.join(GROUP, lease, 2) is JoinResult.NEW
    assert await other.find(GROUP, lease.member) == lease
    assert await other.members(GROUP) == ({"data": 1}, [lease])
    await other.join(GROUP, Lease("second", "owner"), 2)
    assert await one.join(GROUP, Lease("third", "owner"), 2) is JoinResult.FULL
    assert await one.join(GROUP, Lease("second", "owner", "", "new"), 2) is JoinResult.RENEWED
    assert (await one.members(GROUP)).counts == {"data": 1, "new": 1}
    await other.leave(GROUP, lease.member, "another owner")
    assert await one.find(GROUP, lease.member) == lease
    for member in (lease.member, "second"):
        await one.leave(GROUP, member, "owner")
        assert await other.find(GROUP, member) is None
    assert await other.members(GROUP) == ({}, [])


NEITHER = ["addr", "dress", "address.token", "a,b", "ken,add", "addres+", ""]
AGAIN = ["another,token", "another", "subject,another"]


@pytest.mark.parametrize(
    ("token", "refused", "accepted"),
    [("token", ["guess"], ["token"]), ("address,token", NEITHER, AGAIN), ("", [], [""])],
)
async def test_a_takeover_needs_one_of_the_tokens(token, refused, accepted, processes):
    one, other = processes
    await one.join(GROUP, Lease("member", "first", token), MANY)
    for each in refused:
        assert await other.join(GROUP, Lease("member", "thief", each), MANY) is JoinResult.TAKEN
        assert (await one.find(GROUP, "member")).owner == "first"
    for each in accepted:
        assert await other.join(GROUP, Lease("member", "second", each), MANY) is JoinResult.RENEWED
    await one.leave(GROUP, "member", "first")
    assert (await one.find(GROUP, "member")).owner == "second"
    await other.leave(GROUP, "member", "second")


@pytest.mark.parametrize("backend", ["redis"])
async def test_members_are_counted_without_reading_all(processes):
    one, other = processes
    redis = server(False)
    before = redis.calls("hvals")
    for number in range(20):
        await one.join(GROUP, Lease(f"member {number}", "owner", data="ab"[number % 2]), MANY)
    await other.join(GROUP, Lease("member 0", "owner", data="b"), MANY)
    await one.leave(GROUP, "member 1", "owner")
    assert (await other.members(GROUP, 0)).counts == {"a": 9, "b": 10}
    assert redis.calls("hvals") == before
    redis.ask("HSET", one._key(GROUP).decode() + ":l", "member of an earlier version", f"{one._process} owner  b")
    assert [(await other.members(GROUP, 0)).counts for _ in range(3)] == [{"a": 9, "b": 11}] * 3
    assert redis.calls("hvals") == before + 1


async def test_a_sample_is_random_and_without_duplicates(processes):
    one, other = processes
    for number in range(50):
        await one.join(GROUP, Lease(f"{number}", "owner", "", "even" if number % 2 == 0 else "odd"), MANY)
    samples = [await other.members(GROUP, 5) for _ in range(20)]
    assert all(len({lease.member for lease in sample.sample}) == 5 for sample in samples)
    assert all(sample.counts == {"even": 25, "odd": 25} for sample in samples)
    assert len({lease.member for sample in samples for lease in sample.sample}) > 20
    assert (await other.members(GROUP, 0)).sample == []
    assert len((await other.members(GROUP, 100)).sample) == 50


@REDIS
async def test_the_leases_of_a_lost_process_end(processes, monkeypatch):
    one, other = processes
    monkeypatch.setattr(redis_relay, "LIFETIME_MS", 500)
    await one.join(GROUP, Lease("lost", "owner"), MANY)
    monkeypatch.setattr(redis_relay, "LIFETIME_MS", 60_000)
    await other.join(GROUP, Lease("kept", "owner"), MANY)
    for each in one._repeated:  # a process that was killed renews nothing
        await each.stop()
    began_s = time.monotonic()

    async def is_gone():
        return "lost" not in {lease.member for lease in (await other.members(GROUP)).sample}

    await until(is_gone)
    assert time.monotonic() - began_s > 0.3
    assert await other.join(GROUP, Lease("lost", "another", "token"), MANY) is JoinResult.NEW


@pytest.fixture
def renewing(io_loop, backend, request, monkeypatch):
    """The relays of two processes that renew their leases every 0.1 s."""
    monkeypatch.setattr(redis_relay, "RENEW_S", 0.1)
    return request.getfixturevalue("processes")


def lose_keys(backend):
    """Let Redis lose its keys, like a new primary without a copy of them."""
    for primary in server(True).primaries if backend == "cluster" else [server(False)]:
        primary.ask("FLUSHALL")


@REDIS
async def test_receivers_of_a_group_get_its_number_of_members(renewing):
    one, other = renewing
    inbox = await subscribe(one, GROUP)
    for number, each in enumerate((one, other, other), 1):
        await each.join(GROUP, Lease(f"{number}", "owner"), MANY)
        await until(lambda number=number: COUNTED + b"%d" % number in inbox.messages)


@REDIS
async def test_leases_that_redis_has_lost_are_registered_again(backend, renewing):
    one, other = renewing
    await one.join(GROUP, Lease("member", "owner"), MANY)
    lose_keys(backend)
    assert await other.find(GROUP, "member") is None
    await until(lambda: other.find(GROUP, "member"))


@REDIS
@pytest.mark.parametrize("token", ["its-token", "another"])
async def test_a_lost_lease_with_another_owner_is_reported_and_not_taken_back(token, backend, renewing):
    one, other = renewing
    lost = []
    await one.join(GROUP, Lease("member", "earlier", "its-token"), MANY, lambda: lost.append("member"))
    joined = None
    while joined is not JoinResult.NEW:  # the first process can be faster
        lose_keys(backend)
        joined = await other.join(GROUP, Lease("member", "later", token), MANY)
    await until(lambda: lost)
    assert (await one.find(GROUP, "member")).owner == "later"
    await one.leave(GROUP, "member", "earlier")
    assert (await one.find(GROUP, "member")).owner == "later"
    assert lost == ["member"]


@pytest.mark.parametrize("backend", ["redis"], indirect=True)
async def test_a_member_whose_join_got_no_reply_is_removed(renewing):
    """Redis executes the call later than its caller waits."""
    one, other = renewing
    await one.join(GROUP, Lease("kept", "owner"), MANY)  # renews the process
    with server(False).frozen(), pytest.raises(Unavailable):
        await one.join(GROUP, Lease("member", "owner", "token"), MANY)

    async def has_left():
        with contextlib.suppress(Unavailable):
            return [lease.member for lease in (await other.members(GROUP)).sample] == ["kept"]

    await until(has_left)
    assert await other.join(GROUP, Lease("member", "another", "its-token"), MANY) is JoinResult.NEW
