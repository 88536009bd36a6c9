"""Calls to nodes: their time, their batches, and what they cost a node that is behind or redirects."""

import asyncio
import contextlib
import functools

import pytest
from support.forwarding import RedisProxy
from support.processes import stopped
from support.redis_servers import RedisServer, fixture, with_hand_clock
from support.stores import opened_on, received
from support.waiting import until

from tornado_signal.errors import Unavailable
from tornado_signal.redis import channels, client, nodes
from tornado_signal.redis.connections import Credentials
from tornado_signal.redis.nodes import Pipeline
from tornado_signal.redis.slots import key_slot
from tornado_signal.session import Reason, Side, TopicRange
from tornado_signal.stores.redis import discovery, scripts
from tornado_signal.stores.redis.check import flaws

KEY = b"key"
PATIENT_MS = 30_000  # on a busy machine a node can need seconds
SLOT = key_slot(KEY)


redis = fixture(RedisServer, "redis", "--repl-diskless-sync-delay", "0")


opened = functools.partial(opened_on, redis_timeout_ms=PATIENT_MS)


@pytest.fixture
def ran(monkeypatch):
    """The names of the scripts that the test runs, in order. `topics` is left out: a new store counts on its own."""
    names, call = [], scripts.call

    def recorded(name, **arguments):
        if name != "topics":
            names.append(name)
        return call(name, **arguments)

    monkeypatch.setattr(scripts, "call", recorded)
    return names


def all_calls(redis):
    """Return how many commands a node has executed, those of scripts included."""
    return sum(stat["calls"] for stat in redis.ask("INFO", "commandstats").values())


async def test_call_behind_a_replica_wait_keeps_its_deadline(redis):
    replica = RedisServer("redis", "--replicaof", f"{redis.host} {redis.port}")
    redis.wait(lambda: redis.replicas() == 1)
    timeout_s = 1.0
    options = {"durability": "replicated", "redis_timeout_ms": 1000 * timeout_s}
    async with opened(redis, **options) as store:
        with replica.frozen():
            first = asyncio.create_task(store.client.call(SLOT, (b"SET", KEY, b"1"), write=True))
            await asyncio.sleep(0.05 * timeout_s)
            second = asyncio.create_task(store.client.call(SLOT, (b"SET", KEY, b"2"), write=True))
            # Timers of one event loop: a busy machine delays both.
            late = asyncio.create_task(asyncio.sleep(1.2 * timeout_s))
            await asyncio.wait((second, late), return_when=asyncio.FIRST_COMPLETED)
            assert not late.done()
            for call in (first, second):
                with pytest.raises(Unavailable):
                    await call
            late.cancel()
    replica.kill()


async def test_commands_after_a_stall_are_sent_in_batches(redis):
    lane = Pipeline((redis.host, redis.port), Credentials())
    replies = await asyncio.gather(*(lane.submit((b"PING",)) for _ in range(5 * nodes.BATCH)))
    assert set(replies) == {b"PONG"}
    assert redis.calls("time") == 5  # each batch begins with one
    await lane.close()


async def test_scripts_that_a_node_has_lost_are_loaded_again(redis, under):
    async with opened(redis) as store:
        redis.ask("SCRIPT FLUSH")
        code = await under(store).create()
        assert await under(store).codes() == [code]


async def test_replication_is_awaited_once_for_each_batch(redis, under, monkeypatch):
    monkeypatch.setattr(nodes, "HISTORY_S", 3600)
    async with opened(redis) as store:
        one = under(store)
        code = await one.create()
        await one.add(code, Side.OFFERER, "first")
        before = redis.calls("info")
        await asyncio.gather(*(one.add(code, Side.OFFERER, str(number)) for number in range(40)))
        assert redis.calls("info") - before == 2  # and that of this test


async def test_repeated_change_differs_from_another_call(redis, under):
    async with opened(redis) as store:
        one = under(store)
        partition = store.partitions.of_topic(one.origin, "topic")

        async def run(name, code, token, **more):
            call = scripts.call(name, code=code, secret_hash=b"", token=token, removals_ms=60_000, **more)
            return (await store.client.run(partition.slot, partition.keys(code), call))[0]

        for name, more, states in (
            ("answer", {"answer": b"a"}, [b"answered", b"answered", b"kept"]),
            ("withdraw", {"side": b"o"}, [b"withdrawn", b"kept", b"not found"]),
        ):
            code = await one.create()
            tokens = (b"this one", b"this one", b"another.")
            assert [await run(name, code, token, **more) for token in tokens] == states


@contextlib.contextmanager
def slot_away(slot):
    """Let the nodes of a cluster send requests for missing keys of a slot in a circle. Yields the owner of the slot."""
    cluster, _ = with_hand_clock(True)
    owner = cluster.owner(slot)
    other = next(server for server in cluster.primaries if server is not owner)
    owner.ask("CLUSTER SETSLOT", slot, "MIGRATING", other.ask("CLUSTER MYID"))
    try:
        yield owner
    finally:
        owner.ask("CLUSTER SETSLOT", slot, "STABLE")


async def test_slot_redirected_in_a_circle_is_retried_with_pauses():
    with slot_away(SLOT) as owner:
        async with opened(owner, prefix="redirected:", redis_timeout_ms=1000) as store:
            with pytest.raises(Unavailable):
                await store.client.call(SLOT, (b"GET", KEY), write=False)
            assert 2 < store.client.metrics.retries.total() < 50


async def test_write_at_a_replica_is_retried_with_pauses_and_searches_the_primary(redis, monkeypatch):
    monkeypatch.setattr(client, "CLOCK_READ_S", 3600)  # it searches as well
    async with opened(redis, durability="os", redis_timeout_ms=1000) as store:
        searches, retries = [], store.client.metrics.retries
        monkeypatch.setattr(store.topology, "refresh_soon", lambda: searches.append(retries.total()))
        redis.ask("REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(Unavailable):
            await store.client.call(SLOT, (b"SET", KEY, b"1"), write=True)
        assert 2 < len(searches) == retries["READONLY"] < 50


def topics_of_all_partitions(store):
    """Return a topic for each partition, in alphabetical order."""
    by_partition = {store.partitions.number(str(number)): str(number) for number in range(1000)}
    return sorted(by_partition.values())


async def test_topics_wait_for_a_slot_that_is_away(under, until):
    cluster, _ = with_hand_clock(True)
    node = cluster.primaries[0]
    async with opened(node, prefix="returning:", redis_timeout_ms=60_000) as store:
        one = under(store)
        names = topics_of_all_partitions(store)
        await asyncio.gather(*(one.create(topic=name) for name in names[1:]))
        # Its partition is empty: a node redirects only what it does not have.
        with slot_away(store.partitions.of_topic(one.origin, names[0]).slot):
            listing = asyncio.create_task(one.topics())
            await until(lambda: listing.done() or store.client.metrics.retries.total() >= 8)
            assert not listing.done()
        assert await listing == ([(name, 1) for name in names[1:]], len(names) - 1)


async def test_topics_without_a_slot_are_refused_in_the_time_of_one_call_and_the_slot_is_logged(under, until, caplog):
    cluster, _ = with_hand_clock(True)
    node = cluster.primaries[0]
    timeout_s = 1.0
    async with opened(node, prefix="away:", redis_timeout_ms=1000 * timeout_s) as store:
        one = under(store)
        slot = store.partitions.of_topic(one.origin, "topic").slot
        with slot_away(slot):
            late = asyncio.create_task(asyncio.sleep(1.5 * timeout_s))  # a timer of the same loop, as those of the call
            listing = asyncio.create_task(one.topics())
            await until(lambda: store.client.metrics.retries.total() > 2)
            with stopped([server.process.pid for server in cluster.primaries]):  # the last attempt gets no reply
                await asyncio.wait((listing, late), return_when=asyncio.FIRST_COMPLETED)
            assert not late.done()
            with pytest.raises(Unavailable) as refused:
                await listing
            late.cancel()
        assert refused.value.reason.startswith("Redis at 127.0.0.1:")
    (line,) = {record.getMessage() for record in caplog.records if "refuses" in record.getMessage()}
    assert f" refuses slot {slot}, and all topics of an origin with a partition in it: " in line


async def test_primary_that_is_slow_to_respond_is_searched_again_although_it_gets_no_calls(redis, monkeypatch):
    monkeypatch.setattr(client, "CLOCK_READ_S", 0.01)
    async with opened(redis) as store:
        responds, searched = asyncio.Event(), asyncio.Event()
        monkeypatch.setattr(nodes.Node, "read_clock", lambda self: responds.wait())
        monkeypatch.setattr(store.topology, "refresh_soon", searched.set)
        async with asyncio.timeout(60):
            await searched.wait()
        responds.set()


async def test_channels_are_subscribed_in_batches_for_which_no_read_waits(redis, under):
    async with RedisProxy(redis) as proxy, opened(proxy) as store:
        proxy.holding = True
        proxy.open.clear()
        one = under(store)
        code = await one.create()
        watches = [store.watch_topic(one.origin, str(number)) for number in range(5 * channels.IN_FLIGHT)]
        watches += [store.watch_session(one.origin, code), store.watch_topic(one.origin, "topic")]
        openings = [asyncio.create_task(watch.opened()) for watch in watches[-2:]]
        late = asyncio.create_task(asyncio.sleep(10))
        reads = asyncio.gather(one.read(code, Side.ANSWERER), one.state(), store.begin_topic(one.origin, "topic", None))
        await asyncio.wait((reads, late), return_when=asyncio.FIRST_COMPLETED)
        assert reads.done()
        late.cancel()
        await asyncio.to_thread(until, lambda: proxy.subscribed >= channels.IN_FLIGHT)
        await asyncio.sleep(0.2)  # all would have come
        assert proxy.subscribed == channels.IN_FLIGHT
        assert [opening.done() for opening in openings] == [False, False]
        proxy.open.set()
        assert await asyncio.gather(*openings) == [None, None]
        await received(store.change_feed)
        assert proxy.subscribed == len(watches) == redis.ask("INFO", "stats")["pubsubshard_channels"]
        for watch in watches:
            watch.close()


async def test_lost_connection_with_many_channels_is_handled_in_pieces(redis, monkeypatch):
    monkeypatch.setattr(channels, "PIECE", 50)
    async with opened(redis) as store:
        feed, pieces = store.change_feed, []
        watches = [store.watch_topic("https://one.example", str(number)) for number in range(1000)]
        await received(feed)
        miss = feed._miss

        def count(channel):
            pieces[-1] += 1
            miss(channel)

        async def turn():
            while True:
                pieces.append(0)
                await asyncio.sleep(0)

        monkeypatch.setattr(feed, "_miss", count)
        turning = asyncio.create_task(turn())
        redis.ask("CLIENT", "KILL", "TYPE", "pubsub")
        async with asyncio.timeout(60):
            await asyncio.gather(*(watch.wait(feed.loop.time() + 3600) for watch in watches))
        turning.cancel()
        assert (max(pieces), sum(pieces)) == (50, 1000)
        for watch in watches:
            watch.close()


async def test_page_reads_few_more_topics_than_those_up_to_it(redis, under):
    async with opened(redis) as store:
        one = under(store)
        names = [f"topic-{number:04}" for number in range(6000)]
        for at in range(0, len(names), 500):
            await asyncio.gather(*(one.create(topic=name) for name in names[at : at + 500]))
        for offset in (0, 1000, 2000, 5000, 10_000):
            before = redis.calls("hget")
            page, count = await one.topics(offset, 100)
            assert ([name for name, _ in page], count) == (names[offset : offset + 100], len(names))
            read = redis.calls("hget") - before  # one for each topic, and those of the counts
            assert read < 400 + (1.2 * offset if offset < count else 1.2 * discovery.TOPICS_STEP * 16)
        for ranges, expected, most in (
            ([TopicRange(name, False) for name in names[::60]], names[::60], 400),
            ([TopicRange(f"topic-{number:02}", True) for number in range(0, 60, 12)], None, 600),
        ):
            expected = expected or [name for name in names if int(name[6:8]) % 12 == 0]
            before = all_calls(redis)
            page, count = await one.topics(0, 100, ranges)
            assert ([name for name, _ in page], count) == (expected[:100], len(expected))
            assert all_calls(redis) - before < most
        # One partition has all topics of the page.
        skewed = [name for name in map("a{:04}".format, range(2000)) if store.partitions.number(name) == 0][:100]
        await asyncio.gather(*(one.create(topic=name) for name in skewed))
        assert [name for name, _ in (await one.topics(0, 100))[0]] == skewed


def before_listing(store, change):
    """Run a change between the next script that finds sessions and the reading of these."""
    listed = store._listed

    async def change_and_list(partition, codes):
        store._listed = listed
        await change()
        return await listed(partition, codes)

    store._listed = change_and_list


async def test_session_that_is_withdrawn_while_it_is_read_is_omitted(redis, under, ran):
    async with opened(redis) as store:
        one = under(store)
        codes = [await one.create() for _ in range(3)]
        position = await one.begin()
        before_listing(store, lambda: one.withdraw(codes[1]))
        ran.clear()
        assert [code for code, _ in await one.news(position)] == [codes[0], codes[2]]
        assert ran == ["topic_step", "withdraw", "topic_step"]


async def test_session_that_is_replaced_while_its_refresh_is_read_is_reported_once(redis, under):
    async with opened(redis, codes="content") as store:
        one = under(store)
        code = await one.create()
        position = await one.knowing()
        await asyncio.sleep(0.002)  # otherwise its expiry may stay the same
        await one.refresh(code)

        async def replace():
            await one.withdraw(code)
            await one.create()

        before_listing(store, replace)
        assert await one.news(position) == [(code, Reason.WITHDRAWN), (code, None)]


async def test_evicted_session_is_skipped_until_it_expires(under, monkeypatch, ran):
    monkeypatch.setattr(discovery, "EVENTS_STEP", 10)
    redis, clock = with_hand_clock()
    async with opened(redis, prefix="evicted:", session_timeout_ms=60_000) as store:
        one = under(store)
        codes = [await one.create() for _ in range(25)]
        position = await one.begin()
        redis.ask("DEL", *map(store.partitions.of_topic(one.origin, "topic").session, codes[9:21]))
        ran.clear()
        assert [code for code, _ in await one.news(position)] == codes[:9] + codes[21:]
        assert ran == ["topic_step"] * 3
        clock.set(1000 * (redis.ask("TIME")[0] + 61))
        assert (await one.topics(), await flaws(store)) == (([], 0), [])


async def test_only_unwatched_channels_are_unsubscribed_and_only_after_a_while(redis, under, monkeypatch):
    monkeypatch.setattr(channels, "KEPT_S", 0.5)
    async with opened(redis) as store:
        one, feed = under(store), store.change_feed
        with store.watch_topic(one.origin, "topic") as stays:
            with store.watch_topic(one.origin, "other") as left:
                await asyncio.gather(stays.opened(), left.opened())
            left_s = feed.loop.time()
            await asyncio.to_thread(until, lambda: left.key not in feed._slots)
            assert feed.loop.time() - left_s >= channels.KEPT_S
            assert list(feed._slots) == [stays.key]
            await received(feed)
            assert redis.ask("INFO", "stats")["pubsubshard_channels"] == 1
            await one.create()
            assert await stays.wait(feed.loop.time() + 60)


async def test_channels_that_come_and_go_leave_no_command_in_flight(redis):
    async with opened(redis) as store:
        feed = store.change_feed
        with store.watch_topic("https://app.example", "stays") as watch:
            await watch.opened()
            (subscriber,) = feed._subscribers.values()
            for number in range(20):
                with store.watch_topic("https://app.example", f"topic {number}") as watch:
                    await watch.opened()
                feed.drop(watch.key)
            await received(feed)
            assert not subscriber._in_flight


async def test_partition_of_an_earlier_version_does_not_know_its_removals(redis, under):
    async with opened(redis) as store:
        one = under(store)
        await one.create()
        position, partition = await one.knowing(), store.partitions.of_topic(one.origin, "topic")
        await one.create()
        assert await store.begin_topic(one.origin, "topic", position) == (position, True)
        redis.ask("HDEL", partition.meta, "f")
        assert (await store.begin_topic(one.origin, "topic", position))[1] is False
        position = await one.knowing()
        assert await store.begin_topic(one.origin, "topic", position) == (position, True)
