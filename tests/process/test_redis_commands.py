"""The maintenance commands with data on Redis."""

import json
import uuid

import pytest
from support.command import ORIGIN, call
from support.maintenance import run_ok, run_refused
from support.redis_traffic import PARTITIONS, until

pytest_plugins = ["support.redis_traffic"]

OTHER = "https://other.example"


@pytest.fixture
def redis(redis_server):
    return redis_server()


@pytest.fixture
def server(redis, serve):
    return serve(redis, "--durability", "os")


def test_inspect_shows_numbers_and_nothing_that_peers_send(redis, server, tmp_path):
    code = server.offer("lobby", "their info", "their offer")
    server.offer("lobby")
    server.offer("zoo")
    server.call("/zoo/offer", {"info": "i", "offer": "o"}, origin=OTHER)
    sent = {"code": code, "side": "answerer"}
    server.call("/answer", sent | {"candidates": ["their candidate"] * 20})
    server.call("/answer", sent | {"answer": "their answer"})
    server.call("/answer", {"code": code, "side": "offerer", "candidate": "another"})
    short = uuid.UUID(server.call("/short/offer", {"info": "i", "offer": "o", "ttl": 1000})[1]["code"]).bytes
    server.end()  # it would have the session leave its listing
    until(lambda: not redis.ask("EXISTS", PARTITIONS.of_code(ORIGIN, short).session(short)))
    settings = tmp_path / "settings.toml"
    settings.write_text(f'store = "redis"\nredis_nodes = "{redis.address}"\n')
    variables = {"TORNADO_SIGNAL_STORE": "redis", "TORNADO_SIGNAL_REDIS_NODES": redis.address}
    shown = run_ok("inspect", "--store", "redis", "--redis-nodes", redis.address)
    assert "their" not in shown
    found = json.loads(shown)
    numbers = [json.loads(each) for each in (run_ok("inspect", "--config", settings), run_ok("inspect", **variables))]
    for each in (found, *numbers):
        each.pop("size_bytes")
    assert numbers == [found, found]
    assert found["source"] == f"tornado-signal:* on Redis at {redis.address}"
    counts = {"sessions": 5, "unanswered": 3, "answered": 1, "expired": 1, "candidates": 21}
    assert {name: found[name] for name in counts} == counts
    assert (found["origins"], found["topics"]) == (2, 3)
    assert [each["origin"] for each in found["largest_origins"]] == [ORIGIN, OTHER]
    assert found["largest_origins"][1]["sessions"] == 1
    assert {(each["origin"], each["topic"]) for each in found["largest_topics"]} == {
        (ORIGIN, "lobby"),
        (ORIGIN, "zoo"),
        (OTHER, "zoo"),
    }
    assert 0 < sum(each["bytes"] for each in found["largest_origins"]) < found["total_bytes"]
    few = json.loads(run_ok("inspect", "--most", "1", **variables))
    assert (len(few["largest_origins"]), len(few["largest_topics"])) == (1, 1)


def test_check_passes_during_writes_and_reports_disagreements(redis, server, publish):
    arguments = ("check", "--store", "redis", "--redis-nodes", redis.address)
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


def test_missing_or_empty_redis_is_reported_in_one_sentence(redis):
    for command in ("inspect", "check"):
        flags = (command, "--store", "redis", "--redis-nodes")
        assert "set --redis-prefix" in run_refused(*flags, redis.address)
        assert "Redis cannot be used" in run_refused(*flags, "127.0.0.1:1")
    assert redis.ask("DBSIZE") == 0


def test_data_directory_command_names_its_redis_counterpart():
    said = run_refused("compact", "--store", "redis")
    assert said.startswith("`compact` is for --store leveldb; on Redis, BGREWRITEAOF ")
    assert run_refused("repair", "--store", "redis").startswith("`repair` is for --store leveldb; on Redis, ")
    assert said == run_refused("compact", TORNADO_SIGNAL_STORE="redis")
