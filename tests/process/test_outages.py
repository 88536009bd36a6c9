"""Clients of other protocols at two servers of one Redis, also while it does not respond or moves a slot."""

import asyncio
import contextlib
import itertools
import json

import pytest
from support.command import ORIGIN
from support.nostr import NostrClient, make_event
from support.peerjs import connect_peer, open_peer
from support.redis_servers import Move, RedisCluster, RedisServer, fixture
from support.rpc import until
from support.y_webrtc import RawClient, published

from tornado_signal.protocols.endpoint import make_scope
from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import Channel
from tornado_signal.relay.redis import make_key

TIMEOUT_MS = {
    "node": 1500,
    "cluster": 500,  # its node is frozen for twice as long, but not until its failover
}
HASHES = [letter * 20 for letter in "abc"]


node = fixture(RedisServer, "valkey")


cluster = fixture(RedisCluster, "valkey", 3, 1)


@pytest.fixture
def servers(start, request):
    flags = ("--durability", "os", "--redis-timeout-ms", TIMEOUT_MS[request.param])
    return [start(*flags, redis=request.getfixturevalue(request.param)) for _ in range(2)]


def announcement(info_hash, **more):
    return {"action": "announce", "info_hash": info_hash, "peer_id": "-AA0000-aaaaaaaaaaaa", "left": 1, **more}


@pytest.mark.parametrize("servers", ["node"], indirect=True)
async def test_connections_outlive_seconds_without_redis(node, servers):
    urls = [server.url.replace("http", "ws", 1) for server in servers]
    async with contextlib.AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(RawClient(urls[0] + "/tracker", ORIGIN))
        nostr = [await stack.enter_async_context(NostrClient(url + "/nostr", ORIGIN)) for url in urls]
        yjs = [await stack.enter_async_context(RawClient(url + "/y-webrtc", ORIGIN)) for url in urls]
        peer = await open_peer(servers[0].port, "a", origin=ORIGIN)
        await tracker.send(announcement(HASHES[0]))
        assert (await tracker.receive())["incomplete"] == 1
        with node.frozen():
            claiming = await connect_peer(servers[1].port, ORIGIN, key="peerjs", id="b", token="token")
            await peer.send("OFFER", "absent", payload=1)
            await nostr[0].send(["REQ", "sub", {"#x": ["room"]}])
            await yjs[0].send({"type": "subscribe", "topics": ["room"]})
            for message in (
                announcement(HASHES[0]),  # a member
                announcement(HASHES[1]),
                announcement(HASHES[0], answer={}, offer_id="1", to_peer_id="-BB0000-bbbbbbbbbbbb"),
                {"action": "scrape", "info_hash": HASHES},
            ):
                await tracker.send(message)
                failed = await tracker.receive()
                assert (failed["action"], failed["failure reason"]) == (
                    message["action"],
                    "the server is temporarily unavailable",
                )
            assert (await nostr[0].receive())[0] == "NOTICE"
            assert await nostr[0].receive() == ["EOSE", "sub"]
            await yjs[0].send({"type": "ping"})
            assert await yjs[0].receive() == {"type": "pong"}
            assert await peer.next() == {"type": "EXPIRE", "src": "absent", "dst": "a"}
        assert await claiming.next() == {"type": "OPEN"}
        for info_hash in HASHES[:2]:
            await tracker.send(announcement(info_hash))
            assert (await tracker.receive())["incomplete"] == 1
        await peer.send("OFFER", "b", payload=2)
        assert (await claiming.next())["payload"] == 2

        async def reached(publish, receiver, expected):
            await publish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    return json.loads(await receiver.socket.recv()) == expected

        event = make_event()
        await until(lambda: reached(lambda: nostr[1].publish(event), nostr[0], ["EVENT", "sub", event]))
        await until(lambda: reached(lambda: yjs[1].publish("room", 1), yjs[0], published("room", 1, 1)))
        for each in (peer, claiming):
            await each.close()


def slot_of_id(peer_id):
    return key_slot(make_key("tornado-signal:", Channel(make_scope("peerjs", ORIGIN, "peerjs"), f"id {peer_id}")))


async def send_numbers(sender, receiver_id, ended):
    for number in itertools.count():
        await sender.send("CANDIDATE", receiver_id, payload=number)
        if ended.is_set():
            return number
        await asyncio.sleep(0.05)  # a sender may have 100 messages that were not received


async def moved(cluster, slot):
    move = await asyncio.to_thread(Move, cluster, slot)
    await asyncio.to_thread(move.end)


async def replaced(cluster, slot):
    """Let the replica take over, as an operator does before the node is stopped."""
    node = cluster.owner(slot)
    (replica,) = cluster.replicas_of(node)
    await asyncio.to_thread(replica.ask, "CLUSTER", "FAILOVER")
    await until(lambda: cluster.replaced(node))
    await asyncio.to_thread(cluster.wait_until_whole)


async def stopped(cluster, slot):
    """Freeze the node for longer than servers wait for it, and for less than the cluster does."""
    with cluster.owner(slot).frozen():
        await asyncio.sleep(2 * TIMEOUT_MS["cluster"] / 1000)


@pytest.mark.slow
@pytest.mark.parametrize("servers", ["cluster"], indirect=True)
@pytest.mark.parametrize("fault", [moved, replaced, stopped])
async def test_connected_peer_gets_each_message_once_and_in_order(fault, cluster, servers):
    sender = await open_peer(servers[0].port, "a", origin=ORIGIN)
    receiver = await open_peer(servers[1].port, "b", origin=ORIGIN)
    ended = asyncio.Event()
    sending = asyncio.create_task(send_numbers(sender, "b", ended))
    for _ in range(3):
        await fault(cluster, slot_of_id("b"))
        await asyncio.sleep(1)
    ended.set()
    last = await sending
    assert [(await receiver.next())["payload"] for _ in range(last + 1)] == [*range(last + 1)]
    await sender.nothing_before(("a", "own"))
    await receiver.nothing_before(("b", "own"))
    await sender.close()
    await receiver.close()


@pytest.fixture
def patient(node, start):
    """Two servers that wait for their Redis as long as it takes."""
    flags = ("--durability", "os", "--redis-timeout-ms", 60_000, "--hold-grace-ms", 2000, "--peerjs-discovery")
    return [start(*flags, redis=node) for _ in range(2)]


def listed(server):
    return sorted(server.call("/peerjs/peers")[1])


async def opened(server, peer_id, token=None):
    return await open_peer(server.port, peer_id, token, origin=ORIGIN)


async def test_messages_wait_only_for_earlier_ones_to_their_id(node, patient):
    one, other = patient
    sender, near, far = await opened(one, "sender"), await opened(one, "near"), await opened(other, "far")
    assert listed(one) == listed(other) == ["far", "near", "sender"]
    with node.frozen():
        for number in range(3):
            await sender.send("CANDIDATE", "far", payload=number)
        await sender.send("CANDIDATE", "near", payload="not by way of Redis")
        assert (await near.next())["payload"] == "not by way of Redis"
    assert [(await far.next())["payload"] for _ in range(3)] == [0, 1, 2]
    for peer in (sender, near, far):
        await peer.close()


@pytest.mark.slow
async def test_of_two_connections_that_claim_an_id_at_once_one_stays_its_owner(patient):
    """Both have its token, as after two attempts to reconnect."""
    one, other = patient
    sender = await opened(one, "sender")
    names = [f"claimed {number}" for number in range(40)]

    async def claim(name):
        claims = await asyncio.gather(*(opened(server, name, "its token") for server in patient))
        ends = [asyncio.create_task(peer.closed()) for peer in claims]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        assert [end.result() for end in ends if end.done()] == [(1000, "taken over")]
        return next(peer for peer, end in zip(claims, ends, strict=True) if not end.done())

    owners = {name: await claim(name) for name in names}
    lost = await opened(one, "lost")
    lost.abort()
    await until(lambda: "lost" not in listed(other))  # its grace period ends after those of the closed connections
    assert listed(one) == sorted([*names, "sender"])
    for name, peer in owners.items():
        await sender.send("CANDIDATE", name, payload=1)
        assert (await peer.next())["src"] == "sender"
        await peer.close()
    await sender.close()


@pytest.mark.slow
async def test_absent_ids_that_arrive_immediately_miss_nothing(patient):
    """The id arrives while the first message to it is on its way."""
    sender = await opened(patient[0], "sender")
    for number in range(100):
        peer_id = f"peer {number}"
        _, peer = await asyncio.gather(sender.send("OFFER", peer_id, payload=number), opened(patient[1], peer_id))
        assert await peer.next() == {"type": "OFFER", "src": "sender", "dst": peer_id, "payload": number}
        await peer.close()
    await sender.nothing_before(("sender", "own"))
    await sender.close()
