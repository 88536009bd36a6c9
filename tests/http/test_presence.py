"""Held offers: they exist as long as their WebSocket and a grace period (docs/websocket-api.md#held-offers)."""

import asyncio
import contextlib
import gc
import signal
import time
from unittest import mock

import pytest
from support.rpc import BOUND_S, open_socket, until
from support.scraping import scrape
from support.service import NOT_FOUND, OTHER

from tornado_signal.errors import Unavailable
from tornado_signal.system.lifecycle import LEAVING
from tornado_signal.websocket import presence

SECRET = "a secret of the offerer"
OFFER = {"topic": "lobby", "info": "i", "offer": "o"}


async def listed(service):
    return [session["code"] for session in await service.sessions()]


async def hold(client, **more):
    return (await client.call("offer", **OFFER, hold=True, **more))["code"]


@pytest.mark.parametrize("closing", ["close", "abort"])
async def test_offers_of_a_closed_connection_are_withdrawn_after_the_grace_period(closing, start_service, pass_time):
    service = await start_service(hold_grace_ms=10_000)
    unheld_before = await service.offer()
    async with open_socket(service) as watching, open_socket(service) as client:
        await watching.call("subscribe", topic="lobby")
        codes = [await hold(client) for _ in range(3)]
        unheld_after = (await client.call("offer", **OFFER, hold=False))["code"]
        listed_codes = [(await watching.event())[1]["code"] for _ in range(5)]
        assert listed_codes == [unheld_before, *codes, unheld_after]
        assert service.shared.log.metrics.held == 3
        await client.socket.close() if closing == "close" else client.close()
        await until(lambda: len(service.server.state.connections) == 1)
        await pass_time(9)
        assert len(await listed(service)) == 5
        await pass_time(2)
        gone = [(await watching.event())[:2] for _ in codes]
        assert sorted(data["code"] for _, data in gone) == sorted(codes)
        assert {(kind, data["reason"]) for kind, data in gone} == {("gone", "withdrawn")}
        assert await listed(service) == [unheld_after, unheld_before]
        assert service.shared.log.metrics.held == 0


def hold_objects():
    gc.collect()
    return sum(type(obj) is presence.Hold for obj in gc.get_objects())


async def test_another_connection_with_the_secret_takes_over_an_offer_and_holds_do_not_accumulate(
    start_service, pass_time
):
    service = await start_service(hold_grace_ms=10_000, codes="content")
    async with open_socket(service) as second:
        async with open_socket(service) as first:
            code = await hold(first, secret=SECRET)
            assert (await hold(first, secret=SECRET), service.shared.log.metrics.held) == (code, 1)  # the same content
            for params in ({"code": code}, {"code": code, "secret": "a secret that is another"}):
                assert await first.refused("hold", **params) == (404, NOT_FOUND)
            async with open_socket(service, OTHER) as stranger:
                assert await stranger.refused("hold", code=code, secret=SECRET) == (404, NOT_FOUND)
        service.clock.ms += 1000
        expires_ms = (await second.call("hold", code=code, secret=SECRET))["expiresAt"]
        assert expires_ms == (await service.sessions())[0]["expiresAt"] == service.clock.ms + 300_000
        await pass_time(15)
        assert await listed(service) == [code]
        async with open_socket(service) as third:
            before = hold_objects()  # also those of other tests
            for _ in range(50):
                await third.call("hold", code=code, secret=SECRET)
            await third.call("refresh", code=code, side="offerer", secret=SECRET)  # the offer stays held
            assert (service.shared.log.metrics.held, hold_objects() - before < 10) == (1, True)
            await second.socket.close()
            await pass_time(15)
            assert await listed(service) == [code]
            assert service.shared.log.metrics.held == 1
    await pass_time(15)
    await until(lambda: not service.shared.log.metrics.held)
    assert await listed(service) == []


async def live(service, pass_time, seconds=100):
    """Turn the clocks of the loop and of the store, and let held offers be renewed and others expire."""
    for _ in range(seconds // 5):
        service.clock.ms += 5000
        await pass_time(5)
        await until(lambda: not service.shared._tasks)  # the renewals that are due
        await service.store.sweep(service.clock.ms)


async def test_held_offer_outlives_its_ttl_although_it_is_refreshed_until_it_is_answered(start_service, pass_time):
    service = await start_service(hold_grace_ms=0, session_timeout_ms=1000)
    async with open_socket(service) as client, open_socket(service) as other:
        *codes, answered = [await hold(client) for _ in range(5)]
        await service.offer()
        await service.post("/refresh", code=codes[0], side="offerer")
        await service.post("/refresh", code=codes[1], side="answerer")
        await other.call("refresh", code=codes[2], side="answerer")
        await service.post("/answer", code=answered, side="answerer", answer="a")
        await live(service, pass_time)
        assert await listed(service) == codes[::-1]
        assert service.shared.log.metrics.held == 4
        assert await client.refused("poll", code=answered, side="offerer") == (404, NOT_FOUND)
    await until(lambda: not service.shared.log.metrics.held)
    assert await listed(service) == []


async def test_held_offers_are_renewed_rarely_even_with_a_short_ttl_and_after_an_internal_error(
    service, monkeypatch, pass_time, caplog
):
    renewals, renew = [], service.store.renew

    async def recording_renew(*args):
        renewals.append(args)
        if len(renewals) == 1:
            raise KeyError
        return await renew(*args)

    monkeypatch.setattr(service.store, "renew", recording_renew)
    async with open_socket(service) as client:
        codes = [await hold(client, ttl=1000) for _ in range(20)]
        expiries = {session["expiresAt"] - session["createdAt"] for session in await service.sessions()}
        assert expiries == {40_000}
        await live(service, pass_time, 15)
        assert (await listed(service), renewals) == (codes[::-1], [])
        await live(service, pass_time, 200)
        assert await listed(service) == codes[::-1]
        assert len(renewals) <= 11 * len(codes)
    assert "KeyError" in caplog.text
    caplog.clear()


async def test_held_offers_count_towards_the_session_limit_of_an_address(start_service, monkeypatch):
    service = await start_service(unlimited_addresses=(), max_sessions_per_address=10, hold_grace_ms=50)
    async with open_socket(service) as first, open_socket(service) as second:
        codes = [await hold(client) for client in (first, second) for _ in range(5)]
        for _ in range(20):  # publications leave the limit's time window while the offers stay held
            service.clock.ms += service.settings.session_timeout_ms // 10
            await asyncio.gather(*(first.call("refresh", code=code, side="offerer") for code in codes))
        assert await second.refused("offer", **OFFER, hold=True) == (429, "Too many requests")
        assert await second.refused("hold", code=codes[0]) == (429, "Too many requests")
        await first.call("withdraw", code=codes[0], side="offerer")
        assert await second.refused("hold", code=codes[0]) == (404, NOT_FOUND)
        with monkeypatch.context() as patch:
            patch.setattr(service.store, "create", mock.AsyncMock(side_effect=Unavailable("busy")))
            assert (await second.refused("offer", **OFFER, hold=True))[0] == 503
        await hold(second)
    await until(lambda: not service.shared.log.metrics.held)
    assert service.shared.limits.client("127.0.0.1").held == 0


async def test_connection_holds_few_unanswered_offers_and_a_stopping_server_does_not_withdraw_them(
    service, monkeypatch, pass_time
):
    monkeypatch.setattr(presence, "MAX_HELD", 3)
    async with open_socket(service) as client:
        futures = [client.send("offer", **OFFER, hold=True) for _ in range(10)]  # at once
        responses = await asyncio.wait_for(asyncio.gather(*futures), BOUND_S)
        codes = [response["result"]["code"] for response in responses if "result" in response]
        assert len(await listed(service)) == len(codes) == service.shared.log.metrics.held == 3
        assert await client.refused("offer", **OFFER, hold=True) == (429, "Too many requests")
        assert len(await listed(service)) == 3
        await service.post("/answer", code=codes[1], side="answerer", answer="a")
        await hold(client)
        assert await client.refused("hold", code=codes[0]) == (429, "Too many requests")
        service.shared.lifecycle.reach(LEAVING)
    await until(lambda: not service.server.state.connections)
    await pass_time(2 * service.settings.hold_grace_ms / 1000)
    assert len(await listed(service)) == 3


async def test_restart_closes_websockets_with_1012_and_keeps_offers_and_cursors(start):
    server = start("--admin-port", 0)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(open_socket(server)) for _ in range(30)]
        code = (await clients[0].call("offer", **OFFER, secret=SECRET, hold=True))["code"]
        await clients[1].call("subscribe", topic="lobby")
        _, _, cursor = await clients[1].event()
        waiting = clients[2].send("poll", code=code, side="offerer", secret=SECRET, wait=60)
        await clients[2].call("health")  # which came after that
        found = scrape(server.admin_url)
        assert (found.one("websockets"), found.one("held_offers")) == (30, 1)
        assert found.one("requests", "/:topic/offer", "WS", "200") == 1
        server.process.send_signal(signal.SIGTERM)
        assert (await waiting)["result"]["answerCandidates"] == []

        async def end(client):
            return await client.closed(), time.monotonic()

        codes, times_s = zip(*await asyncio.gather(*map(end, clients)), strict=True)
        assert set(codes) == {1012}
        assert max(times_s) - min(times_s) > 1.2  # of two seconds, at random
    assert server.wait() == 0
    server = start("--hold-grace-ms", 100)
    async with open_socket(server) as back, open_socket(server) as watching:
        await back.call("hold", code=code, secret=SECRET)
        await watching.call("subscribe", topic="lobby", since=cursor)
        other = (await back.call("offer", **OFFER))["code"]
        known = []  # a reader from before a restart gets the listing again
        while (event := await watching.event())[1].get("code") != other:
            known.append((event[0], event[1].get("code")))
        assert known[:2] == [("reset", None), ("session", code)]
        await back.socket.close()
        assert (await watching.event())[:2] == ("gone", {"code": code, "reason": "withdrawn"})
    assert server.stop() == 0
