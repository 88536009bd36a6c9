"""GET /nearby: one topic for each network and origin, which changes daily."""

import ipaddress
import re

from support.rpc import RpcClient
from support.service import NOW_MS, ORIGIN, refused

DAY_MS = 86_400_000
OTHER = "https://other.example"
PROXY = (ipaddress.ip_network("127.0.0.1"),)


async def nearby(service, address="192.0.2.1", origin=ORIGIN):
    headers = [("X-Forwarded-For", address)]
    return (await service.get("/nearby", origin=origin, headers=headers))["topic"]


async def test_topic_belongs_to_a_network_and_an_origin(start_service):
    service = await start_service(trusted_proxies=PROXY)
    topics = {}
    for network, addresses in {
        "v4": [
            "8.8.8.8",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808:5::1",
            "1.1.1.1, 8.8.8.8",
            "fe80::1, 8.8.8.8",
        ],
        "other v4": ["8.8.8.9"],
        "v6": ["2a00:1450:1:2::1", "2a00:1450:1:2:ffff:ffff:ffff:ffff"],
        "other v6": ["2a00:1450:1:3::1"],
        "local": ["192.168.1.2", "10.0.0.1", "fd00::1", "fe80::1", "127.0.0.1", "::1"],
        "carrier": ["100.64.0.1"],
        "other carrier": ["100.64.0.2"],
    }.items():
        (topics[network],) = {await nearby(service, address) for address in addresses}
    assert all(re.fullmatch("nearby-[0-9a-f]{32}", topic) for topic in topics.values())
    elsewhere = await nearby(service, "8.8.8.8", OTHER)
    assert len({*topics.values(), elsewhere}) == len(topics) + 1
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        assert (await client.ask("nearby"))["result"] == {"topic": topics["local"]}


async def test_address_cannot_be_forged(start_service):
    service = await start_service(trusted_proxies=(ipaddress.ip_network("10.0.0.0/8"),), unlimited_addresses=())
    assert await nearby(service, "8.8.8.8") == await nearby(service, "8.8.4.4")


async def test_clients_behind_an_unknown_proxy_have_no_network(start_service):
    service = await start_service()
    headers = [("X-Forwarded-For", "8.8.8.8")]
    assert refused(await service.call("GET", "/nearby", headers=headers)) == (404, "Not found")
    assert refused(await service.call("GET", "/nearby")) == (404, "Not found")


async def test_topic_changes_daily_without_separating_those_in_it(start_service):
    for prefix in ("", "room~", "pair~"):
        service = await start_service()
        service.clock.ms = first_ms = (NOW_MS // DAY_MS + 1) * DAY_MS
        before = await nearby_here(service)
        service.clock.ms += DAY_MS - 1
        assert await nearby_here(service) == before
        code = await service.offer(prefix + before)
        service.clock.ms = first_ms + DAY_MS
        assert await nearby_here(service) == before
        after = await nearby_here(service, OTHER)
        await service.post("/withdraw", code=code, side="offerer")
        assert await nearby_here(service) not in (before, after)
        await service.offer(prefix + before)
        service.clock.ms = first_ms + 2 * DAY_MS
        await service.offer(prefix + before)
        assert await nearby_here(service) != before


async def nearby_here(service, origin=ORIGIN):
    return (await service.get("/nearby", origin=origin))["topic"]


async def test_no_nearby(start_service):
    service = await start_service(nearby=False)
    assert refused(await service.call("GET", "/nearby")) == (404, "Not found")
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        assert (await client.ask("nearby"))["error"]["code"] == 404


async def test_secret_belongs_to_the_store(start_service):
    one, other = await start_service(), await start_service()
    assert await nearby_here(one) != await nearby_here(other)
    assert len(one.store.secret) == 32
