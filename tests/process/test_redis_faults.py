"""Faults of a shared Redis: no acknowledged message is lost or repeated, and waits continue."""

import asyncio
import itertools
import uuid

import pytest
from faults import trials
from faults.trials import SERVER
from support.certificates import make_pair
from support.command import ORIGIN, Server
from support.forwarding import RedisProxy
from support.networks import dropping, own_network
from support.redis_servers import RedisCluster, RedisServer
from support.redis_traffic import Follower, Waiters, ready, topic_in
from support.waiting import until
from support.y_webrtc import RawClient

from tornado_signal.protocols.endpoint import make_scope
from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import Channel
from tornado_signal.relay.redis import make_key
from tornado_signal.stores.redis.scripts import SCRIPTS

pytestmark = pytest.mark.needs("root", "ip", "nft", "redis-server")

FAILOVER_S = 2.0  # the least: a node is given up after that


@pytest.fixture(scope="module")
def cluster():
    """Three primaries with two replicas each, in a network of the tests', where each node has its own address."""
    with own_network(), trials.make_cluster("valkey") as made:
        yield made


@pytest.fixture(scope="module")
def servers(cluster):
    """Three servers: two that acknowledge what is on a replica, and one that acknowledges what is on the disk."""
    common = ("--store", "redis", "--redis-nodes", cluster.address, "--admin-port", "0")
    made = [Server(*common), Server(*common), Server(*common, "--durability", "fsync")]
    yield made
    for server in made:
        assert server.stop() == 0
        assert [line for line in server.log if "Traceback" in line] == []


@pytest.fixture
def primary(cluster):
    cluster.wait_until_whole()
    cluster.mark_logs()
    yield cluster.primaries_now()[0]
    print(cluster.evidence())  # shown if the test has failed


@pytest.fixture
def slots(cluster, primary):
    return cluster.slots_of(primary)


@pytest.fixture
def waiters(servers, slots):
    """Waits at a server in those slots, which are answered at the end of the test."""
    topic = topic_in(slots, (f"waiters-{uuid.uuid4()}" for _ in itertools.count()))  # of this test only
    made = Waiters(servers[1], topic, servers[0].offer(topic))
    yield made
    made.end(servers[0])


def test_shard_without_replicas_is_refused(cluster, servers, primary, slots, waiters, publish):
    first, second = cluster.replicas_of(primary)
    publishers = publish(servers[:2])
    publishers.wait_for(20, slots)
    first.kill()
    publishers.wait_for(60, slots)
    # A busy machine delays the writes to the other slots as much.
    assert publishers.longest_gap_s(slots) < FAILOVER_S + 3 * publishers.longest_gap_s(set(range(16_384)) - slots)
    second.kill()
    publishers.wait_for_refusal()
    until(lambda: ready(servers[0]) == (503, f"Redis at {primary.address}: 0 of 1 replicas have a write"))
    assert ready(servers[2])[0] == 200
    first.start()
    publishers.wait_for(20, slots)
    second.start()
    publishers.end()


@pytest.mark.parametrize("whose", ["servers", "all"])
@pytest.mark.parametrize("lost", ["to", "from", "both"])
def test_cut_off_primary_is_refused_or_replaced(whose, lost, cluster, servers, primary, slots, waiters, publish):
    """Servers that alone are cut off refuse its slots. Otherwise it is replaced, and returns as a replica."""
    ours, to_us = (f"ip saddr {SERVER} ", f" ip daddr {SERVER}") if whose == "servers" else ("", "")
    ways = {"to": f"{ours}ip daddr {primary.host}", "from": f"ip saddr {primary.host}{to_us}"}
    publishers, others = publish(servers[:2]), publish(servers[:2], 1, set(range(16_384)) - slots)
    publishers.wait_for(20, slots)
    with dropping(*(ways.values() if lost == "both" else [ways[lost]])):
        if whose == "servers":
            publishers.wait_for_refusal()
            others.wait_for(20)
        else:
            until(lambda: cluster.replaced(primary))
            publishers.wait_for(20, slots)
    if whose == "all":
        primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")
    publishers.wait_for(20, slots)
    publishers.end()
    others.end()
    assert set(others.statuses) == {200}


@pytest.mark.slow
async def test_messages_to_a_primary_that_was_cut_off_do_not_arrive_late(servers, primary, slots):
    rooms = (f"room-{number}" for number in itertools.count())
    scope = make_scope("y-webrtc", ORIGIN)
    room = next(name for name in rooms if key_slot(make_key("tornado-signal:", Channel(scope, name))) in slots)
    urls = [server.url.replace("http", "ws", 1) + "/y-webrtc" for server in servers[:2]]
    async with RawClient(urls[0], ORIGIN) as sender, RawClient(urls[1], ORIGIN) as receiver:
        await receiver.subscribe(room)
        numbers = itertools.count()

        async def send(seconds):
            for _ in range(int(seconds / 0.02)):
                await sender.publish(room, next(numbers))
                await asyncio.sleep(0.02)

        await send(1)
        with dropping(f"ip saddr {SERVER} ip daddr {primary.host}", f"ip saddr {primary.host} ip daddr {SERVER}"):
            await send(4)
        await send(6)  # the kernel would repeat what the node has not received
        await sender.publish(room, last := next(numbers))
        received = [-1]
        while received[-1] != last:
            received.append((await receiver.receive())["data"])
    assert received == sorted(set(received))


def test_streams_forget_offers_that_only_the_lost_primary_had(cluster, servers, primary, slots):
    topic = topic_in(slots, (f"lost-{uuid.uuid4()}" for _ in itertools.count()))
    kept = servers[0].offer(topic)
    streams = [Follower(server, topic) for server in servers]
    offer, others = {"info": "i", "offer": "o"}, [node.host for node in cluster.servers if node is not primary]
    with dropping(*trials.between([primary.host], others)):
        assert servers[0].call(f"/{topic}/offer", offer)[0] == 503
        for stream in streams:
            stream.read_until(lambda stream=stream: len(stream.known) == 2)
        until(lambda: cluster.replaced(primary))
        last = until(lambda: (found := servers[0].call(f"/{topic}/offer", offer))[0] == 200 and found[1]["code"])
        for stream in streams:
            stream.read_until(lambda stream=stream: stream.known == {*servers[0].codes(topic)})
            assert {kept, last} <= stream.known < stream.announced
            stream.close()
    primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")


def test_call_to_a_frozen_primary_is_retried_at_its_successor(cluster, primary, slots, start):
    server = start("--redis-timeout-ms", "60000", redis=cluster)
    with primary.frozen():
        server.offer(topic_in(slots))  # otherwise it would wait for the whole minute
    primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")


@pytest.mark.parametrize("shape", trials.SHAPES.values(), ids=trials.SHAPES)
def test_nothing_acknowledged_is_lost_in_a_single_fault(shape, cluster, servers, primary, waiters):
    outcome = shape(cluster, servers[:2], primary, written_s=0.3)
    assert outcome.lost == 0
    assert outcome.refused > 0


def test_promoted_replica_with_fsync_has_acknowledged_data_on_disk(cluster, servers, primary, slots, publish):
    primary.kill()
    until(lambda: cluster.replaced(primary))
    publishers = publish(servers[2:], slots=slots)
    publishers.wait_for(60)
    cluster.kill()
    for node in cluster.servers:
        node.launch()
    publishers.wait_for(20)
    publishers.end()


def test_change_with_a_lost_reply_is_applied_once(servers, redis_server, start):
    with RedisProxy(redis_server()) as losing:
        server = start("--durability", "os", redis=losing)

        def change(path, body, script):
            lost = losing.lost
            losing.losing = SCRIPTS[script].sha
            status, found = server.call(path, body)
            assert (status, losing.lost) == (200, lost + 1)
            return found

        offer = {"info": "i", "offer": "o"}
        code = change("/lobby/offer", offer, "create")["code"]
        assert server.codes() == [code]
        assert change("/refresh", {"code": code, "side": "offerer"}, "refresh")["expiresAt"] > 0
        sent = {"code": code, "side": "answerer"}
        change("/answer", sent | {"candidate": "c"}, "add_candidates")
        waiters = Waiters(server, "lobby", code)
        change("/answer", sent | {"answer": "at last"}, "answer")
        assert server.call("/answer", sent | {"answer": "another"})[0] == 409
        found = server.call("/poll", {"code": code, "side": "offerer"})[1]
        assert (found["answer"], found["answerCandidates"]) == ("at last", ["c"])
        waiters.end(server)
        code = change("/lobby/offer", offer, "create")["code"]
        assert server.codes() == [code]
        change("/withdraw", {"code": code, "side": "offerer"}, "withdraw")
        assert server.codes() == []
        assert server.call("/withdraw", {"code": code, "side": "offerer"})[0] == 404


def test_cluster_with_tls_fails_over(tmp_path, start, publish):
    pair = make_pair(tmp_path)
    cluster = RedisCluster("redis", 3, 1, "--cluster-require-full-coverage", "no", tls=pair)
    nodes = ",".join(f"127.0.0.1:{node.tls_port}" for node in cluster.servers)
    options = ("--redis-tls", "--redis-ca", pair.certificate, "--durability", "os")
    server = start("--store", "redis", "--redis-nodes", nodes, *options)
    primary = cluster.primaries_now()[0]
    publishers = publish([server], slots=cluster.slots_of(primary))
    publishers.wait_for(20)
    primary.kill()
    until(lambda: cluster.replaced(primary))
    publishers.wait_for(20)
    publishers.stop()
    assert server.stop() == 0
    assert [line for line in server.log if f"is a new primary; replaced: 127.0.0.1:{primary.tls_port}" in line]
    cluster.kill()


@pytest.fixture
def watched(tmp_path):
    """A primary with two replicas, and three Sentinels, in a network of the tests', each with its own address."""

    def start(number, *options, **more):
        host = f"127.0.2.{number}"
        own = ("--bind-source-addr", host, "--protected-mode", "no", "--repl-diskless-sync-delay", "0")
        made.append(RedisServer("redis", *(own[:4] if "--sentinel" in options else own), *options, host=host, **more))
        return made[-1]

    made = []
    with own_network():
        primary = start(1)
        replicas = [
            start(number, "--replicaof", f"{primary.host} {primary.port}", "--replica-announce-ip", f"127.0.2.{number}")
            for number in (2, 3)
        ]
        primary.wait(lambda: primary.replicas() == 2)
        sentinels = []
        for number in (4, 5, 6):
            settings = tmp_path / f"sentinel-{number}.conf"
            settings.write_text(
                f"sentinel announce-ip 127.0.2.{number}\nsentinel monitor main {primary.host} {primary.port} 2\n"
                "sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 4000\n"
            )
            sentinels.append(start(number, "--sentinel", settings=settings))
        known = "num-slaves", "num-other-sentinels"
        for sentinel in sentinels:
            sentinel.wait(lambda each=sentinel: [each.ask("SENTINEL MASTER", "main")[name] for name in known] == [2, 2])
        yield primary, replicas, sentinels
        for node in made:
            print(node.evidence())  # shown if the test has failed
            node.kill()


@pytest.mark.slow
def test_isolated_primary_acknowledges_nothing_that_is_lost(watched, start, publish):
    primary, (near, far), sentinels = watched
    nodes = ",".join(sentinel.address for sentinel in sentinels)
    server = start("--store", "redis", "--redis-nodes", nodes, "--redis-sentinel", "main")
    publishers = publish([server])
    publishers.wait_for(60)
    far.kill()
    publishers.wait_for(60)  # most Sentinels confirm the primary
    far.start()
    primary.wait(lambda: primary.replicas() == 2)
    publishers.wait_for(60)
    here = [SERVER, primary.host, near.host, sentinels[0].host]
    with dropping(*trials.between(here, [far.host, *(sentinel.host for sentinel in sentinels[1:])])):
        until(lambda: "MASTER MODE enabled" in far.log())
        # The primary gives the other replica up, and continues with the near one: nothing stops it.
        until(lambda: next(each["lag"] for each in primary.replicas_seen() if each["ip"] == far.host) > 6)
        publishers.wait_for_refusal()
    primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")
    publishers.wait_for(60)
    publishers.end()
