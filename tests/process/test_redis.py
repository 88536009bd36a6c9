"""Servers that share their sessions on a real Redis: each answers as any other, also when Redis loses a node."""

import json
import re
import signal
import subprocess
import time

import pytest
from support.certificates import make_pair
from support.command import Server, call
from support.documents import blocks
from support.redis_servers import BEGIN_MS, RedisCluster, WallClock, free_port
from support.redis_traffic import Follower, Waiters, in_background, ready, topic_in, until
from support.rpc import open_socket
from support.scraping import scrape
from support.service_manager import receive_message, wait_for_message
from support.waiting import end_all

pytest_plugins = ["support.redis_traffic", "support.service_manager"]


def refused(redis, *arguments):
    """Return the error of `serve`, which `serve --check` also reports."""
    flags = ("--store", "redis", "--redis-nodes", redis, "--port", "0", *arguments)
    done = [call("serve", *flags), call("serve", "--check", *flags)]
    assert [each.returncode for each in done] == [1, 1]
    errors = [re.sub(r"^\S+Z ", "", each.stderr, flags=re.MULTILINE) for each in done]  # but not when
    assert errors[0] == errors[1]
    assert "Traceback" not in done[0].stderr
    return done[0].stderr


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_peers_connect_across_two_servers_that_are_killed(kind, redis_server, start):
    redis = redis_server(kind=kind)
    one, other = (start("--durability", "os", "--admin-port", "0", redis=redis) for _ in range(2))
    code = other.offer("lobby", offer="from the other")
    assert one.codes() == other.codes() == [code]
    Waiters(one, "lobby", code).end(other)
    assert one.call("/readyz", base=one.admin_url)[0] == 200
    found = scrape(one.admin_url)
    assert found.one("redis_failed_calls") == 0
    assert found.histogram("redis_call_duration_seconds")[1] > 10
    for server in (one, other):
        server.end()
    again = start("--durability", "os", redis=redis)
    assert again.call("/poll", {"code": code, "side": "offerer"})[1]["answer"] == "at last"
    assert again.stop() == 0
    assert [line for line in again.log if " error" in line.lower()] == []


def test_servers_of_one_redis_name_one_topic_for_a_network(redis_server, start):
    addresses = ("1.2.3.4", "1.2.3.5", "2600:1:1:1::1", "2600:1:1:2::1", "2600:1:1:1::2")  # the last is near the third

    def nearby(server, address):
        return json.loads(server.exchange("/nearby", X_Forwarded_For=address)[2])["topic"]

    def topics(*servers):
        """Return the topic of each address, which is the same at all servers."""
        found, *others = [[nearby(server, address) for address in addresses] for server in servers]
        assert others == [found] * len(others)
        assert found[4] == found[2]
        assert len({*found}) == 4
        return found

    clock, flags = WallClock(), ("--durability", "os", "--trusted-proxies", "127.0.0.1")
    redis, another = redis_server(clock=clock), redis_server()
    midnight_ms = BEGIN_MS // 86_400_000 * 86_400_000 + 86_400_000
    clock.set(midnight_ms - 60_000)
    one, other, apart = (start(*flags, redis=each) for each in (redis, redis, another))
    yesterday = topics(one, other)
    assert not {*topics(apart)} & {*yesterday}
    code = one.offer(f"room~{yesterday[0]}")
    assert other.codes(f"room~{yesterday[0]}") == [code]
    clock.set(midnight_ms + 60_000)
    until(lambda: all(nearby(server, addresses[1]) != yesterday[1] for server in (one, other)))
    today = topics(one, other)
    assert today[0] == yesterday[0]  # somebody waits there
    assert not {*today[1:]} & {*yesterday}
    one.end()
    assert topics(start(*flags, redis=redis)) == today


def test_unsafe_redis_configuration_is_refused_with_advice(redis_server):
    assert "cannot be used" in refused("127.0.0.1:1", "--durability", "os")
    redis = redis_server()
    assert "add replicas, or set --redis-replicas" in refused(redis.address)
    assert "set appendonly to yes" in refused(redis.address, "--durability", "fsync")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert "set maxmemory-policy to noeviction" in refused(redis.address, "--durability", "os")
    redis.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert "7.2 or newer" in refused(redis_server("--appendonly", "yes").address, "--durability", "fsync")
    done = call("serve", "--check", "--store", "redis", "--redis-nodes", redis.address, "--durability", "os")
    assert done.returncode == 0
    assert "no append-only file" in done.stderr
    other = ("--durability", "os", "--redis-partitions", "4")
    assert "set --redis-partitions to 16" in refused(redis.address, *other)
    replica = redis_server("--replicaof", f"127.0.0.1 {redis.port}", "--maxmemory-policy", "allkeys-lru")
    redis.wait(lambda: redis.replicas() == 1)
    said = refused(redis.address, "--durability", "os")
    assert f"Redis at {replica.address} would drop sessions" in said


def test_redis_that_cannot_be_written_is_not_ready(redis_server, start):
    redis = redis_server()
    server = start("--durability", "os", "--admin-port", "0", redis=redis)
    assert ready(server) == (200, "")
    least = "CONFIG SET min-replicas-to-write"
    for prevent, allow, reason in (
        (f"{least} 1", f"{least} 0", "it has too few replicas to write"),
        (f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE", "READONLY"),
    ):
        redis.ask(*prevent.split())
        until(lambda reason=reason: ready(server) == (503, f"Redis at {redis.address}: {reason}"))
        assert server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] == 503
        redis.ask(*allow.split())
        until(lambda: ready(server) == (200, ""))
        server.offer()
    assert [line for line in server.log if " error" in line.lower()] == []


def test_service_manager_is_notified_while_redis_hangs(redis_server, manager):
    manager, name = manager
    redis = redis_server()
    flags = ("--store", "redis", "--redis-nodes", redis.address, "--durability", "os", "--redis-timeout-ms", 60_000)
    with end_all(Server, Server.end) as start:
        server = start(*flags, NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
        ready = wait_for_message(manager, "READY")
        assert ready == {"READY": "1", "STATUS": f"listening on {server.url}, 0 sessions listed"}
        redis.freeze()
        for _ in range(5):
            assert receive_message(manager)["WATCHDOG"] == "1"


def test_full_redis_is_one_log_line_with_advice(redis_server, start):
    redis = redis_server()
    server = start("--durability", "os", "--admin-port", "0", redis=redis)
    redis.ask("CONFIG", "SET", "maxmemory", "1mb")
    for _ in range(10):
        assert server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] == 503
    assert ready(server) == (503, f"Redis at {redis.address}: OOM; raise maxmemory")
    until(lambda: scrape(server.admin_url).one("full", "redis"))
    assert [scrape(server.admin_url).one(name) for name in ("ready", "store_available")] == [0, 0]
    redis.ask("CONFIG", "SET", "maxmemory", "0")
    until(lambda: scrape(server.admin_url).one("ready"))
    assert (scrape(server.admin_url).one("store_available"), ready(server)[0]) == (1, 200)
    assert server.offer()
    assert server.stop() == 0
    lines = [line for line in server.log if "OOM" in line or "clients are refused" in line]
    assert len(lines) == 1
    assert lines[0].endswith("; raise maxmemory\n")


def test_missing_replica_is_logged_and_makes_the_server_unready(redis_server, start):
    redis = redis_server("--repl-diskless-sync-delay", "0")
    replica = redis_server("--replicaof", f"127.0.0.1 {redis.port}")
    redis.wait(lambda: redis.replicas() == 1)
    server = start("--admin-port", "0", redis=redis)
    replica.kill()
    until(lambda: not scrape(server.admin_url).one("ready"))  # without a request
    assert ready(server)[0] == 503
    replica.start()
    until(lambda: scrape(server.admin_url).one("ready"))
    assert server.stop() == 0
    begin, end = (line for line in server.log if "stores.redis.probes" in line)
    assert "requests for some or all sessions are refused: " in begin
    assert "0 of 1 replicas" in begin
    assert "requests for all sessions are served again" in end


def test_emptied_redis_is_logged_and_its_sessions_are_gone_for_their_clients(redis_server, start):
    redis = redis_server()
    server = start("--durability", "os", "--admin-port", "0", redis=redis)
    until(lambda: redis.ask("KEYS", "*:probe:*"))
    code = server.offer()
    waited = in_background(lambda: server.call("/poll", {"code": code, "side": "offerer", "wait": 60}))
    until(lambda: scrape(server.admin_url).one("waiting_requests", "/poll"))
    stream = Follower(server, "lobby")
    stream.read_until(lambda: stream.known)
    redis.ask("FLUSHALL")
    stream.read_until(lambda: not stream.known)  # without another event
    assert waited()[0] == 404
    assert server.codes() == []
    code = server.offer()
    assert server.codes() == [code]
    stream.read_until(lambda: stream.known == {code})
    stream.close()
    assert server.stop() == 0
    (line,) = (line for line in server.log if "has lost its data" in line)
    assert f"Redis at {redis.address} " in line


async def test_emptied_redis_closes_connections_whose_held_offers_are_gone(redis_server, start):
    redis = redis_server()
    server = start("--durability", "os", redis=redis)
    until(lambda: redis.ask("KEYS", "*:probe:*"))
    async with open_socket(server) as holder, open_socket(server) as other:
        code = (await holder.call("offer", topic="lobby", info="i", offer="o", hold=True))["code"]
        await other.call("subscribe", topic="lobby")
        assert (await other.event())[1]["code"] == code
        redis.ask("FLUSHALL")
        assert await holder.closed() == 1012
        assert (await other.event())[0] == "reset"
        assert (await other.call("sessions", topic="lobby"))["sessions"] == []
        assert (await other.ask("hold", code=code))["error"]["code"] == 404
    assert server.stop() == 0


def test_node_that_stops_responding_and_its_return_are_logged_with_the_reason(redis_server, tmp_path, start):
    # Otherwise Redis delays writes while the disk is busy, for up to two seconds. A kill loses them.
    always = ("--appendonly", "yes", "--appendfsync", "always")
    redis = redis_server("--requirepass", "old", *always, password="old")
    password = tmp_path / "password"
    password.write_text("old\n")
    server = start("--durability", "os", "--redis-password-file", password, "--admin-port", "0", redis=redis)
    code = server.offer()
    where = f"Redis at {redis.address}"

    def logged(text):
        while (line := server.process.stderr.readline()) and text not in line:
            pass
        return line

    redis.kill()
    assert "Connection refused" in logged(f"{where} does not respond; its sessions are unavailable: ")
    redis.start()
    assert logged(f"{where} responds again after ")
    # With another password it refuses the server until that has read it.
    redis.kill()
    assert logged(f"{where} does not respond; its sessions are unavailable: ")
    redis.change_password("new")
    until(lambda: ready(server)[1].startswith(f"{where}: WRONGPASS"))
    password.write_text("new\n")
    server.process.send_signal(signal.SIGHUP)
    assert logged("settings reloaded, applied: passwords of Redis")
    assert logged(f"{where} responds again after ")
    assert server.codes() == [code]


@pytest.mark.parametrize(("kind", "sync"), [("redis", "always"), ("valkey", "always"), ("valkey", "everysec")])
def test_with_fsync_acknowledged_offers_outlive_a_kill_of_redis(kind, sync, redis_server, start):
    redis = redis_server("--appendonly", "yes", "--appendfsync", sync, kind=kind)
    server = start("--durability", "fsync", "--redis-timeout-ms", "2000", redis=redis)
    codes = [server.offer(str(number)) for number in range(3)]
    redis.kill()
    status, found = server.call("/0/sessions")
    assert (status, found) == (503, {"error": "Service unavailable"})
    redis.start()
    assert [server.codes(str(number)) for number in range(3)] == [[code] for code in codes]


def test_restricted_redis_user_with_tls_is_sufficient(redis_server, start, tmp_path):
    certificate, key = make_pair(tmp_path)
    flags = ("--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
    redis = redis_server(*flags, "--tls-auth-clients", "no", "--tls-port", str(tls_port := free_port()))
    line = next(block for block in blocks("scaling", "Scaling", "") if block.startswith("ACL SETUSER "))
    redis.ask(*line.replace("tornado-signal:", "ours:").replace("SECRET", "a-password").split())
    password = tmp_path / "password"
    password.write_text("a-password\n")
    access = ("--durability", "os", "--redis-prefix", "ours:", "--redis-user", "signal")
    assert "invalid username-password" in refused(redis.address, *access)
    access += ("--redis-password-file", password)
    server = start(*access, "--admin-port", "0", redis=redis)
    assert ready(server) == (200, "")
    code = server.offer()
    assert server.codes() == [code]
    assert "no permissions" in refused(redis.address, *access[:2], *access[4:])
    address = f"127.0.0.1:{tls_port}"
    over_tls = ("--store", "redis", "--redis-nodes", address, *access, "--redis-tls")
    assert call("serve", "--check", *over_tls).returncode == 1
    over_tls += ("--redis-ca", certificate)
    assert start(*over_tls).codes() == server.codes()


@pytest.mark.parametrize("command", ["EVALSHA", "SSUBSCRIBE"])
def test_redis_without_a_command_prevents_the_start(command, redis_server):
    redis = redis_server("--rename-command", command, "")
    assert f" lacks {command}; remove rename-command from its settings" in refused(redis.address, "--durability", "os")


@pytest.mark.parametrize("command", ["time", "hstrlen", "script|load", "ssubscribe"])
def test_redis_user_without_a_command_prevents_the_start(command, redis_server, tmp_path):
    redis = redis_server()
    redis.ask("ACL", "SETUSER", "signal", "on", ">secret", "~ours:*", "&ours:*", "+@all", f"-{command}")
    password = tmp_path / "password"
    password.write_text("secret")
    access = ("--redis-prefix", "ours:", "--redis-user", "signal", "--redis-password-file", password)
    name = command.partition("|")[0].upper()
    assert f"; let --redis-user run {name} with" in refused(redis.address, "--durability", "os", *access)
    redis.ask("ACL", "SETUSER", "signal", f"+{command}")
    done = call("serve", "--check", "--store", "redis", "--redis-nodes", redis.address, "--durability", "os", *access)
    assert (done.returncode, redis.ask("KEYS", "*permissions*")) == (0, [])


@pytest.mark.slow
def test_primary_is_found_through_sentinels(redis_server, tmp_path, start):
    primary = redis_server("--repl-diskless-sync-delay", "0")
    replicas = [redis_server("--replicaof", f"127.0.0.1 {primary.port}") for _ in range(2)]
    primary.wait(lambda: primary.replicas() == 2)
    settings = tmp_path / "sentinel.conf"
    settings.write_text(
        f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds main 2000\nsentinel failover-timeout main 4000\n"
    )
    sentinel = redis_server("--sentinel", "--requirepass", "theirs", settings=settings, password="theirs")
    sentinel.wait(lambda: sentinel.ask("SENTINEL MASTER", "main")["num-slaves"] == 2)
    assert "NOAUTH" in refused(sentinel.address, "--redis-sentinel", "main")
    password = tmp_path / "password"
    password.write_text("theirs\n")
    access = ("--redis-sentinel-user", "default", "--redis-sentinel-password-file", password)
    assert "does not know other" in refused(sentinel.address, "--redis-sentinel", "other", *access)
    server = start("--redis-sentinel", "main", *access, redis=sentinel)
    code = server.offer()
    primary.kill()
    sentinel.wait(lambda: sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME", "main")[1] != primary.port)
    until(lambda: server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] == 200)
    assert code in server.codes()
    assert server.stop() == 0
    assert [line for line in server.log if f"is a new primary; replaced: {primary.address}" in line]
    assert {replica.ask("INFO", "replication")["role"] for replica in replicas} == {"master", "slave"}


@pytest.fixture
def cluster():
    """Three primaries with two replicas each: while one of them takes over, there is one that has what is written."""
    made = RedisCluster("redis", 3, 2, "--appendonly", "yes", "--cluster-require-full-coverage", "no")
    yield made
    made.kill()


def failover(cluster, publish, fault, start):
    servers = [start(redis=cluster) for _ in range(2)]
    primary = cluster.primaries_now()[0]
    topic = topic_in(cluster.slots_of(primary))
    waiters = Waiters(servers[1], topic, servers[0].offer(topic))
    publishers = publish(servers)
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


def moved_slots_lost_replies_and_flushed_scripts(cluster, publish, start):
    publishers = publish([start(redis=cluster) for _ in range(2)])
    publishers.wait_for(150)
    one, other = cluster.primaries_now()[:2]
    source, target = (server.ask("CLUSTER MYID").decode() for server in (one, other))
    flags = ["--cluster-from", source, "--cluster-to", target, "--cluster-slots", "1500", "--cluster-yes"]
    command = ["redis-cli", "--cluster", "reshard", one.address, *flags]
    before = publishers.statuses.copy()
    subprocess.run(command, check=True, capture_output=True)
    publishers.wait_for(150)
    during = publishers.statuses - before
    assert during[503] <= during.total() / 100, during
    for _ in range(20):  # some scripts run whose answers are lost
        for server in cluster.servers:
            server.ask("CLIENT KILL", "TYPE", "normal")
        time.sleep(0.05)
    publishers.wait_for(150)
    for server in cluster.servers:
        server.ask("SCRIPT FLUSH")
    publishers.wait_for(150)
    publishers.end()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_changes_of_a_cluster_lose_and_duplicate_nothing(subtests, cluster, publish, start):
    for fault in ("killed", "frozen"):
        with subtests.test(fault):
            failover(cluster, publish, fault, start)
    with subtests.test("moved slots"):
        moved_slots_lost_replies_and_flushed_scripts(cluster, publish, start)
