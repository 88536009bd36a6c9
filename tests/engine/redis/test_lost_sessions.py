"""A primary that is replaced, or emptied, can have shown sessions and messages that its successor lacks."""

import pytest
from support.redis_servers import KINDS, RedisServer
from support.stores import opened_on

from tornado_signal.errors import TooMany
from tornado_signal.session import Listed, SessionPosition, Side
from tornado_signal.stores.redis.check import flaws


@pytest.fixture(params=KINDS)
def nodes(request):
    with (
        RedisServer(request.param, "--repl-diskless-sync-delay", "0") as primary,
        RedisServer(request.param, "--replicaof", f"{primary.host} {primary.port}") as replica,
    ):
        primary.wait(lambda: primary.replicas() == 1)
        yield primary, replica


async def read(one, position, topic="topic"):
    """Return what a stream sends from a position on, and its position afterwards."""
    sent, more = [], True
    while more:
        events, position, more, reset = await one.store.topic_step(one.origin, topic, position)
        sent += ["reset"] * reset
        sent += [event.listed.session.code if isinstance(event, Listed) else event.code for event in events]
    return sent, position


async def test_readers_of_sessions_that_were_not_replicated_start_over(nodes, under):
    primary, replica = nodes
    async with opened_on(primary) as store:
        one = under(store)
        kept = [await one.create(), await one.create()]
        sent, position = await read(one, await one.begin())
        assert sent == kept
        offset = primary.ask("INFO", "replication")["master_repl_offset"]
        replica.wait(lambda: replica.ask("INFO", "replication")["slave_repl_offset"] >= offset)
        replica.ask("REPLICAOF", "NO", "ONE")
        lost = await one.create()
        _, elsewhere = await read(one, await one.begin("empty"), "empty")
        sent, position = await read(one, position)
        assert sent == [lost]

    async with opened_on(replica) as store:
        one = under(store)
        assert store.knows(position.store)
        assert (await store.begin_topic(one.origin, "topic", position))[1] is False
        sent, position = await read(one, position)
        assert sent == ["reset", *kept]
        added = await one.create()
        assert (await read(one, position))[0] == [added]
        listed = await one.create("empty")
        assert (await read(one, elsewhere, "empty"))[0] == [listed]  # there was nothing to forget


@pytest.mark.parametrize("refilled", [False, True])
async def test_readers_of_an_emptied_node_start_over(nodes, refilled, under):
    async with opened_on(nodes[0]) as store:
        one = under(store)
        await one.create()
        _, position = await read(one, await one.begin())
        nodes[0].ask("FLUSHALL")
        codes = [await one.create()] if refilled else []
        sent, position = await read(one, position)
        assert sent == ["reset", *codes]
        added = await one.create()
        assert (await read(one, position))[0] == [added]


async def test_lost_numbers_are_not_reused(nodes, under):
    primary, replica = nodes
    async with opened_on(primary, max_candidates=4) as store:
        one = under(store)
        code = await one.create()
        await one.add(code, Side.OFFERER, "kept")
        assert (await one.read(code, Side.OFFERER)).candidates == [(2, "kept")]
        offset = primary.ask("INFO", "replication")["master_repl_offset"]
        replica.wait(lambda: replica.ask("INFO", "replication")["slave_repl_offset"] >= offset)
        replica.ask("REPLICAOF", "NO", "ONE")
        await one.add(code, Side.OFFERER, "lost")
        await one.add(code, Side.ANSWERER, "lost, too")
        known = {side: await one.read(code, side) for side in Side}
        assert [text for _, text in known[Side.OFFERER].candidates] == ["kept", "lost"]

    async with opened_on(replica, max_candidates=4) as store:
        one = under(store)
        since = {side: SessionPosition(news.serial, news.last) for side, news in known.items()}
        await one.add(code, Side.OFFERER, "after")
        await one.answer(code, "an answer")
        news = await one.read(code, Side.OFFERER, since=since[Side.OFFERER])
        assert [text for _, text in news.candidates] == ["after"]
        answered = await one.read(code, Side.ANSWERER, since=since[Side.ANSWERER])
        assert answered.last > since[Side.ANSWERER].number
        assert answered.description == "an answer"
        await one.add(code, Side.OFFERER, "the third", "the fourth")
        with pytest.raises(TooMany):
            await one.add(code, Side.OFFERER, "one too many")
        texts = [text for _, text in (await one.read(code, Side.OFFERER)).candidates]
        assert texts == ["kept", "after", "the third", "the fourth"]
        assert await flaws(store) == []
