"""Subscriptions at a primary that becomes a replica: it accepts them again, and forwards its new primary's messages."""

import asyncio
import contextlib

import pytest
from support.redis_servers import KINDS, RedisCluster, fixture
from support.stores import Inbox, opened_on, unlimited

from tornado_signal.redis import channels, topology
from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import Channel
from tornado_signal.relay.opening import open_relay

pytestmark = pytest.mark.slow

CHANNEL = Channel("scope", "channel")


cluster = fixture(RedisCluster, KINDS, 3, 1)


@contextlib.asynccontextmanager
async def opened(cluster):
    async with opened_on(*cluster.servers) as store:
        relay = open_relay(store.shared_redis, unlimited)
        try:
            yield relay
        finally:
            await relay.close()


def subscribers(node, key):
    return node.ask("PUBSUB", "SHARDNUMSUB", key)[1]


@contextlib.asynccontextmanager
async def replaced(cluster, relay, until, monkeypatch):
    """Replace the primary of the channel, while a node of another shard delays the search for the new one.

    Yields the channel's key, the former primary and the new one.
    """
    monkeypatch.setattr(topology, "GRACE_S", 1.0)
    key = relay._key(CHANNEL)
    former = cluster.owner(key_slot(key))
    (replica,) = cluster.replicas_of(former)
    with next(node for node in cluster.replicas if node is not replica).frozen():
        await asyncio.to_thread(replica.ask, "CLUSTER", "FAILOVER")
        await until(lambda: former.ask("INFO", "replication")["role"] == "slave")
        await until(lambda: key not in relay._feed.pending)
        await until(lambda: subscribers(former, key) + subscribers(replica, key) == 1)
        yield key, former, replica


async def until_known(relay, key, node):
    """Wait until a relay knows the new primary of the channel."""
    async with asyncio.timeout(60):
        while relay._topology.node(key_slot(key)).address != (node.host, node.port):
            await relay.members(CHANNEL)  # is redirected


async def test_messages_arrive_once_after_a_new_subscription(cluster, until, monkeypatch):
    monkeypatch.setattr(channels, "PING_S", 3600)  # the connection to the former primary stays
    async with opened(cluster) as one, opened(cluster) as other:
        earlier, later = Inbox(), Inbox()
        await one.subscribe(CHANNEL, earlier)
        async with replaced(cluster, one, until, monkeypatch) as (key, former, replica):
            await until_known(one, key, replica)
            one.unsubscribe(CHANNEL, earlier)
            await one.subscribe(CHANNEL, later)
            await until(lambda: (subscribers(former, key), subscribers(replica, key)) == (0, 1))
            for number in range(3):
                other.publish(CHANNEL, b"%d" % number)
            await until(lambda: b"2" in later.messages)
        assert later.messages == [b"0", b"1", b"2"]
        assert earlier.messages == []


async def test_subscriptions_move_to_the_new_primary(cluster, until, monkeypatch):
    async with opened(cluster) as one, opened(cluster) as other:
        inbox = Inbox()
        await one.subscribe(CHANNEL, inbox)
        async with replaced(cluster, one, until, monkeypatch) as (key, former, replica):
            await until(lambda: (subscribers(former, key), subscribers(replica, key)) == (0, 1))
            other.publish(CHANNEL, b"message")
            await until(lambda: inbox.messages == [b"message"])
