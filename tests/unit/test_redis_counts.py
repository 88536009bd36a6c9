"""The store on Redis: counts of partitions, scripts that match Python, and replicas that a write waits for."""

import asyncio
import itertools
import random
import re
import tracemalloc

import pytest
from redis.crc import key_slot as redis_slot

from tornado_signal.redis.nodes import Acknowledgement, Pipeline
from tornado_signal.redis.slots import key_slot
from tornado_signal.settings.settings import Settings
from tornado_signal.stores.redis import permissions, scripts
from tornado_signal.stores.redis.counts import Counts
from tornado_signal.stores.redis.partitions import KEY_NAMES, Partitions

PARTITIONS = Partitions("test:", 4)


@pytest.mark.parametrize("key", [b"", b"plain", b"a{tag}b", b"{}empty", b"{open", b"{a}{b}", b"x}{y}", "ü{é}".encode()])
def test_key_slots_match_those_of_redis_py(key):
    assert key_slot(key) == redis_slot(key)


def test_partitions_of_an_origin_are_created_on_first_use():
    tracemalloc.start()
    try:
        partitions = Partitions("test:", 1024)
        assert partitions.of_topic("o", "topic") is partitions.of_topic("o", "topic")
        assert tracemalloc.get_traced_memory()[0] < 20_000
        assert len(partitions.all("o")) == 1024
        assert tracemalloc.get_traced_memory()[0] > 200_000
    finally:
        tracemalloc.stop()


def make_counts(quotas, sizes):
    reads = []

    async def read(origin):
        reads.append(origin)
        return sizes

    return Counts(None, PARTITIONS, read, quotas), reads


async def test_other_partitions_are_not_waited_for_far_from_the_quota(monkeypatch):
    monkeypatch.setattr(random, "randrange", lambda stop: 0)
    available = asyncio.Event()

    async def read(origin):
        await available.wait()
        return [(1, 1)] * 4

    counts = Counts(None, PARTITIONS, read, Settings())
    first, *_ = PARTITIONS.all("o")
    for _ in range(3):
        assert counts.record_size("o", first, 1) is None
    assert counts.sessions_elsewhere("o", first) == 0
    available.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert counts.sessions_elsewhere("o", first) == 3
    await counts.close()


async def test_other_partitions_are_read_near_the_quota():
    counts, reads = make_counts(Settings(max_sessions_per_origin=20), [(4, 1)] * 4)
    first, second, *_ = PARTITIONS.all("o")
    await counts.record_size("o", first, 5)
    assert counts.sessions_elsewhere("o", first) == 12
    assert counts.sessions_elsewhere("o", second) == 12
    assert counts.record_size("o", first, 6) is None  # the others have just been read
    assert counts.sessions_elsewhere("o", second) == 14
    assert reads == ["o"]


async def test_other_partitions_are_read_more_often_near_the_quota(monkeypatch):
    monkeypatch.setattr("tornado_signal.stores.redis.counts.FRESH_S", 0)
    counts, reads = make_counts(Settings(max_sessions_per_origin=100), [(5, 1)] * 4)
    first, *_ = PARTITIONS.all("o")
    await counts.record_size("o", first, 50)
    for expected in (1, 2, 2, 3):  # 80 sessions are left: read every second time
        counts.record_size("o", first, 5)
        await asyncio.sleep(0)  # the read runs in parallel
        assert len(reads) == expected
    await asyncio.sleep(0)
    counts.use(Settings(max_sessions_per_origin=30))
    await counts.record_size("o", first, 5)
    assert len(reads) == 4
    await counts.close()


@pytest.mark.parametrize("name", scripts.SCRIPTS)
def test_scripts_name_their_arguments(name):
    text = scripts.SCRIPTS[name].text.decode()
    declared = next(line for line in text.splitlines() if "ARGV[1]" in line)
    body = text.partition(declared)[2]
    assert "ARGV[" not in re.sub(r"ARGV\[at( \+ 1)?\]", "", body)
    assert f"local {', '.join(KEY_NAMES)} = unpack(KEYS)\n" in text


def test_permission_is_checked_for_each_command_of_the_scripts_and_of_the_server():
    package = scripts.FOLDER.parents[2]
    text = "".join(path.read_text() for path in package.rglob("*.lua"))
    scripted = {*re.findall(r"\bredis\.p?call\s*\(?\s*['\"](\w+)", text)}
    sources = {path for folder in ("redis", "stores/redis", "relay") for path in package.glob(f"{folder}/*.py")}
    sources -= {path for path in sources if path.name in ("check.py", "permissions.py")}  # of commands that only read
    served = {*re.findall(r'\(b"([A-Z]{3,})"', "".join(path.read_text() for path in sources))}
    assert {"HSTRLEN", "ZLEXCOUNT"} <= scripted
    assert {"HSETNX", "SSUBSCRIBE", "ZREMRANGEBYSCORE"} <= served
    checked = {*permissions.WITH_KEY, *(command[0].decode() for command in permissions.WITHOUT_KEY)}
    # These are used only if allowed, in a cluster, with Sentinels, or for the durability, which has its own check.
    optional = {"CONFIG", "CLUSTER", "ASKING", "SENTINEL", "AUTH", "MIGRATE", "WAIT", "WAITAOF"}
    assert scripted | served <= checked | optional
    assert checked <= scripted | served | {"SCRIPT"}


@pytest.mark.parametrize("names", [{"code"}, {"code", "lease", "removals_ms", "side"}, {"code", "lease", "token"}])
def test_call_with_other_arguments_is_refused(names):
    with pytest.raises(TypeError, match="arguments of renew are code, lease, removals_ms"):
        scripts.call("renew", **dict.fromkeys(names, 1))


LAG_S = 24


class Primary:
    """A primary with a connection to it. `rounds` are the states of its replicas before and after each WAIT."""

    timeout_s = 2 * LAG_S

    def __init__(self, rounds, clock):
        self.rounds, self.clock, self.awaited = itertools.chain(rounds, itertools.repeat(rounds[-1])), clock, []

    async def connect(self, address, on_reply, on_lost):
        self.on_reply = on_reply
        return self

    def send(self, commands):
        state, after = next(self.rounds)
        for command in commands:
            reply = b"OK"
            if command[0] == b"WAIT":
                self.awaited.append(command[1])
                state = after
                reply = state.count(b"online,offset=9")
                self.clock[0] += 1
            elif command[0] == b"INFO":
                reply = b"role:master\r\nmaster_replid:5\r\n" + state
            asyncio.get_running_loop().call_soon(self.on_reply, reply)

    def close(self, *, discard):
        pass


HAS = b"slave0:ip=h,port=1,state=online,offset=9,lag=0\r\n"
LACKS = b"slave1:ip=h,port=2,state=online,offset=1,lag=%d\r\n"
COPIES = b"slave1:ip=h,port=2,state=wait_bgsave,offset=0,lag=0\r\n"


@pytest.mark.parametrize(
    ("rounds", "awaited"),
    [
        ([(HAS, HAS)], [1]),
        ([(HAS, HAS + LACKS % 1), (HAS, HAS + HAS)], [1, 2]),  # appears during the wait
        ([(HAS + LACKS % LAG_S, HAS + LACKS % (LAG_S + 1)), (HAS, HAS + HAS)], [1, 2]),  # was not silent for too long
        ([(HAS, HAS + LACKS % (LAG_S + 2))], [1]),
        ([(HAS + COPIES, HAS + COPIES), (HAS, HAS + HAS)], [1, 2]),
        # Not for longer after a failover.
        ([(HAS, HAS + COPIES)] * (LAG_S + 1), [1] + [2] * LAG_S + [1]),
        # Its node may serve no more: that shows when the write is repeated.
        ([(HAS, HAS + LACKS % 0), (HAS, HAS)], [1, 2, 1]),
    ],
    ids=["alone", "appears", "silent since", "silent before", "copies", "copies for long", "leaves"],
)
async def test_replicas_that_can_win_an_election_are_awaited(rounds, awaited, monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock[0])
    primary = Primary(rounds, clock)
    lane = Pipeline(("h", 1), primary, Acknowledgement(lag_s=LAG_S))
    replies = [await lane.submit((b"SET", b"key", b"value"))]
    if replies[0] != b"OK":
        replies.append(await lane.submit((b"SET", b"key", b"value")))
    assert replies[-1] == b"OK"
    assert primary.awaited == awaited
    lane.disconnect()
