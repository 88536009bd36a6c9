"""PeerJS clients at two servers of one Redis cluster."""

import asyncio
import json
import urllib.request

import pytest
from support.command import ORIGIN
from support.peerjs import connect_peer, open_peer
from support.redis_servers import RedisCluster
from support.rpc import until
from websockets.exceptions import ConnectionClosed, InvalidHandshake

pytestmark = pytest.mark.slow

BOUND_S = 60


@pytest.fixture
def cluster():
    cluster = RedisCluster("valkey", 3)
    yield cluster
    cluster.kill()


def listed(server):
    request = urllib.request.Request(server.url + "/peerjs/peers", headers={"Origin": ORIGIN})
    with urllib.request.urlopen(request) as response:
        return sorted(json.load(response))


async def opened(server, peer_id, token=None):
    return await open_peer(server.port, peer_id, token, origin=ORIGIN)


async def first_message(server, peer_id, token):
    peer = await connect_peer(server.port, ORIGIN, key="peerjs", id=peer_id, token=token)
    return peer, (await peer.next())["type"]


async def until_opened(server, peer_id, token):
    """Connect until the id is free and Redis responds."""
    async with asyncio.timeout(BOUND_S):
        while True:
            try:
                peer, kind = await first_message(server, peer_id, token)
                if kind == "OPEN":
                    return peer
                await peer.close()
            except (ConnectionClosed, InvalidHandshake):
                pass
            await asyncio.sleep(0.1)


async def exchange(sender, sender_id, receiver, receiver_id, count=20):
    """Send messages from one peer to another, which must get them in order."""
    for number in range(count):
        await sender.send("CANDIDATE", receiver_id, payload=number)
    expected = {"type": "CANDIDATE", "src": sender_id, "dst": receiver_id}
    assert [await receiver.next() for _ in range(count)] == [expected | {"payload": number} for number in range(count)]


async def flow_between_two_servers(cluster, servers):
    one, other = servers
    a = await opened(one, "a", "its token")
    peer, kind = await first_message(other, "a", "another token")
    assert (kind, (await peer.closed())[0]) == ("ID-TAKEN", 1005)

    for number in range(10):  # kept until the peer arrives at the other server
        await a.send("OFFER", "b", payload=number)
    await a.send("OFFER", "nobody", payload=1)
    await a.nothing_before(("a", "own"))
    b = await opened(other, "b")
    assert [(await b.next())["payload"] for _ in range(10)] == [*range(10)]
    await exchange(a, "a", b, "b")
    await exchange(b, "b", a, "a")
    assert listed(one) == listed(other) == ["a", "b"]
    assert await a.next() == {"type": "EXPIRE", "src": "nobody", "dst": "a"}

    later = await opened(other, "a", "its token")  # a reconnection by way of the other server
    assert await a.closed() == (1000, "taken over")
    await exchange(b, "b", later, "a")
    await later.close()
    await (await until_opened(one, "a", "another token")).close()
    await b.close()


async def of_two_connections_that_claim_an_id_at_once_one_stays_its_owner(cluster, servers):
    """Both have its token, as after two attempts to reconnect."""
    one, other = servers
    sender = await opened(one, "sender")
    names = [f"claimed {number}" for number in range(40)]

    async def claim(name):
        claims = await asyncio.gather(*(opened(server, name, "its token") for server in servers))
        ends = [asyncio.create_task(peer.closed()) for peer in claims]
        await asyncio.wait(ends, timeout=BOUND_S, return_when=asyncio.FIRST_COMPLETED)
        assert [end.result() for end in ends if end.done()] == [(1000, "taken over")]
        return next(peer for peer, end in zip(claims, ends, strict=True) if not end.done())

    owners = {name: await claim(name) for name in names}
    lost = await opened(one, "lost")
    lost.abort()
    await until(lambda: "lost" not in listed(other))  # its grace period ends after those of the closed connections
    await until(lambda: listed(one) == sorted([*names, "sender"]))  # without the peers of other tests
    for name, peer in owners.items():
        await exchange(sender, "sender", peer, name, 1)
        await peer.close()
    await sender.close()


async def absent_ids_that_arrive_immediately_miss_nothing(cluster, servers):
    """The id arrives while the first message to it is on its way."""
    one, other = servers
    sender = await opened(one, "sender")

    async def meet(number):
        peer_id = f"peer {number}"
        _, peer = await asyncio.gather(sender.send("OFFER", peer_id, payload=number), opened(other, peer_id))
        assert await peer.next() == {"type": "OFFER", "src": "sender", "dst": peer_id, "payload": number}
        await peer.close()

    for number in range(100):
        await meet(number)
    await sender.nothing_before(("sender", "own"))
    await sender.close()


async def messages_wait_only_for_earlier_ones_to_their_id(cluster, servers):
    one, other = servers
    sender, near, far = await opened(one, "sender"), await opened(one, "near"), await opened(other, "far")
    for node in cluster.servers:
        node.freeze()
    try:
        for number in range(3):
            await sender.send("CANDIDATE", "far", payload=number)
        await sender.send("CANDIDATE", "near", payload="not by way of Redis")
        assert (await near.next())["payload"] == "not by way of Redis"
    finally:
        for node in cluster.servers:
            node.resume()
    assert [(await far.next())["payload"] for _ in range(3)] == [0, 1, 2]
    for peer in (sender, near, far):
        await peer.close()


@pytest.mark.timeout(300)
async def test_peers_of_two_servers_of_one_cluster(subtests, cluster, start):
    flags = ["--store", "redis", "--redis-nodes", cluster.address, "--durability", "os", "--peerjs-discovery"]
    flags += ["--redis-timeout-ms", "60000"]
    for part in (
        flow_between_two_servers,
        of_two_connections_that_claim_an_id_at_once_one_stays_its_owner,
        absent_ids_that_arrive_immediately_miss_nothing,
        messages_wait_only_for_earlier_ones_to_their_id,
    ):
        with subtests.test(part.__name__):
            servers = [start(*flags, "--hold-grace-ms", "2000") for _ in range(2)]
            await part(cluster, servers)
            for server in servers:
                server.end()
