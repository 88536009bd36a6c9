"""Servers that share their sessions on a real Redis: each answers as any other, also when Redis loses a node."""

import re
import subprocess
import time
import urllib.request

import pytest
from support.certificates import make_pair
from support.command import BOUND_S, Server, run
from support.redis_servers import RedisCluster, free_port
from support.redis_traffic import Publishers, Waiters, ready, topic_in, until

pytest_plugins = ["support.redis_traffic"]


def refused(redis, *arguments):
    """What the operator is told, whether the server is to serve or only to check."""
    flags = ("--store", "redis", "--redis-nodes", redis, "--port", "0", *arguments)
    done = [run("serve", *flags), run("serve", "--check", *flags)]
    assert [each.returncode for each in done] == [1, 1]
    told = [re.sub(r"^\S+Z ", "", each.stderr, flags=re.MULTILINE) for each in done]  # but not when
    assert told[0] == told[1]
    assert "Traceback" not in done[0].stderr
    return done[0].stderr


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_two_servers(kind, redis_server, serve):
    """Two peers meet by way of two servers; what waits at one is woken by the other, and both may die."""
    redis = redis_server(kind=kind)
    one, other = (serve(redis, "--durability", "os", "--admin-port", "0") for _ in range(2))
    code = other.offer("lobby", offer="from the other")
    assert one.codes() == other.codes() == [code]
    Waiters(one, "lobby", code).end(other)
    assert one.call("/readyz", base=one.admin_url)[0] == 200
    with urllib.request.urlopen(f"{one.admin_url}/metrics", timeout=BOUND_S) as response:
        shown = response.read().decode()
    assert "tornado_signal_redis_failed_calls_total 0.0" in shown
    assert float(re.search(r"tornado_signal_redis_call_duration_seconds_count (.*)", shown)[1]) > 10
    for server in (one, other):
        server.end()
    again = serve(redis, "--durability", "os")
    assert again.call("/poll", {"code": code, "side": "offerer"})[1]["answer"] == "at last"
    assert again.stop() == 0
    assert [line for line in again.log if " error" in line.lower()] == []


def test_what_redis_must_be_like(redis_server):
    """A Redis that cannot be reached, or would lose sessions, is refused in a sentence that says what to set."""
    assert "cannot be used" in refused("127.0.0.1:1", "--durability", "os")
    redis = redis_server()
    assert "add replicas, or set --redis-replicas" in refused(redis.address)
    assert "set appendonly to yes" in refused(redis.address, "--durability", "fsync")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "set maxmemory-policy to noeviction" in refused(redis.address, "--durability", "os")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert "7.2 or newer" in refused(redis_server("--appendonly", "yes").address, "--durability", "fsync")
    done = run("serve", "--check", "--store", "redis", "--redis-nodes", redis.address, "--durability", "os")
    assert done.returncode == 0
    assert "no append-only file" in done.stderr
    other = ("--durability", "os", "--redis-partitions", "4")
    assert "set --redis-partitions to 16" in refused(redis.address, *other)


def test_what_ready_means(redis_server, serve):
    """A Redis that can be read and not be written is not ready, and requests are refused until it can."""
    redis = redis_server()
    server = serve(redis, "--durability", "os", "--admin-port", "0")
    assert ready(server) == (200, "")
    for prevent, allow, reason in (
        (
            "CONFIG SET min-replicas-to-write 1",
            "CONFIG SET min-replicas-to-write 0",
            "it has too few replicas to write",
        ),
        (f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE", "READONLY"),
    ):
        redis.ask(*prevent.split())
        assert ready(server) == (503, f"Redis at {redis.address}: {reason}")
        assert server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] == 503
        redis.ask(*allow.split())
        assert ready(server) == (200, "")
        server.offer()
    assert [line for line in server.log if " error" in line.lower()] == []


@pytest.mark.parametrize(("kind", "sync"), [("redis", "always"), ("valkey", "always"), ("valkey", "everysec")])
def test_what_is_on_disk(kind, sync, redis_server, serve):
    """With `--durability fsync` what was acknowledged is there after Redis was killed and started again."""
    redis = redis_server("--appendonly", "yes", "--appendfsync", sync, kind=kind)
    server = serve(redis, "--durability", "fsync", "--redis-timeout-ms", "2000")
    codes = [server.offer(str(number)) for number in range(3)]
    redis.kill()
    status, found = server.call("/0/sessions")
    assert (status, found) == (503, {"error": "Service unavailable"})
    redis.start()
    assert [server.codes(str(number)) for number in range(3)] == [[code] for code in codes]


def test_getting_in(redis_server, serve, tmp_path):
    """A user with a password, over TLS, that may touch nothing but the keys of the prefix."""
    certificate, key = make_pair(tmp_path)
    flags = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
    redis = redis_server(*flags, "--tls-auth-clients", "no", "--tls-port", str(tls_port := free_port()))
    redis.ask("ACL", "SETUSER", "signal", "on", ">a password", "~ours:*", "&ours:*", "+@all", "-@dangerous", "+info")
    password = tmp_path / "password"
    password.write_text("a password\n")
    access = ("--durability", "os", "--redis-prefix", "ours:", "--redis-user", "signal")
    assert "invalid username-password" in refused(redis.address, *access)
    access += ("--redis-password-file", password)
    server = serve(redis, *access, "--admin-port", "0")
    assert ready(server) == (200, "")
    code = server.offer()
    assert server.codes() == [code]
    assert "no permissions" in refused(redis.address, *access[:2], *access[4:])
    address = f"127.0.0.1:{tls_port}"
    over_tls = ("--store", "redis", "--redis-nodes", address, *access, "--redis-tls")
    assert run("serve", "--check", *over_tls).returncode == 1
    over_tls += ("--redis-ca", certificate)
    with_tls = Server(*over_tls)
    try:
        assert with_tls.codes() == server.codes()
    finally:
        with_tls.end()


@pytest.mark.slow
def test_sentinels(redis_server, serve, tmp_path):
    """The primary is the one that the Sentinels name, also after it has been lost."""
    primary = redis_server("--repl-diskless-sync-delay", "0")
    replicas = [redis_server("--replicaof", f"127.0.0.1 {primary.port}") for _ in range(2)]
    primary.wait(lambda: primary.replicas() == 2)
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 4000\n"
    )
    sentinel = redis_server("--sentinel", settings=settings)
    sentinel.wait(lambda: sentinel.ask("SENTINEL MASTER", "main")["num-slaves"] == 2)
    assert "does not know other" in refused(sentinel.address, "--redis-sentinel", "other")
    server = serve(sentinel, "--redis-sentinel", "main")
    code = server.offer()
    primary.kill()
    sentinel.wait(lambda: sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1] != primary.port)
    until_s = time.monotonic() + BOUND_S
    while server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] != 200:
        assert time.monotonic() < until_s
    assert code in server.codes()
    assert {replica.ask("INFO", "replication")["role"] for replica in replicas} == {"master", "slave"}


@pytest.fixture(scope="module")
def cluster():
    """Three primaries with two replicas each: while one of them takes over, there is one that has what is written."""
    made = RedisCluster("redis", 3, 2, "--appendonly", "yes", "--cluster-require-full-coverage", "no")
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_primary_is_lost(fault, cluster, serve):
    """While a replica takes over, nothing that was acknowledged is lost or doubled, and nothing fails but with 503."""
    servers = [serve(cluster) for _ in range(2)]
    primary = cluster.primaries_now()[0]
    topic = topic_in(cluster.slots_of(primary))
    waiters = Waiters(servers[1], topic, servers[0].offer(topic))
    publishers = Publishers(servers)
    publishers.wait_for(200)
    (primary.kill if fault == "killed" else primary.freeze)()
    try:
        until(lambda: cluster.replaced(primary))
        publishers.wait_for(200)
    finally:
        (primary.start if fault == "killed" else primary.resume)()
    publishers.wait_for(100)
    primary.wait(lambda: primary.ask("INFO", "replication")["role"] == "slave")
    publishers.wait_for(100)
    waiters.end(servers[0])
    publishers.end()
    cluster.wait_until_whole()


def move_slots(cluster):
    """Have one primary hand some slots to another."""
    primaries = cluster.primaries_now()
    source, target = (server.ask("CLUSTER MYID").decode() for server in primaries[:2])
    flags = ["--cluster-from", source, "--cluster-to", target, "--cluster-slots", "1500", "--cluster-yes"]
    command = ["redis-cli", "--cluster", "reshard", primaries[0].address, *flags]
    subprocess.run(command, check=True, capture_output=True, timeout=BOUND_S)


def lose_replies(cluster):
    """Cut all connections of clients again and again: some scripts run whose answers are lost."""
    for _ in range(20):
        for server in cluster.servers:
            server.ask("CLIENT KILL", "TYPE", "normal")
        time.sleep(0.05)


def forget_scripts(cluster):
    """Have the servers know none of the scripts any more."""
    for server in cluster.servers:
        server.ask("SCRIPT FLUSH")


@pytest.mark.slow
def test_what_happens_to_a_cluster(cluster, serve):
    """Slots that move, replies that are lost, scripts that are forgotten: nothing is lost or doubled."""
    publishers = Publishers([serve(cluster) for _ in range(2)])
    for fault in (move_slots, lose_replies, forget_scripts):
        publishers.wait_for(150)
        fault(cluster)
    publishers.wait_for(150)
    publishers.end()
