"""Every script runs while its slot moves to another node, and its changes are reported."""

import asyncio
import random

import pytest
from support.documents import blocks
from support.redis_servers import KINDS, Move, RedisCluster, fixture
from support.stores import Under, opened_on, unlimited
from support.waiting import output, run_command

from tornado_signal.redis.slots import key_slot
from tornado_signal.relay import Channel, Lease
from tornado_signal.relay.opening import open_relay
from tornado_signal.session import Side
from tornado_signal.settings.value_types import VariableSecret
from tornado_signal.stores.redis.check import flaws

ORIGIN = "https://one.example"
LEASE = bytes(12)


cluster = fixture(RedisCluster, KINDS, 2, 0, "--cluster-require-full-coverage", "no", scope="module")


def opened(cluster, prefix, user="none", password="", timeout_s=1):
    options = {"session_timeout_ms": 3_600_000, "redis_timeout_ms": 1000 * timeout_s}
    if password:
        options |= {"redis_user": user, "redis_password_file": VariableSecret("PASSWORD", password.encode())}
    return opened_on(*cluster.servers, prefix=prefix, **options)


async def use(one):
    """Run every script. Return the codes of the sessions that stay listed."""
    code = await one.create()
    await one.add(code, Side.OFFERER, "candidate")
    await one.answer(code)
    await one.add(code, Side.ANSWERER, "candidate")
    assert (await one.read(code, Side.ANSWERER)).candidates == [(2, "candidate")]
    await one.refresh(code)
    held = await one.create(lease=LEASE)
    await one.renew(held, LEASE)
    await one.release(held, LEASE)
    withdrawn, stays = await one.create(), await one.create()
    await one.hold(withdrawn, LEASE)
    await one.withdraw(withdrawn)
    assert stays in await one.codes()
    position = await one.begin()
    assert (await one.state()).changed
    assert (await one.topics())[0][0][0] == "topic"
    await one.withdraw(code)
    assert await one.news(position) == [(each, None) for each in reversed(await one.codes())]
    return [stays]


async def test_every_script_runs_while_its_slot_moves(cluster):
    rng = random.Random(43)
    line = next(block for block in blocks("scaling", "Scaling", "") if block.startswith("ACL SETUSER "))
    for server in cluster.servers:
        server.ask(*line.replace("tornado-signal:", "scripts:").split())
    async with opened(cluster, "scripts:", user="signal", password="SECRET", timeout_s=60) as store:
        one = Under(store, ORIGIN)
        slot = store.partitions.of_topic(ORIGIN, "topic").slot
        for share in (0, 0.5, 1):
            stays = await use(one)
            move = await asyncio.to_thread(Move, cluster, slot)
            await asyncio.to_thread(move.move, [key for key in move.left() if rng.random() < share])
            stays += await use(one)
            assert store.client.metrics.retries["TRYAGAIN"] + store.client.metrics.retries["ASK"]
            await asyncio.to_thread(move.end)
            stays += await use(one)
            assert {*stays} <= {*await one.codes()}
            assert await flaws(store) == []


async def test_keys_at_both_nodes_after_a_failed_move_are_moved(cluster):
    async with opened(cluster, "both:", timeout_s=60) as store:
        one = Under(store, ORIGIN)
        code = await one.create()
        move = await asyncio.to_thread(Move, cluster, store.partitions.of_topic(ORIGIN, "topic").slot)
        keys = [key for key in move.left() if key.startswith("both:")]  # those of earlier tests can expire meanwhile
        assert keys
        for key in keys:  # as if the reply to a MIGRATE had been lost
            copy = move.source.ask("DUMP", key)
            move.target.ask("ASKING")
            move.target.ask("RESTORE", key, 0, copy)
        await one.add(code, Side.OFFERER, "later than the copy")
        await one.answer(code)
        assert [text for _, text in (await one.read(code, Side.OFFERER)).candidates] == ["later than the copy"]
        await asyncio.to_thread(move.end, "REPLACE")
        assert (await one.read(code, Side.ANSWERER)).description == "answer"
        assert await flaws(store) == []


async def test_members_of_a_group_join_and_leave_while_its_slot_moves(cluster):
    async with opened(cluster, "group:", timeout_s=60) as store:
        relay, channel = open_relay(store.shared_redis, unlimited), Channel("scope", "channel")
        move = await asyncio.to_thread(Move, cluster, key_slot(relay._key(channel)))
        lease = Lease("member", "owner", "", "")
        await relay.join(channel, lease, 10)
        assert (await relay.members(channel)).counts == {"": 1}
        await relay.leave(channel, "member", "owner")
        assert (await relay.members(channel)).counts == {}
        await asyncio.to_thread(move.end)
        await relay.close()


async def test_slot_whose_keys_may_not_be_moved_waits_for_the_operator(cluster, until, caplog):
    for server in cluster.servers:
        rules = ("on", ">secret", "~*", "&*", "+@all", "-migrate")
        server.ask("ACL", "SETUSER", "limited", *rules)
    async with opened(cluster, "denied:", user="limited", password="secret", timeout_s=60) as store:
        one = Under(store, ORIGIN)
        await one.create()
        move = await asyncio.to_thread(Move, cluster, store.partitions.of_topic(ORIGIN, "topic").slot)
        creating = asyncio.create_task(one.create())
        await until(lambda: creating.done() or store.client.metrics.retries["TRYAGAIN"] > 3)
        assert not creating.done()
        await asyncio.to_thread(move.end)
        assert await creating in await one.codes()
    (line,) = {record.getMessage() for record in caplog.records if "refuses" in record.getMessage()}
    assert " refuses to move keys to another node: NOPERM" in line


class Writers:
    """Publish and answer sessions of an origin all the time. None may be refused."""

    def __init__(self, one, number):
        self.listed, self.answered = set(), set()
        self.tasks = [asyncio.create_task(self.write(one)) for _ in range(number)]

    async def write(self, one):
        while True:
            code = await one.create()
            await one.answer(code)
            self.answered.add(code)
            self.listed.add(await one.create())

    async def wait_for(self, number):
        wanted = len(self.answered) + number
        while len(self.answered) < wanted:
            assert not any(task.done() for task in self.tasks)
            await asyncio.sleep(0.01)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)
        assert all(task.cancelled() for task in self.tasks)


async def reshard(cluster, slot):
    """Let `redis-cli` move the slot, which is one of the lowest of its node."""
    source = cluster.owner(slot)
    target = next(server for server in cluster.primaries if server is not source)
    ids = [server.ask("CLUSTER MYID").decode() for server in (source, target)]
    flags = ["--cluster-from", ids[0], "--cluster-to", ids[1], "--cluster-slots", str(slot + 1), "--cluster-yes"]
    output(await asyncio.to_thread(run_command, "redis-cli", "--cluster", "reshard", source.address, *flags))
    assert cluster.owner(slot) is target


@pytest.mark.needs("redis-cli")
async def test_slot_that_moves_to_and_fro_under_load_refuses_and_loses_nothing(cluster):
    async with opened(cluster, "load:", timeout_s=60) as store:
        origins = (f"https://{number}.example" for number in range(10_000))
        origin = next(each for each in origins if store.partitions.of_topic(each, "topic").slot < 60)
        one, slot = Under(store, origin), store.partitions.of_topic(origin, "topic").slot
        before = await asyncio.gather(*(one.create() for _ in range(100)))
        async with Writers(one, 4) as writers:
            await writers.wait_for(30)
            for _ in range(2):
                await reshard(cluster, slot)
                await writers.wait_for(30)
        assert {*before} | writers.listed <= {*await one.codes()}
        assert {(await one.read(code, Side.ANSWERER)).description for code in writers.answered} == {"answer"}
        assert await flaws(store) == []
