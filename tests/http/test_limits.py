"""Limits: what each client may ask for, what there may be in all, and that refusing changes nothing."""

import asyncio
import contextlib
import dataclasses
import ipaddress
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.service import NO_SUCH_CODE, ORIGIN, OTHER, Connection, Service, head, invalid, with_origin

from tornado_signal.errors import TooMany, Unavailable
from tornado_signal.http import application as request
from tornado_signal.limits import per_address as limits_module
from tornado_signal.limits.per_address import (
    ADMIN_CONNECTIONS,
    SPARE_ARRIVALS,
    SPARE_CONNECTIONS,
    SPARE_CONNECTIONS_PER_CLIENT,
    AdminConnectionLimiter,
    Limits,
    TokenBucket,
)
from tornado_signal.settings.settings import Settings

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
TOO_MANY = {"error": "Too many requests"}
UNAVAILABLE = {"error": "Service unavailable"}


def strict(**settings):
    """Limits that hold for every address."""
    return Limits(Settings(unlimited_addresses=(), **settings))


# The counting.


@given(st.integers(1, 50), st.integers(1, 1000), st.lists(st.integers(0, 3000), max_size=200))
def test_a_bucket(most, per_s, pauses_ms):
    """Over any time no more is given out than the bucket held and what came back meanwhile, and not much less."""
    bucket = TokenBucket(most)
    began_ms = now_ms = 1_700_000_000_000
    given = 0
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        wait_s = bucket.take(most, per_s / 1000, now_ms)
        given += not wait_s
        assert given <= most + (now_ms - began_ms) * per_s / 1000 + 1e-6
        if wait_s:
            assert bucket.take(most, per_s / 1000, now_ms + wait_s * 1000) == 0
            now_ms += wait_s * 1000
            given += 1


def test_clients_are_apart():
    """Each IPv4 address and each IPv6 /64 has its own tokens; a mapped address is the IPv4 address."""
    limits = strict(burst_per_address=2)
    same = [["192.0.2.1", "::ffff:192.0.2.1"], ["192.0.2.2"], ["2001:db8::1", "2001:db8::ffff:1"], ["2001:db8:0:1::1"]]
    for addresses in same:
        found = [limits.request(addresses[number % len(addresses)], 0) for number in range(3)]
        assert found == [0, 0, 1]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "", "not an address"])
def test_who_has_no_limit(address):
    """Loopback, trusted proxies and Unix sockets are not clients: others are behind them."""
    proxies = (ipaddress.ip_network("10.0.0.0/8"),)
    limits = Limits(Settings(burst_per_address=1, max_waiting_per_address=1, trusted_proxies=proxies))
    for _ in range(9):
        assert limits.request(address, 0) == 0
        limits.publish(address, 0)
        limits.wait(address)
        assert limits.connected(address, 0) == 0


def test_other_settings():
    """Other limits count at once, with what is open; an address gets them, or gets rid of them, when it has nothing."""
    limits = strict(max_connections_per_address=1, burst_per_address=1)
    address, other = "2001:db8::1", "192.0.2.2"
    assert limits.connected(address, 0) == 0
    assert limits.request(other, 0) == 0
    assert [limits.connected(address, 0), limits.request(other, 0)] == [429, 1]
    limits.disconnected(address, 429)
    limits.apply(dataclasses.replace(limits._settings, max_connections_per_address=2))
    assert [limits.connected(address, 0), limits.connected(address, 0)] == [0, 429]
    limits.disconnected(address, 429)
    networks = tuple(ipaddress.ip_network(each) for each in (address, other))
    limits.apply(dataclasses.replace(limits._settings, unlimited_addresses=networks))
    assert [limits.request(other, 0) for _ in range(3)] == [0, 0, 0]
    assert limits.connected(address, 0) == 429  # for what it has open
    limits.disconnected(address, 429)
    for _ in range(2):
        limits.disconnected(address, 0)
    assert [limits.connected(address, 0) for _ in range(3)] == [0, 0, 0]
    neighbour = "2001:db8::2"
    assert [limits.connected(neighbour, 0) for _ in range(3)] == [0, 0, 429]
    limits.wait(address)
    limits.apply(dataclasses.replace(limits._settings, unlimited_addresses=()))
    assert [limits.request(other, 0), limits.request(other, 0)] == [0, 1]
    for _ in range(3):
        assert limits.connected(address, 0) == 0
        limits.disconnected(address, 0)
        limits.disconnected(address, 0)
    assert limits.connected(address, 0) == 0
    limits.disconnected(address, 0)
    limits.waited(address)
    assert limits.connected(address, 0) == 429  # as the neighbour, with which it has been one client
    limits.disconnected(neighbour, 0)
    assert limits.connected(address, 0) == 0
    assert (limits.connections, limits.waiting) == (2, 0)
    limits.apply(dataclasses.replace(limits._settings, max_connections=2))
    assert limits.connected(other, 0) == 503


def test_memory_is_bounded(monkeypatch):
    """Whatever addresses come, so many are kept; of those that have something open nothing is forgotten."""
    monkeypatch.setattr(limits_module, "CLIENTS_KEPT", 100)
    limits = strict(max_connections_per_address=1)
    assert limits.connected("2001:db8::1", 0) == 0
    for number in range(1000):
        limits.request(f"2001:db8:1:{number:x}::1", 0)
        limits.request(f"2001:db8:2::{number:x}", 0)
        assert len(limits._by_address) <= 101
        assert len(limits._clients) <= 101
    assert limits.connected("2001:db8::2", 0) == 429
    limits.disconnected("2001:db8::1", 0)
    limits.disconnected("2001:db8::2", 429)
    assert limits.connected("2001:db8::3", 0) == 0


def test_sessions_of_an_address():
    """An address publishes so many sessions in the lifetime of one, and then one whenever one of them is through."""
    limits = strict(max_sessions_per_address=10, session_timeout_ms=100_000)
    for _ in range(10):
        limits.publish("192.0.2.1", 0)
    with pytest.raises(TooMany) as refused:
        limits.publish("192.0.2.1", 0)
    assert refused.value.retry_after_s == 10
    limits.publish("192.0.2.2", 0)
    limits.publish("192.0.2.1", 10_000)
    with pytest.raises(TooMany):
        limits.publish("192.0.2.1", 10_001)


def test_connections_in_all():
    """Above the most some are told so, above those nobody is, and each that goes makes room."""
    limits = strict(max_connections=5, max_connections_per_address=1000)
    assert [limits.connected(f"192.0.2.{number}", 0) for number in range(5)] == [0] * 5
    others = [f"198.51.100.{number}" for number in range(SPARE_CONNECTIONS)]
    assert [limits.connected(each, 0) for each in others] == [503] * SPARE_CONNECTIONS
    assert limits.connected("192.0.2.9", 0) is None
    for each in others:
        limits.disconnected(each, 503)
    assert limits.connected("192.0.2.9", 0) == 503
    limits.disconnected("192.0.2.9", 503)
    limits.disconnected("192.0.2.0", 0)
    assert limits.connected("192.0.2.9", 0) == 0
    assert Limits(Settings(max_connections=5), 0).connected("192.0.2.1", 0) == 503


def test_an_address_with_too_many_takes_no_room_of_others():
    """Connections beyond those of an address are not counted in all, and a few at a time are told so."""
    limits = strict(max_connections=60, max_connections_per_address=5)
    found = [limits.connected("192.0.2.1", 0) for _ in range(70)]
    assert found == [0] * 5 + [429] * SPARE_CONNECTIONS_PER_CLIENT + [None] * (65 - SPARE_CONNECTIONS_PER_CLIENT)
    assert [limits.connected(f"192.0.2.{number}", 0) for number in range(2, 57)] == [0] * 55
    assert limits.connected("192.0.2.99", 0) == 503


def test_connections_of_the_operator():
    """On the operator's listener so many are served, wherever they are from, and a few more are told."""
    limits = AdminConnectionLimiter()
    assert [limits.connected("127.0.0.1", 0) for _ in range(ADMIN_CONNECTIONS)] == [0] * ADMIN_CONNECTIONS
    others = [limits.connected("", 0) for _ in range(10)]
    assert others == [503] * SPARE_CONNECTIONS_PER_CLIENT + [None] * (10 - SPARE_CONNECTIONS_PER_CLIENT)
    limits.disconnected("127.0.0.1", 0)
    limits.disconnected("", 503)
    assert [limits.connected("127.0.0.1", 0) for _ in range(3)] == [0, 503, None]
    assert (limits.connections, limits.refused) == (ADMIN_CONNECTIONS, SPARE_CONNECTIONS_PER_CLIENT)


def test_connections_at_once():
    """An address that opens connections again and again is told of its rate, and then shut out for a while."""
    limits = strict(burst_per_address=10, rate_per_address=1)
    for _ in range(20 + SPARE_ARRIVALS):
        assert limits.connected("192.0.2.1", 0) == 0
        limits.disconnected("192.0.2.1", 0)
    assert limits.connected("192.0.2.1", 499) is None
    assert limits.connected("192.0.2.2", 499) == 0
    assert limits.connected("192.0.2.1", 1000) == 0


def test_bytes_of_an_address():
    """An address stores so many bytes in the lifetime of a session, all of a request or nothing."""
    limits = strict(max_bytes_per_address=10_000, session_timeout_ms=100_000)
    limits.store("192.0.2.1", 9_000, 0)
    with pytest.raises(TooMany) as refused:
        limits.store("192.0.2.1", 2_000, 0)
    assert (refused.value.reason, refused.value.retry_after_s) == ("bytes of an address", 10)
    limits.store("192.0.2.1", 1_000, 0)
    limits.store("192.0.2.2", 9_000, 0)
    limits.store("192.0.2.1", 1_000, 10_000)


def test_going_on_after_refusals():
    """A client that is told to wait, and goes on at more than its rate all the same, is known by that."""
    limits = strict(burst_per_address=5, rate_per_address=5)
    assert [limits.goes_on("192.0.2.1", 0) for _ in range(6)] == [False] * 5 + [True]
    assert not limits.goes_on("192.0.2.1", 1000)
    assert not limits.goes_on("127.0.0.1", 1000)


def test_waiting():
    """So many requests wait, of an address and in all; who stops waiting makes room."""
    limits = strict(max_waiting=3, max_waiting_per_address=2)
    limits.wait("192.0.2.1")
    limits.wait("192.0.2.1")
    with pytest.raises(TooMany):
        limits.wait("192.0.2.1")
    limits.wait("192.0.2.2")
    with pytest.raises(Unavailable):
        limits.wait("192.0.2.3")
    limits.waited("192.0.2.1")
    limits.wait("192.0.2.1")
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        limits.waited(address)
    assert limits.waiting == 0


# Over HTTP.


@pytest.fixture
def serving(io_loop, tmp_path):
    """A coroutine function that starts a service whose clients are on loopback and limited all the same."""
    started = []

    async def start(**settings):
        service = Service(tmp_path / str(len(started)), unlimited_addresses=(), **settings)
        started.append(service)
        await service.start()
        return service

    yield start
    for service in started:
        io_loop.run_sync(service.stop)


async def offer(service, topic="lobby", origin=ORIGIN, **fields):
    return await service.call("POST", f"/{topic}/offer", {"info": "i", "offer": "o"} | fields, origin=origin)


def refused(response, status=429):
    """Whether a response refuses in the contract's words, to a page that can read it, and says when to come back."""
    assert int(response.headers["Retry-After"]) > 0
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    return (response.status, response.json) == (status, UNAVAILABLE if status == 503 else TOO_MANY)


async def test_rate(serving):
    """Who asks too often is refused, whatever it asks, until the clock has brought tokens back."""
    service = await serving(rate_per_address=2, burst_per_address=3)
    for path in ("/", "/nothing", "/topics"):
        assert (await service.call("GET", path)).status in (200, 404)
    for path in ("/", "/nothing", "/lobby/sessions", "/openapi.json"):
        assert refused(await service.call("GET", path))
    assert refused(await offer(service))
    assert (await service.call("GET", "/", origin="")).status == 400  # the Origin comes first (contract B6)
    service.clock.ms += 1000
    assert [(await service.call("GET", "/topics")).status for _ in range(3)] == [200, 200, 429]
    service.clock.ms += 500
    assert (await service.call("GET", "/lobby/sessions")).json == {"sessions": []}


@pytest.mark.parametrize(
    ("setting", "places"),
    [
        ("max_sessions_per_topic", [("a", ORIGIN)] * 3),
        ("max_sessions_per_origin", [("a", ORIGIN), ("b", ORIGIN), ("c", ORIGIN)]),
        ("max_topics_per_origin", [("a", ORIGIN), ("b", ORIGIN), ("c", ORIGIN)]),
    ],
)
async def test_quotas(serving, setting, places):
    """What is one too many is refused and changes nothing; other places are free, and who leaves makes room."""
    service = await serving(**{setting: 3})
    made = [(await offer(service, *place)).json["code"] for place in places]
    before = (await service.call("GET", "/topics")).json
    topic = "d" if setting != "max_sessions_per_topic" else "a"
    assert refused(await offer(service, topic))
    assert (await service.call("GET", "/topics")).json == before
    if setting == "max_topics_per_origin":
        assert (await offer(service, "a")).status == 200
    if setting == "max_sessions_per_topic":
        assert (await offer(service, "b")).status == 200
    assert (await offer(service, topic, OTHER)).status == 200
    code = made[1]
    assert (await service.call("POST", "/answer", {"code": code, "side": "answerer", "answer": "a"})).status == 200
    assert (await offer(service, topic)).status == 200
    assert refused(await offer(service, topic if setting != "max_topics_per_origin" else "e"))
    service.clock.ms += service.settings.session_timeout_ms
    assert (await offer(service, topic)).status == 200


@pytest.mark.parametrize("topics", ["aaaaaaaaaa", "abcdefghij"])
async def test_quotas_at_one_moment(serving, topics):
    """However many come at once, as many as may are taken, and the others are refused."""
    service = await serving(max_sessions_per_origin=4)
    found = await asyncio.gather(*(offer(service, topic) for topic in topics))
    assert sorted(response.status for response in found) == [200] * 4 + [429] * 6
    listed = (await service.call("GET", "/topics")).json["topics"]
    assert sum(each["count"] for each in listed) == 4


async def test_content_codes_and_quotas(serving):
    """Publishing the same content again is not one more session."""
    service = await serving(max_sessions_per_topic=1, codes="content")
    first = await offer(service)
    assert (await offer(service)).json == first.json
    assert refused(await offer(service, offer="another"))


@pytest.mark.parametrize("side", ["offerer", "answerer"])
async def test_candidates(serving, side):
    """A side has so many candidates; a batch that goes beyond is refused whole, and the other side has its own."""
    service = await serving(max_candidates=5)
    code = (await offer(service)).json["code"]
    await service.call("POST", "/answer", {"code": code, "side": "answerer", "answer": "a"})

    async def send(side, *texts):
        return await service.call("POST", "/answer", {"code": code, "side": side, "candidates": texts})

    assert (await send(side, "1", "2", "3")).status == 200
    assert refused(await send(side, "4", "5", "6"))
    assert (await send(side, "4", "5")).status == 200
    assert refused(await service.call("POST", "/answer", {"code": code, "side": side, "candidate": "6"}))
    other = {"offerer": "answerer", "answerer": "offerer"}[side]
    assert (await send(other, "1")).status == 200
    news = (await service.call("POST", "/poll", {"code": code, "side": other})).json
    assert news[f"{'answer' if side == 'answerer' else 'offer'}Candidates"] == ["1", "2", "3", "4", "5"]


async def test_lengths(serving):
    """What is longer than its setting is refused by its name, in code points; exactly as long is taken."""
    service = await serving(max_offer=64, max_answer=65, max_candidate=66)
    assert (await offer(service, offer="é" * 65)).json == {"error": invalid("offer")}
    code = (await offer(service, offer="é" * 64)).json["code"]
    fields = {"code": code, "side": "answerer"}
    for name, value, most in (("candidate", "é", 66), ("candidates", ["é"], 66), ("answer", "é", 65)):
        long, longer = ([value[0] * most], [value[0] * (most + 1)]) if name == "candidates" else (most, most + 1)
        long, longer = (long, longer) if name == "candidates" else (value * long, value * longer)
        response = await service.call("POST", "/answer", fields | {name: longer})
        assert (response.status, response.json) == (400, {"error": invalid(name)})
        assert (await service.call("POST", "/answer", fields | {name: long})).status == 200


async def test_body(serving):
    """The largest body is a setting."""
    service = await serving(max_body_bytes=1024)
    fields = json.dumps({"info": "i", "offer": ""})
    fits = {"info": "i", "offer": "x" * (1024 - len(fields))}
    assert (await offer(service, **fits)).status == 200
    response = await offer(service, offer=fits["offer"] + "x")
    assert (response.status, response.json) == (413, {"error": "Request body too large"})


async def test_unfinished_bodies(serving, monkeypatch):
    """What is kept of bodies that are not whole is bounded: one too many is refused, what comes whole is served."""
    monkeypatch.setattr(request, "MAX_UNFINISHED_BYTES", 100_000)
    service = await serving()
    begun = head("POST", "/lobby/offer", with_origin(ORIGIN, [("Content-Length", "200000")])) + b" " * 60_000
    async with service.connect() as first, service.connect() as second, service.connect() as third:
        for connection in (first, second):
            await connection.send(begun)
        await until(lambda: service.application.unfinished_bytes == 120_000)
        await third.send(begun)
        assert refused(await third.receive(), 503)
        assert (await offer(service)).status == 200
        assert service.application.unfinished_bytes == 120_000
    await until(lambda: service.application.unfinished_bytes == 0)
    assert (await offer(service, offer="x" * 150_000)).status == 200


WAITS = {
    "poll": ("POST", "/poll", {"side": "offerer", "wait": 60}),
    "listing": ("GET", "/empty/sessions?wait=60", None),
    "stream": ("GET", "/lobby/events", None),
}


@pytest.mark.parametrize("kind", WAITS)
@pytest.mark.parametrize(("setting", "status"), [("max_waiting_per_address", 429), ("max_waiting", 503)])
async def test_waiting_requests(serving, kind, setting, status):
    """One waiting request too many is refused; when a client goes, the next one may wait."""
    service = await serving(**{setting: 2})
    code = (await offer(service)).json["code"]
    method, target, fields = WAITS[kind]
    data = b"" if fields is None else json.dumps(fields | {"code": code}).encode()
    request = head(method, target, with_origin(ORIGIN, [("Content-Length", str(len(data)))])) + data
    async with service.connect() as first, service.connect() as second:
        for connection in (first, second):
            await connection.send(request)
        await until(lambda: len(service.store.watches) == 2)
        assert refused(await service.raw(request, method), status)
        second.close()
        await until(lambda: len(service.store.watches) == 1)
        async with service.connect() as third:
            await third.send(request)
            await until(lambda: len(service.store.watches) == 2)
    await until(lambda: len(service.store.watches) == service.site.limits.waiting == 0)


async def test_waiting_that_ends_by_itself(serving):
    """What has waited is not counted any more."""
    service = await serving(max_waiting=1)
    for _ in range(3):
        assert (await service.call("GET", "/empty/sessions?wait=0.001")).status == 200
    assert (await service.call("POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer", "wait": 1})).status == 404
    await until(lambda: service.site.limits.waiting == 0)


@pytest.mark.parametrize(("setting", "status"), [("max_connections_per_address", 429), ("max_connections", 503)])
async def test_connections(serving, setting, status):
    """The first request on a connection too many is refused in words, and that is its end; then there is room."""
    service = await serving(**{setting: 2})
    request = head("GET", "/", with_origin(ORIGIN))
    async with service.connect() as first, service.connect() as second:
        for connection in (first, second):
            await connection.send(request)
            assert (await connection.receive()).status == 200
        async with service.connect() as third:
            await third.send(request)
            response = await third.receive()
            assert refused(response, status)
            assert response.headers["Connection"] == "close"
            assert await third.receive() is None
        await first.send(request)
        assert (await first.receive()).status == 200
    limits = service.site.limits
    await until(lambda: limits.connections == 0)
    assert (await service.call("GET", "/")).status == 200


async def connect_from(service, address):
    """A connection from one of this machine's addresses."""
    return Connection(*await asyncio.open_connection("127.0.0.1", service.port, local_addr=(address, 0)))


async def test_a_connection_too_many_that_is_silent(serving):
    """It is closed within a second, so that the next one can be told; those that are served may be silent for long."""
    service = await serving(max_connections_per_address=1)
    limits = service.site.limits
    request = head("GET", "/", with_origin(ORIGIN))
    async with service.connect() as served:
        await until(lambda: limits.connections == 1)
        began_s = time.monotonic()
        async with contextlib.AsyncExitStack() as ends:
            silent = [await ends.enter_async_context(service.connect()) for _ in range(SPARE_CONNECTIONS_PER_CLIENT)]
            await until(lambda: limits.refused == SPARE_CONNECTIONS_PER_CLIENT)
            assert [await connection.reader.read() for connection in silent] == [b""] * len(silent)
        assert time.monotonic() - began_s > 0.5
        assert refused(await service.raw(request))
        await until(lambda: limits.refused == 0)
        await served.send(request)
        assert (await served.receive()).status == 200
    await until(lambda: limits.connections == 0)


async def test_a_connection_too_many_that_goes_on(serving):
    """One that is told, and neither reads nor closes, or that sends byte after byte, is closed within a second too."""
    service = await serving(max_connections_per_address=1)
    limits = service.site.limits
    request = head("GET", "/", with_origin(ORIGIN))
    async with service.connect(), service.connect() as told, service.connect() as slow:
        await until(lambda: limits.refused == 2)
        await told.send(request * 1000)
        for byte in request[:20]:
            await slow.send(bytes([byte]))
            await asyncio.sleep(0.02)
        await until(lambda: limits.refused == 0)


async def test_silent_connections_of_one_address_keep_nobody_out(serving):
    """Seventy silent connections of one address take no more room than is its, and another is served."""
    service = await serving(max_connections_per_address=5, max_connections=60)
    limits = service.site.limits
    async with contextlib.AsyncExitStack() as ends:
        silent = [await ends.enter_async_context(service.connect()) for _ in range(70)]
        await until(lambda: limits.connections == 5)
        for number in range(55):
            other = await connect_from(service, f"127.0.0.{number // 5 + 2}")
            ends.callback(other.close)
            await other.send(head("GET", "/", with_origin(ORIGIN)))
            assert (await other.receive()).status == 200
        assert limits.connections == 60
        ends_of_silent = asyncio.gather(*(connection.reader.read() for connection in silent[5:]))
        assert set(await asyncio.wait_for(ends_of_silent, 30)) == {b""}
        assert (limits.connections, limits.refused) == (60, 0)
    await until(lambda: limits.connections == 0)


async def test_who_goes_on_after_refusals_loses_the_connection(serving):
    """Beyond its rate a client is told so, and on the same connection; beyond twice its rate that is its last word."""
    service = await serving(rate_per_address=2, burst_per_address=3)
    request = head("GET", "/", with_origin(ORIGIN))
    async with service.connect() as connection:
        found = []
        for _ in range(6):
            await connection.send(request)
            found.append(await connection.receive())
        assert [response.status for response in found] == [200] * 3 + [429] * 3
        assert all(map(refused, found[3:]))
        assert [response.headers.get("Connection") for response in found] == [None] * 5 + ["close"]
        assert await connection.receive() is None
    assert (await service.raw(request)).headers["Connection"] == "close"  # also on a new one
    service.clock.ms += 1000
    async with service.connect() as connection:
        await connection.send(request)
        response = await connection.receive()
        assert (response.status, response.headers.get("Connection")) == (200, None)


async def test_who_connects_again_and_again(serving):
    """A storm of connections is ended as it is accepted, after some that were told; other addresses feel nothing."""
    service = await serving(rate_per_address=1, burst_per_address=3)
    request = head("GET", "/", with_origin(ORIGIN))
    statuses = []
    for _ in range(2 * 3 + SPARE_ARRIVALS + 30):
        response = await service.raw(request)
        statuses.append(response and response.status)
    told = len(statuses) - statuses.count(None)
    assert set(statuses[:100]) == {200, 429}
    assert 2 * 3 + SPARE_ARRIVALS <= told < 2 * 3 + SPARE_ARRIVALS + 20
    assert statuses[-1] is None or statuses[-2] is None
    other = await connect_from(service, "127.0.0.2")
    await other.send(request)
    assert (await other.receive()).status == 200
    other.close()
    assert service.site.limits.refused == 0
    await until(lambda: service.site.limits.connections == 0)


async def test_behind_a_proxy(serving):
    """Clients of a trusted proxy are counted by the address that it names, and the proxy itself is not."""
    each = {"burst_per_address": 1, "rate_per_address": 1, "max_connections_per_address": 1}
    service = await serving(trusted_proxies=LOOPBACK, **each)
    for address in ("192.0.2.1", "192.0.2.2"):
        found = [await service.call("GET", "/", headers=[("X-Forwarded-For", address)]) for _ in range(2)]
        assert [response.status for response in found] == [200, 429]
    assert (await service.call("GET", "/")).status == 200


async def until(true):
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("that did not come")
