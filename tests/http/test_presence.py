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
    """A client's connection."""
    return RpcClient(f"ws://127.0.0.1:{service.port}/ws", origin)


async def until(condition):
    """Wait for what the server does on its own."""
    async with asyncio.timeout(BOUND_S):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def listed(service):
    """The codes of the topic."""
    return [each["code"] for each in await service.sessions()]


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_the_end_of_a_connection(how, start_service):
    """However it ends, its offers are withdrawn after the grace period; what is not held stays."""
    service = await start_service(hold_grace_ms=200)
    kept = await service.offer()
    async with open_socket(service) as watching, open_socket(service) as client:
        await watching.call("subscribe", topic="lobby")
        codes = [(await client.call("offer", **OFFER, hold=True))["code"] for _ in range(3)]
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


async def test_refreshed_by_its_owner(start_service):
    """A held offer that its owner refreshes is held as before."""
    service = await start_service(hold_grace_ms=200)
    async with open_socket(service) as client:
        code = (await client.call("offer", **OFFER, secret=SECRET, hold=True))["code"]
        service.clock.ms += 1000
        await client.call("refresh", code=code, side="offerer", secret=SECRET)

    async def nothing_listed():
        return not await listed(service)

    await until(nothing_listed)


async def test_taken_over_again_and_again(start_service, monkeypatch):
    """However often an offer is taken over, no more is kept of it than one hold; that ends like any other."""
    monkeypatch.setattr(presence, "MOST_OUTDATED", 5)
    service = await start_service(hold_grace_ms=200)
    gc.collect()
    async with open_socket(service) as client:
        code = (await client.call("offer", **OFFER, secret=SECRET, hold=True))["code"]
        for _ in range(50):
            await client.call("hold", code=code, secret=SECRET)
        gc.collect()
        assert sum(type(each) is presence.Hold for each in gc.get_objects()) < 10

    async def nothing_listed():
        return not await listed(service)

    await until(nothing_listed)


async def test_taken_over(start_service):
    """Another connection with the secret takes an offer over in time, also from one that has not ended."""
    service = await start_service(hold_grace_ms=300)
    async with open_socket(service) as first:
        code = (await first.call("offer", **OFFER, secret=SECRET, hold=True))["code"]
        for params in ({"code": code}, {"code": code, "secret": "a secret that is another"}):
            assert await first.refused("hold", **params) == (404, NOT_FOUND)
        async with open_socket(service, OTHER) as stranger:
            assert await stranger.refused("hold", code=code, secret=SECRET) == (404, NOT_FOUND)
    async with open_socket(service) as second:
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

    async def nothing_listed():
        return await listed(service) == []

    await until(nothing_listed)


async def test_renewed(start_service):
    """A held offer outlives its lifetime as long as its connection is there; answered it ends as any."""
    service = await start_service(session_timeout_ms=1000, clock=Clock(), sweep_interval_ms=50)
    async with open_socket(service) as client:
        held, answered = [(await client.call("offer", **OFFER, hold=True))["code"] for _ in range(2)]
        await service.offer()
        await service.post("/answer", code=answered, side="answerer", answer="a")

        async def only_held():
            return await listed(service) == [held] and service.site.log.metrics.held == 1

        await until(only_held)
        until_s = time.monotonic() + 2
        while time.monotonic() < until_s:
            assert await listed(service) == [held]
            await asyncio.sleep(0.05)
        assert await client.refused("poll", code=answered, side="offerer") == (404, NOT_FOUND)


async def test_what_is_not_withdrawn(start_service):
    """The end of a connection ends no session that is answered, nor one whose expiry another process has moved."""
    service = await start_service(hold_grace_ms=100)
    async with open_socket(service) as client:
        answered, moved, withdrawn = [(await client.call("offer", **OFFER, hold=True))["code"] for _ in range(3)]
        assert await client.call("withdraw", code=withdrawn, side="offerer") == {"success": True}
        assert service.site.log.metrics.held == 2
    await service.post("/answer", code=answered, side="answerer", answer="a")
    service.clock.ms += 1
    await service.post("/refresh", code=moved, side="offerer")

    async def none_held():
        return service.site.log.metrics.held == 0

    await until(none_held)
    assert await listed(service) == [moved]
    assert (await service.post("/poll", code=answered, side="offerer"))["answer"] == "a"


async def test_a_server_that_stops(start_service):
    """It withdraws nothing: the clients come back to the next one."""
    service = await start_service(hold_grace_ms=50)
    async with open_socket(service) as client:
        code = (await client.call("offer", **OFFER, hold=True))["code"]
        service.site.stopping = True
    await asyncio.sleep(0.2)
    assert await listed(service) == [code]


async def test_no_end_of_held_offers(service, monkeypatch):
    """A connection holds so many; those that were answered do not count."""
    monkeypatch.setattr(presence, "MAX_HELD", 3)
    async with open_socket(service) as client:
        codes = [(await client.call("offer", **OFFER, hold=True))["code"] for _ in range(3)]
        assert await client.refused("offer", **OFFER, hold=True) == (429, "Too many requests")
        assert await client.refused("offer", **OFFER, hold="yes") == (400, invalid("hold"))
        assert len(await listed(service)) == 3
        await service.post("/answer", code=codes[1], side="answerer", answer="a")
        await client.call("offer", **OFFER, hold=True)
        assert await client.refused("hold", code=codes[0]) == (429, "Too many requests")
