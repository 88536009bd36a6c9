"""Servers that share their sessions on a real Redis: each answers as any other, also when Redis loses a node."""

import asyncio
import re
import signal
import sys
import uuid

import pytest
from support import rpc
from support.certificates import make_pair
from support.checkout import unpack
from support.command import ORIGIN, call
from support.documents import blocks
from support.maintenance import run_ok, run_refused
from support.redis_servers import free_port
from support.redis_traffic import PARTITIONS, Waiters, in_background, ready, until
from support.rpc import open_socket
from support.scraping import scrape
from support.service_manager import receive_message, wait_for_message
from support.y_webrtc import RawClient, published


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


def test_service_manager_is_notified_while_redis_hangs(redis_server, manager, start):
    manager, name = manager
    redis = redis_server()
    flags = ("--durability", "os", "--redis-timeout-ms", 60_000)
    server = start(*flags, redis=redis, NOTIFY_SOCKET=name, WATCHDOG_USEC="400000")
    ready = wait_for_message(manager, "READY")
    assert ready == {"READY": "1", "STATUS": f"listening on {server.url}, 0 sessions listed"}
    with redis.frozen():
        for _ in range(5):
            assert receive_message(manager)["WATCHDOG"] == "1"


def test_redis_that_cannot_be_written_is_not_ready_and_a_full_one_is_one_log_line_with_advice(redis_server, start):
    redis = redis_server()
    server = start("--durability", "os", "--admin-port", "0", redis=redis)
    assert ready(server) == (200, "")
    least = "CONFIG SET min-replicas-to-write"
    for prevent, allow, reason in (
        (f"{least} 1", f"{least} 0", "it has too few replicas to write"),
        (f"REPLICAOF 127.0.0.1 {free_port()}", "REPLICAOF NO ONE", "READONLY"),
        ("CONFIG SET maxmemory 1mb", "CONFIG SET maxmemory 0", "OOM; raise maxmemory"),
    ):
        redis.ask(*prevent.split())
        until(lambda reason=reason: ready(server) == (503, f"Redis at {redis.address}: {reason}"))
        assert {server.call("/lobby/offer", {"info": "i", "offer": "o"})[0] for _ in range(10)} == {503}
        if "OOM" in reason:
            until(lambda: scrape(server.admin_url).one("full", "redis"))
            assert [scrape(server.admin_url).one(name) for name in ("ready", "store_available")] == [0, 0]
        redis.ask(*allow.split())
        until(lambda: ready(server) == (200, ""))
        server.offer()
    until(lambda: scrape(server.admin_url).one("ready") and scrape(server.admin_url).one("store_available"))
    assert server.stop() == 0
    (line,) = [line for line in server.log if " error" in line.lower() or "OOM" in line]
    assert line.endswith("; raise maxmemory\n")


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


async def test_emptied_redis_is_logged_and_closes_connections_whose_held_offers_are_gone(redis_server, start):
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
        again = (await other.call("offer", topic="lobby", info="i", offer="o"))["code"]
        assert (await other.event())[1]["code"] == again
    assert server.stop() == 0
    (line,) = (line for line in server.log if "has lost its data" in line)
    assert f"Redis at {redis.address} " in line


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


def test_redis_user_without_a_command_prevents_the_start(redis_server, tmp_path):
    redis, password = redis_server(), tmp_path / "password"
    redis.ask("ACL", "SETUSER", "signal", "on", ">secret", "~ours:*", "&ours:*", "+@all")
    password.write_text("secret")
    access = ("--durability", "os", "--redis-prefix", "ours:", "--redis-user", "signal")
    access += ("--redis-password-file", password)
    for command in ("time", "hstrlen", "script|load", "ssubscribe"):
        redis.ask("ACL", "SETUSER", "signal", f"-{command}")
        name = command.partition("|")[0].upper()
        assert f"; let --redis-user run {name} with" in refused(redis.address, *access), command
        redis.ask("ACL", "SETUSER", "signal", f"+{command}")
    done = call("serve", "--check", "--store", "redis", "--redis-nodes", redis.address, *access)
    assert (done.returncode, redis.ask("KEYS", "*permissions*")) == (0, [])


def test_primary_is_found_through_sentinels_with_a_password(redis_server, tmp_path, start):
    primary, settings = redis_server(), tmp_path / "sentinel.conf"
    settings.write_text(f"sentinel monitor main 127.0.0.1 {primary.port} 1\n")
    sentinel = redis_server("--sentinel", "--requirepass", "theirs", settings=settings, password="theirs")
    assert "NOAUTH" in refused(sentinel.address, "--redis-sentinel", "main")
    password = tmp_path / "password"
    password.write_text("theirs\n")
    access = ("--redis-sentinel-user", "default", "--redis-sentinel-password-file", password)
    assert "does not know other" in refused(sentinel.address, "--redis-sentinel", "other", *access)
    server = start("--durability", "os", "--redis-sentinel", "main", *access, redis=sentinel)
    code = server.offer()
    assert server.codes() == [code]


# Maintenance commands


def test_check_passes_during_writes_and_reports_disagreements(redis_server, start, publish):
    redis = redis_server()
    arguments = ("check", "--store", "redis", "--redis-nodes", redis.address)
    assert "set --redis-prefix" in run_refused(*arguments)
    assert "Redis cannot be used" in run_refused(*arguments[:-1], "127.0.0.1:1")
    assert redis.ask("DBSIZE") == 0
    server = start("--durability", "os", redis=redis)
    publishers = publish([server])
    publishers.wait_for(30)
    for _ in range(3):
        assert run_ok(*arguments) == f"tornado-signal:* on Redis at {redis.address} is sound\n"
    publishers.end()
    code, _ = [uuid.UUID(server.offer()).bytes for _ in range(2)]
    partition = PARTITIONS.of_code(ORIGIN, code)
    kept = redis.ask("HGETALL", partition.meta)
    redis.ask("HINCRBY", partition.meta, "n", 1)
    (listed,) = [each for each in redis.ask("ZRANGE", partition.listing, 0, -1) if each.endswith(code)]
    redis.ask("ZREM", partition.listing, listed)
    checked = call(*arguments)
    assert checked.returncode == 1
    assert f"{ORIGIN!r}: the count of sessions does not match the listings\n" in checked.stdout
    assert f"{code.hex()} is neither listed nor answered\n" in checked.stdout
    assert f"Redis at {redis.address} is not sound (listed above: " in checked.stderr
    redis.ask("ZADD", partition.listing, 0, listed)
    redis.ask("HSET", partition.meta, "n", kept[b"n"])
    assert run_ok(*arguments)
    session = partition.session(code)
    expires_ms = int(redis.ask("HGET", session, "e"))
    redis.ask("PEXPIREAT", session, expires_ms + 60_000)  # as after moves to other nodes
    assert run_ok(*arguments)
    redis.ask("PEXPIREAT", session, expires_ms - 1)
    assert f"{ORIGIN!r}: {code.hex()} does not expire when it should\n" in call(*arguments).stdout


# Servers of earlier versions and of this one on the same Redis, as during an upgrade. The release is the last one. The
# next is the last commit before servers signed their actions. Servers of the third use the same channel for signed
# ones. Run on that commit, the last case compares equal servers, and passes.
EARLIER = {"release": "8a2b8163", "unsigned": "892501be~1", "signed": "0d2df6bd"}
MESSAGES = 100


@pytest.fixture
def servers(start, tmp_path, redis_server, version):
    earlier, redis = tmp_path / "earlier", redis_server(kind="valkey")
    earlier.mkdir()
    unpack(earlier, EARLIER[version])
    flags = ("--durability", "os", "--admin-port", "0")
    old = {"prefix": (sys.executable, "-m"), "command": "tornado_signal", "cwd": earlier}
    return start(*flags, redis=redis, **old), start(*flags, redis=redis)


@pytest.mark.slow
@pytest.mark.parametrize("version", EARLIER)
async def test_servers_of_two_versions_serve_the_same_sessions_and_their_actions_disturb_no_client(servers, version):
    old, new = servers
    for one, other in ((old, new), (new, old)):
        code = one.offer("lobby")
        assert other.codes("lobby") == [code]
        assert other.call("/answer", {"code": code, "side": "answerer", "candidate": "c"})[0] == 200
        poll = {"code": code, "side": "offerer"}
        since = poll | {"since": other.call("/poll", poll | {"wait": 0})[1]["cursor"]}
        waiting = in_background(lambda one=one, since=since: one.call("/poll", since | {"wait": 30}))
        assert other.call("/answer", {"code": code, "side": "answerer", "answer": "a"})[0] == 200
        assert waiting()[1]["answerCandidates"] == []  # the cursor of the other version is understood
        assert one.call("/poll", poll)[1] == {"answer": "a", "answerCandidates": ["c"]}
        assert other.call("/withdraw", poll)[0] == 200
        assert one.call("/poll", poll)[0] == 404
    names = [server.url.rpartition(":")[2] for server in servers]

    async def sees_both():
        _, state = await asyncio.to_thread(new.call, "/status", base=new.admin_url, origin=None)
        return all(name in str((state["processes"], state["missing"])) for name in names)

    for sending, receiving in ((new, old), (old, new)) if version != "release" else ():
        urls = [server.url.replace("http", "ws", 1) + "/y-webrtc" for server in (sending, receiving)]
        async with RawClient(urls[0], ORIGIN) as sender, RawClient(urls[1], ORIGIN) as receiver:
            await receiver.subscribe("room")
            for number in range(MESSAGES):
                if not number % 50:
                    await rpc.until(sees_both)
                await sender.publish("room", number)
            received = [await receiver.receive() for _ in range(MESSAGES)]
            assert received == [published("room", number, 1) for number in range(MESSAGES)]
    for server in servers:
        assert server.stop() == 0
        assert [line for line in server.log if "Traceback" in line or "is refused" in line] == []
