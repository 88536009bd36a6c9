"""What happens at the same moment: answers, candidates, offers, slow readers, clients that leave, and the end."""

import asyncio
import json
from collections import Counter

import pytest
from support.service import ORIGIN, TRANSPORTS, head, refused, with_origin


@pytest.fixture(params=["os", "fsync"])
def durable(request, io_loop, start_service):
    """A server of each durability: the moment at which a change is settled differs."""
    return io_loop.run_sync(lambda: start_service(durability=request.param))


def posting(path, body):
    data = json.dumps(body).encode()
    return head("POST", path, with_origin(ORIGIN, [("Content-Length", len(data))])) + data


class Gate:
    """Lets calls of one of the store's coroutines wait until it is opened."""

    def __init__(self, store, name, monkeypatch):
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        real = getattr(store, name)

        async def waiting(*arguments, **options):
            self.entered.set()
            await self.opened.wait()
            return await real(*arguments, **options)

        monkeypatch.setattr(store, name, waiting)


async def test_of_fifty_different_answers_at_once_one_wins_and_may_be_repeated(durable):
    code = await durable.offer()
    bodies = [{"code": code, "side": "answerer", "answer": str(number)} for number in range(50)]
    responses = await asyncio.gather(*(durable.call("POST", "/answer", body) for body in bodies))
    assert Counter(each.status for each in responses) == {200: 1, 409: 49}
    winner = [each.status for each in responses].index(200)
    assert (await durable.post("/poll", code=code, side="offerer"))["answer"] == str(winner)
    assert await durable.sessions() == []
    retries = await asyncio.gather(*(durable.call("POST", "/answer", bodies[winner]) for _ in range(20)))
    assert [each.status for each in retries] == [200] * 20


async def test_fifty_candidates_of_each_side_and_an_answer_at_once_are_all_kept(durable):
    code = await durable.offer()
    sent = [(side, f"{side} {number}") for number in range(50) for side in ("offerer", "answerer")]
    bodies = [{"code": code, "side": side, "candidate": text} for side, text in sent]
    bodies.insert(50, {"code": code, "side": "answerer", "answer": "a"})
    responses = await asyncio.gather(*(durable.call("POST", "/answer", body) for body in bodies))
    assert {each.status for each in responses} == {200}
    found = await durable.post("/poll", code=code, side="offerer")
    assert found["answer"] == "a"
    assert sorted(found["answerCandidates"]) == sorted(text for side, text in sent if side == "answerer")
    found = await durable.post("/poll", code=code, side="answerer")
    assert sorted(found["offerCandidates"]) == sorted(text for side, text in sent if side == "offerer")


async def test_a_poll_sees_all_that_an_earlier_one_saw(durable):
    code = await durable.offer()
    seen = []

    async def poll():
        found = (await durable.post("/poll", code=code, side="offerer"))["answerCandidates"]
        assert found[: len(seen[-1])] == seen[-1] if seen else True
        seen.append(found)

    async def send(number):
        await durable.post("/answer", code=code, side="answerer", candidate=str(number))

    async with asyncio.TaskGroup() as group:
        sending = [group.create_task(send(number)) for number in range(50)]
        while not all(each.done() for each in sending):
            await poll()
    await poll()
    assert sorted(seen[-1], key=int) == [str(number) for number in range(50)]


async def test_a_hundred_offers_at_once_are_all_listed_and_counted(durable):
    codes = await asyncio.gather(*(durable.offer(f"t{number % 4}", info=str(number)) for number in range(100)))
    assert len(set(codes)) == 100
    assert await durable.topics() == [(f"t{number}", 25) for number in range(4)]
    listed = [each["code"] for number in range(4) for each in await durable.sessions(f"t{number}")]
    assert sorted(listed) == sorted(codes)


async def test_twenty_pairs_meet_at_once_while_the_sweep_goes_on(durable):
    async def pair(number):
        code = await durable.offer(info=str(number))
        for side in ("offerer", "answerer"):
            await durable.post("/answer", code=code, side=side, candidate=f"{side} {number}")
        assert code in [each["code"] for each in await durable.sessions()]
        await durable.post("/answer", code=code, side="answerer", answer=str(number))
        found = await durable.post("/poll", code=code, side="offerer")
        assert found == {"answer": str(number), "answerCandidates": [f"answerer {number}"]}
        assert code not in [each["code"] for each in await durable.sessions()]

    for number in range(300):
        await durable.store.create(ORIGIN, "old", "i", "o")
        if number == 299:
            durable.clock.ms += durable.settings.session_timeout_ms
    pairs = asyncio.gather(*map(pair, range(20)))
    while await durable.store.expiry.sweep(durable.clock.ms):
        pass
    await pairs
    assert await durable.topics() == []


async def fill(service, count=400, size=5000):
    """So many sessions that a listing of them cannot be sent in one go."""
    for number in range(count):
        await service.store.create(ORIGIN, "lobby", str(number), "o" * size)


async def test_a_slow_reader_keeps_nobody_waiting(service):
    await fill(service)
    async with service.connect() as slow:
        await slow.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        for _ in range(5):
            assert len(await service.sessions()) == 400
        code = await service.offer()
        await service.post("/answer", code=code, side="answerer", answer="a")
        late = (await slow.receive()).json["sessions"]
    infos = [each["info"] for each in late if each["code"] != code]
    assert infos == [str(number) for number in range(399, -1, -1)]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("read", [0, 100_000])
async def test_who_leaves_in_the_middle_of_a_listing_holds_up_no_stop(read, service):
    await fill(service)
    async with service.connect() as leaver:
        await leaver.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        await leaver.reader.read(read or 1)
        leaver.writer.transport.abort()
    for _ in range(3):
        assert len(await service.sessions()) == 400
    await asyncio.wait_for(service.shared.drain(), 20)


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_listing_that_fails_half_way_ends_the_connection(service, monkeypatch):
    await fill(service, count=200)
    real = service.store.sessions

    async def half(*arguments):
        steps = 0
        async for step in real(*arguments):
            yield step
            steps += 1
            if steps == 3:
                await service.close_store()

    monkeypatch.setattr(service.store, "sessions", half)
    async with service.connect() as connection:
        await connection.send(head("GET", "/lobby/sessions", with_origin(ORIGIN)))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError, ValueError)):
            await connection.receive()
    await asyncio.wait_for(service.shared.drain(), 20)


@pytest.mark.parametrize("cut", [1, 30, -20, -1])
async def test_who_leaves_before_the_request_is_whole_has_done_nothing(cut, service):
    data = posting("/lobby/offer", {"info": "i", "offer": "o"})
    for _ in range(10):
        async with service.connect() as leaver:
            await leaver.send(data[:cut])
    assert await service.sessions() == []
    await asyncio.wait_for(service.shared.drain(), 20)


async def test_what_somebody_left_behind_is_done_all_the_same(service, monkeypatch):
    gate = Gate(service.store, "create", monkeypatch)
    async with service.connect() as leaver:
        await leaver.send(posting("/lobby/offer", {"info": "i", "offer": "o"}))
        await gate.entered.wait()
        leaver.writer.transport.abort()
    gate.opened.set()
    assert await service.offer(info="next")
    assert [each["info"] for each in await service.sessions()] == ["next", "i"]
    await asyncio.wait_for(service.shared.drain(), 20)


async def test_what_waits_holds_up_no_new_request(service):
    turns = [service.shared.turns.turn(number) for number in range(3000)]
    assert (await service.get("/health"))["status"] == "ok"
    assert not turns[-1].done()
    await asyncio.wait_for(turns[-1], 30)


async def test_the_drain_waits_for_what_is_under_way(service, monkeypatch):
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
