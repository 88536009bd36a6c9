"""Presence: an offer that is held lives as long as its WebSocket, and a moment longer (contract C10)."""

import asyncio
import gc
import time

import pytest
from support.rpc import BOUND_S, RpcClient
from support.service import NOT_FOUND, ORIGIN, OTHER, invalid

from tornado_signal.system.clock import Clock
from tornado_signal.websocket import presence

SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


def open_socket(service, origin=ORIGIN):
    return RpcClient(f"ws://127.0.0.1:{service.port}/ws", origin)


async def until_listed(service, *codes):
    async with asyncio.timeout(BOUND_S):
        while await listed(service) != [*codes]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def listed(service):
    return [each["code"] for each in await service.sessions()]


async def hold(client, **more):
    """Publish an offer that is held; its code."""
    return (await client.call("offer", **OFFER, hold=True, **more))["code"]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_offers_of_a_connection_that_ends_are_withdrawn(how, start_service):
    service = await start_service(hold_grace_ms=200)
    kept = await service.offer()
    async with open_socket(service) as watching, open_socket(service) as client:
        await watching.call("subscribe", topic="lobby")
        codes = [await hold(client) for _ in range(3)]
        also = (await client.call("offer", **OFFER, hold=False))["code"]
        told = [(await watching.event())[1]["code"] for _ in range(5)]
        assert told == [kept, *codes, also]
        assert service.site.log.metrics.held == 3
        began_s = time.monotonic()
        await client.socket.close() if how == "close" else client.socket.transport.abort()
        gone = [(await watching.event())[:2] for _ in codes]
        assert time.monotonic() - began_s > 0.15
        assert sorted(data["code"] for _, data in gone) == sorted(codes)
        assert {(kind, data["reason"]) for kind, data in gone} == {("gone", "withdrawn")}
        assert await listed(service) == [also, kept]
        assert service.site.log.metrics.held == 0


async def test_of_an_offer_taken_over_again_and_again_one_hold_is_kept(start_service, monkeypatch):
    monkeypatch.setattr(presence, "MOST_OUTDATED", 5)
    service = await start_service(hold_grace_ms=200)
    gc.collect()
    async with open_socket(service) as client:
        code = await hold(client, secret=SECRET)
        for _ in range(50):
            await client.call("hold", code=code, secret=SECRET)
        service.clock.ms += 1000
        await client.call("refresh", code=code, side="offerer", secret=SECRET)  # it is held as before
        gc.collect()
        assert sum(type(each) is presence.Hold for each in gc.get_objects()) < 10

    await until_listed(service)


async def test_another_connection_with_the_secret_takes_an_offer_over(start_service):
    service = await start_service(hold_grace_ms=300)
    async with open_socket(service) as second:
        async with open_socket(service) as first:
            code = await hold(first, secret=SECRET)
            for params in ({"code": code}, {"code": code, "secret": "a secret that is another"}):
                assert await first.refused("hold", **params) == (404, NOT_FOUND)
            async with open_socket(service, OTHER) as stranger:
                assert await stranger.refused("hold", code=code, secret=SECRET) == (404, NOT_FOUND)
        service.clock.ms += 1000
        expires_ms = (await second.call("hold", code=code, secret=SECRET))["expiresAt"]
        assert expires_ms == (await service.sessions())[0]["expiresAt"] == service.clock.ms + 300_000
        await asyncio.sleep(0.5)
        assert await listed(service) == [code]
        async with open_socket(service) as third:
            await third.call("hold", code=code, secret=SECRET)
            await second.socket.close()
            await asyncio.sleep(0.5)
            assert await listed(service) == [code]
            assert service.site.log.metrics.held == 1

    await until_listed(service)


async def test_a_held_offer_outlives_its_lifetime_until_it_is_answered(start_service):
    service = await start_service(session_timeout_ms=1000, clock=Clock(), sweep_interval_ms=50)
    async with open_socket(service) as client:
        held, answered = [await hold(client) for _ in range(2)]
        await service.offer()
        await service.post("/answer", code=answered, side="answerer", answer="a")

        await until_listed(service, held)
        assert service.site.log.metrics.held == 1
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            assert await listed(service) == [held]
            await asyncio.sleep(0.05)
        assert await client.refused("poll", code=answered, side="offerer") == (404, NOT_FOUND)


async def test_the_end_of_a_connection_ends_no_answered_or_moved_session(start_service):
    service = await start_service(hold_grace_ms=100)
    async with open_socket(service) as client:
        answered, moved, withdrawn = [await hold(client) for _ in range(3)]
        assert await client.call("withdraw", code=withdrawn, side="offerer") == {"success": True}
        assert service.site.log.metrics.held == 2
    await service.post("/answer", code=answered, side="answerer", answer="a")
    service.clock.ms += 1
    await service.post("/refresh", code=moved, side="offerer")

    async with asyncio.timeout(BOUND_S):
        while service.site.log.metrics.held:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await listed(service) == [moved]
    assert (await service.post("/poll", code=answered, side="offerer"))["answer"] == "a"


async def test_a_server_that_stops_withdraws_nothing(start_service):
    service = await start_service(hold_grace_ms=50)
    async with open_socket(service) as client:
        code = await hold(client)
        service.site.stopping = True
    await asyncio.sleep(0.2)
    assert await listed(service) == [code]


async def test_a_connection_holds_so_many_that_are_not_answered(service, monkeypatch):
    monkeypatch.setattr(presence, "MAX_HELD", 3)
    async with open_socket(service) as client:
        codes = [await hold(client) for _ in range(3)]
        assert await client.refused("offer", **OFFER, hold=True) == (429, "Too many requests")
        assert await client.refused("offer", **OFFER, hold="yes") == (400, invalid("hold"))
        assert len(await listed(service)) == 3
        await service.post("/answer", code=codes[1], side="answerer", answer="a")
        await hold(client)
        assert await client.refused("hold", code=codes[0]) == (429, "Too many requests")
