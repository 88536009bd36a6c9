"""Concurrency: simultaneous requests, slow readers, clients that disconnect, and draining."""

import asyncio
import json

import pytest
from support.service import ORIGIN, TRANSPORTS, head, refused, with_origin


def post_request(path, body):
    data = json.dumps(body).encode()
    return head("POST", path, with_origin(ORIGIN, [("Content-Length", len(data))])) + data


class Gate:
    """Blocks calls of a coroutine method of the store until it is opened."""

    def __init__(self, store, name, monkeypatch):
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        real = getattr(store, name)

        async def gated(*arguments, **options):
            self.entered.set()
            await self.opened.wait()
            return await real(*arguments, **options)

        monkeypatch.setattr(store, name, gated)


async def fill(service, count=400, size=5000):
    """Create sessions whose listing does not fit into the socket buffers."""
    for number in range(count):
        await service.store.create(ORIGIN, "lobby", str(number), "o" * size)


async def test_slow_reader_does_not_delay_other_clients(service):
    await fill(service)
    async with service.connect() as slow:
        await slow.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        for _ in range(5):
            assert len(await service.sessions()) == 400
        code = await service.offer()
        await service.post("/answer", code=code, side="answerer", answer="a")
        late = (await slow.receive()).json["sessions"]
    infos = [session["info"] for session in late if session["code"] != code]
    assert infos == [str(number) for number in range(399, -1, -1)]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_client_that_disconnects_during_a_listing_does_not_delay_the_drain(service):
    await fill(service)
    async with service.connect() as client:
        await client.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        await client.reader.read(100_000)
        client.writer.transport.abort()
    for _ in range(3):
        assert len(await service.sessions()) == 400
    await asyncio.wait_for(service.shared.drain(), 20)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_listing_that_fails_half_way_closes_the_connection(service, monkeypatch):
    await fill(service, count=200)
    real = service.store.sessions

    async def fail_half_way(*arguments):
        steps = 0
        async for step in real(*arguments):
            yield step
            steps += 1
            if steps == 3:
                await service.close_store()

    monkeypatch.setattr(service.store, "sessions", fail_half_way)
    async with service.connect() as connection:
        await connection.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await connection.receive()
    await asyncio.wait_for(service.shared.drain(), 20)


@pytest.mark.parametrize("cut", [1, 30, -20, -1])
async def test_incomplete_request_has_no_effect(cut, service):
    data = post_request("/lobby/offer", {"info": "i", "offer": "o"})
    for _ in range(10):
        async with service.connect() as client:
            await client.send(data[:cut])
    assert await service.sessions() == []
    await asyncio.wait_for(service.shared.drain(), 20)


async def test_request_of_a_disconnected_client_is_completed(service, monkeypatch):
    gate = Gate(service.store, "create", monkeypatch)
    async with service.connect() as client:
        await client.send(post_request("/lobby/offer", {"info": "i", "offer": "o"}))
        await gate.entered.wait()
        client.writer.transport.abort()
    gate.opened.set()
    assert await service.offer(info="next")
    assert [session["info"] for session in await service.sessions()] == ["next", "i"]
    await asyncio.wait_for(service.shared.drain(), 20)


async def test_queued_turns_do_not_delay_new_requests(service):
    turns = [service.shared.resuming.turn(number) for number in range(3000)]
    assert (await service.get("/health"))["status"] == "ok"
    assert not turns[-1].done()
    await asyncio.wait_for(turns[-1], 30)


async def test_drain_waits_for_running_requests(service, monkeypatch):
    code = await service.offer()
    gate = Gate(service.store, "answer", monkeypatch)
    answering = asyncio.create_task(service.call("POST", "/answer", {"code": code, "side": "answerer", "answer": "a"}))
    await gate.entered.wait()
    draining = asyncio.create_task(service.shared.drain())
    for _ in range(10):
        await asyncio.sleep(0)
    late = await service.call("POST", "/poll", {"code": code, "side": "offerer"})
    assert refused(late) == (503, "Service unavailable")
    assert not draining.done()
    gate.opened.set()
    assert (await answering).json == {"success": True}
    await asyncio.wait_for(draining, 20)
