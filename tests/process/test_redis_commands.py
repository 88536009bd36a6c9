"""The maintenance commands with data on Redis."""

import uuid

import pytest
from support.command import ORIGIN, call
from support.maintenance import run_ok, run_refused
from support.redis_traffic import PARTITIONS

pytest_plugins = ["support.redis_traffic"]

OTHER = "https://other.example"


@pytest.fixture
def redis(redis_server):
    return redis_server()


@pytest.fixture
def server(redis, start):
    return start("--durability", "os", redis=redis)


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
    flags = ("check", "--store", "redis", "--redis-nodes")
    assert "set --redis-prefix" in run_refused(*flags, redis.address)
    assert "Redis cannot be used" in run_refused(*flags, "127.0.0.1:1")
    assert redis.ask("DBSIZE") == 0
