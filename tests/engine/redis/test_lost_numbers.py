"""A primary that is replaced may have been read by somebody before what it had was safe."""

import pytest
from support.redis_servers import KINDS, RedisServer
from support.stores import open_on

from tornado_signal.errors import TooMany
from tornado_signal.session import SessionPosition, Side
from tornado_signal.stores.quotas import Quotas
from tornado_signal.stores.redis.check import flaws


@pytest.fixture
def nodes(request):
    primary = RedisServer(request.param, "--repl-diskless-sync-delay", "0")
    replica = RedisServer(request.param, "--replicaof", f"{primary.host} {primary.port}")
    primary.wait(lambda: primary.replicas() == 1)
    yield primary, replica
    primary.kill()
    replica.kill()


@pytest.mark.parametrize("nodes", KINDS, indirect=True)
async def test_lost_numbers_are_not_reused(nodes, under):
    primary, replica = nodes
    store = await open_on(primary, quotas=Quotas(candidates=4))
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
    await store.close()
    primary.kill()

    store = await open_on(replica, quotas=Quotas(candidates=4))
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
    await store.close()
