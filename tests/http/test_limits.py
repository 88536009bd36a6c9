"""Limits per client and in total. A refused request changes nothing."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import ipaddress
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.frame_vectors import PING, TEXT, frame
from support.paths import ROOT
from support.rpc import BOUND_S, open_socket, until
from support.service import ORIGIN, OTHER, head, with_origin

from tornado_signal.errors import TooMany
from tornado_signal.http import application as request
from tornado_signal.limits import per_address
from tornado_signal.limits.per_address import ADMIN_CONNECTIONS, SPARE_ARRIVALS, SPARE_CONNECTIONS, Limits
from tornado_signal.service.refusals import CALM_S, NAMES, SETTINGS
from tornado_signal.settings.settings import SETTINGS as ALL_SETTINGS
from tornado_signal.settings.settings import Settings

PACKAGE = ROOT / "tornado_signal"
SPARE_OF_ONE = per_address.SPARE_CONNECTIONS_PER_CLIENT
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
TOO_MANY = {"error": "Too many requests"}
UNAVAILABLE = {"error": "Service unavailable"}


class ByAddress:
    """Limits whose methods take addresses. It remembers what is open."""

    def __init__(self, limits):
        self._limits = limits
        self._open = collections.defaultdict(list)

    def __getattr__(self, name):
        found = getattr(self._limits, name)
        if name not in ("charge_request", "exceeds_hard_limit", "charge_session", "charge_bytes", "acquire_wait"):
            return found
        return lambda address, *arguments: found(self._limits.client(address), *arguments)

    def connected(self, address, now_ms):
        admission = self._limits.connected(address, now_ms)
        if admission is None:
            return None
        self._open[address, admission.reject_status].append(admission)
        return admission.reject_status

    def disconnected(self, address, reject_status):
        self._open[address, reject_status].pop(0).release()


def limits_for_all(**settings):
    return ByAddress(Limits(Settings(unlimited_addresses=(), **settings)))


@given(st.integers(1, 50), st.integers(1, 1000), st.lists(st.integers(0, 3000), max_size=200))
def test_token_bucket_never_exceeds_capacity_plus_refill(capacity, per_s, pauses_ms):
    bucket = per_address.TokenBucket(capacity)
    began_ms = now_ms = 1_700_000_000_000
    granted = 0
    for pause_ms in pauses_ms:
        now_ms += pause_ms
        wait_s = bucket.take(capacity, per_s / 1000, now_ms)
        granted += not wait_s
        assert granted <= capacity + (now_ms - began_ms) * per_s / 1000 + 1e-6
        if wait_s:
            now_ms += wait_s * 1000
            assert bucket.take(capacity, per_s / 1000, now_ms) == 0
            granted += 1


def test_bytes_are_borrowed_while_a_whole_one_is_left():
    bucket = per_address.TokenBucket(0)
    assert [bucket.borrow(10, 0.5, now_ms, 5) for now_ms in range(4)] == [False, False, True, False]


def test_each_ipv4_address_and_each_ipv6_64_has_its_own_bucket():
    limits = limits_for_all(rate_per_address=1)
    ipv4, ipv6 = ["192.0.2.1", "::ffff:192.0.2.1"], ["2001:db8::1", "2001:db8::ffff:1"]
    for addresses in (ipv4, ["192.0.2.2"], ipv6, ["2001:db8:0:1::1"]):
        waits_s = [limits.charge_request(addresses[number % len(addresses)], 0) for number in range(11)]
        assert waits_s == [0] * 10 + [1]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "10.1.2.3", "", "not an address"])
def test_loopback_proxies_and_unix_sockets_are_unlimited(address):
    proxies = (ipaddress.ip_network("10.0.0.0/8"),)
    one_of_everything = {"rate_per_address": 1, "max_connections_per_address": 1, "max_bytes_per_address": 1024}
    limits = ByAddress(Limits(Settings(**one_of_everything, trusted_proxies=proxies)))
    for _ in range(20):
        assert limits.charge_request(address, 0) == 0
        limits.charge_session(address, 0)
        limits.charge_bytes(address, 10_000, 0)
        limits.acquire_wait(address)
        assert limits.connected(address, 0) == 0


def test_new_settings_apply_to_open_connections(monkeypatch):
    monkeypatch.setattr(per_address, "BURST_S", 1)
    limits = limits_for_all(max_connections_per_address=1, rate_per_address=1)
    address, other = "2001:db8::1", "192.0.2.2"
    assert limits.connected(address, 0) == 0
    assert limits.charge_request(other, 0) == 0
    assert [limits.connected(address, 0), limits.charge_request(other, 0)] == [429, 1]
    limits.disconnected(address, 429)
    limits.apply(dataclasses.replace(limits._settings, max_connections_per_address=2))
    assert [limits.connected(address, 0), limits.connected(address, 0)] == [0, 429]
    limits.disconnected(address, 429)
    networks = tuple(ipaddress.ip_network(single) for single in (address, other))
    limits.apply(dataclasses.replace(limits._settings, unlimited_addresses=networks))
    assert [limits.charge_request(other, 0) for _ in range(3)] == [0, 0, 0]
    assert [limits.connected(address, 0) for _ in range(3)] == [0, 0, 0]
    neighbour = "2001:db8::2"
    assert limits.connected(neighbour, 0) == 429  # limited, together with what its /64 has opened before
    limits.disconnected(neighbour, 429)
    unlimited = limits.client(address)
    limits.acquire_wait(address)
    limits.apply(dataclasses.replace(limits._settings, unlimited_addresses=()))
    assert limits.connected(address, 0) == 429
    limits.disconnected(address, 429)
    for _ in range(5):
        limits.disconnected(address, 0)
    limits.release_wait(unlimited)
    assert unlimited.idle
    assert limits.client(address).idle
    assert [limits.connected(address, 0), limits.connected(neighbour, 0)] == [0, 0]
    assert (limits.connections, limits.waiting) == (2, 0)
    limits.apply(dataclasses.replace(limits._settings, max_connections=2))
    assert limits.connected(other, 0) == 503


def test_idle_clients_are_dropped_and_connected_ones_are_kept(monkeypatch):
    monkeypatch.setattr(per_address, "CLIENTS_KEPT", 100)
    limits = limits_for_all(max_connections_per_address=1)
    assert limits.connected("2001:db8::1", 0) == 0
    for number in range(1000):
        limits.charge_request(f"2001:db8:1:{number:x}::1", 0)
        limits.charge_request(f"2001:db8:2::{number:x}", 0)
        assert len(limits.clients()) <= 101
    assert limits.connected("2001:db8::2", 0) == 429
    limits.disconnected("2001:db8::1", 0)
    limits.disconnected("2001:db8::2", 429)
    assert limits.connected("2001:db8::3", 0) == 0


def test_sessions_per_address_are_limited_within_a_session_timeout():
    limits = limits_for_all(max_sessions_per_address=10, session_timeout_ms=100_000)
    for _ in range(10):
        limits.charge_session("192.0.2.1", 0)
    with pytest.raises(TooMany) as refused:
        limits.charge_session("192.0.2.1", 0)
    assert refused.value.retry_after_s == 10
    limits.charge_session("192.0.2.2", 0)
    limits.charge_session("192.0.2.1", 10_000)
    with pytest.raises(TooMany):
        limits.charge_session("192.0.2.1", 10_001)


def test_each_closed_connection_frees_its_place():
    limits = limits_for_all(max_connections=5, max_connections_per_address=1000)
    assert [limits.connected(f"192.0.2.{number}", 0) for number in range(5)] == [0] * 5
    others = [f"198.51.100.{number}" for number in range(SPARE_CONNECTIONS)]
    assert [limits.connected(address, 0) for address in others] == [503] * SPARE_CONNECTIONS
    assert limits.connected("192.0.2.9", 0) is None
    for address in others:
        limits.disconnected(address, 503)
    assert limits.connected("192.0.2.9", 0) == 503
    limits.disconnected("192.0.2.9", 503)
    limits.disconnected("192.0.2.0", 0)
    assert limits.connected("192.0.2.9", 0) == 0
    limits.disconnected("192.0.2.9", 0)
    limits.block(ipaddress.ip_network("192.0.2.8/31"), 0)
    assert [limits.connected(address, 0) for address in ("192.0.2.9", "192.0.2.10")] == [429, 0]
    assert Limits(Settings(max_connections=5), 0).connected("192.0.2.1", 0).reject_status == 503


def test_excess_connections_of_an_address_do_not_use_the_places_of_others():
    limits = limits_for_all(max_connections=60, max_connections_per_address=5)
    statuses = [limits.connected("192.0.2.1", 0) for _ in range(70)]
    assert statuses == [0] * 5 + [429] * SPARE_OF_ONE + [None] * (65 - SPARE_OF_ONE)
    assert [limits.connected(f"192.0.2.{number}", 0) for number in range(2, 57)] == [0] * 55
    assert limits.connected("192.0.2.99", 0) == 503


def test_admin_connections_have_a_limit_of_their_own():
    limits = ByAddress(per_address.AdminConnectionLimiter(collections.Counter()))
    assert [limits.connected("127.0.0.1", 0) for _ in range(ADMIN_CONNECTIONS)] == [0] * ADMIN_CONNECTIONS
    others = [limits.connected("", 0) for _ in range(10)]
    assert others == [503] * SPARE_OF_ONE + [None] * (10 - SPARE_OF_ONE)
    limits.disconnected("127.0.0.1", 0)
    limits.disconnected("", 503)
    assert [limits.connected("127.0.0.1", 0) for _ in range(3)] == [0, 503, None]
    assert (limits.connections, limits.refused) == (ADMIN_CONNECTIONS, SPARE_OF_ONE)
    limits._limits.make_room = lambda: True
    assert limits.connected("127.0.0.1", 0) == 0


def test_address_that_reconnects_too_often_is_rejected_temporarily():
    limits = limits_for_all(rate_per_address=1)
    for _ in range(20 + SPARE_ARRIVALS):
        assert limits.connected("192.0.2.1", 0) == 0
        limits.disconnected("192.0.2.1", 0)
    assert limits.connected("192.0.2.1", 499) is None
    assert limits.connected("192.0.2.2", 499) == 0
    assert limits.connected("192.0.2.1", 1000) == 0


# Over HTTP.


@pytest.fixture
def start_limited(start_service):
    """A coroutine function that starts a service whose clients on loopback are limited."""
    return functools.partial(start_service, unlimited_addresses=())


async def offer(service, topic="lobby", origin=ORIGIN, **fields):
    return await service.call("POST", f"/{topic}/offer", {"info": "i", "offer": "o"} | fields, origin=origin)


def refused(response, status=429):
    """Return whether a response is the documented refusal. Check that pages can read it and when to retry."""
    assert int(response.headers["Retry-After"]) > 0
    assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
    return (response.status, response.json) == (status, UNAVAILABLE if status == 503 else TOO_MANY)


GET = head("GET", "/", with_origin(ORIGIN))


async def ask(connection):
    await connection.send(GET)
    return await connection.receive()


async def test_rate_limit_refuses_requests_and_then_connections_until_tokens_are_refilled(start_limited, monkeypatch):
    monkeypatch.setattr(per_address, "BURST_S", 1.5)
    service = await start_limited(rate_per_address=2)
    for path in ("/", "/nothing", "/topics"):
        assert (await service.call("GET", path)).status in (200, 404)
    for path in ("/", "/nothing", "/lobby/sessions", "/openapi.json"):
        assert refused(await service.call("GET", path))
    assert refused(await offer(service))
    assert (await service.call("GET", "/", origin="")).status == 400  # docs/decisions.md#order-of-checks
    service.clock.ms += 1000
    assert [(await service.call("GET", "/topics")).status for _ in range(3)] == [200, 200, 429]
    service.clock.ms += 500
    assert (await service.call("GET", "/lobby/sessions")).json == {"sessions": []}
    for query, left in (("page=10", 2), ("page=2&limit=1000", 1), (f"page={2**53}", 0)):
        service.clock.ms += 1500
        paths = (f"/topics?{query}", *["/topics"] * 3)
        assert [(await service.call("GET", path)).status for path in paths] == [200] * (1 + left) + [429] * (3 - left)
    # A client that continues after refusals is disconnected.
    service = await start_limited(rate_per_address=2)
    async with service.connect() as connection:
        responses = [await ask(connection) for _ in range(6)]
        assert [response.status for response in responses] == [200] * 3 + [429] * 3
        assert all(map(refused, responses[3:]))
        assert [response.headers.get("Connection") for response in responses] == [None] * 5 + ["close"]
        assert await connection.receive() is None
    assert (await service.raw(GET)).headers["Connection"] == "close"  # also on a new connection
    service.clock.ms += 1000
    response = await service.raw(GET)
    assert (response.status, response.headers.get("Connection")) == (200, None)


async def test_offer_with_equal_content_does_not_count_twice(start_limited):
    service = await start_limited(max_sessions_per_origin=1, codes="content")
    assert (await offer(service)).json == (await offer(service)).json
    assert refused(await offer(service, offer="another"))


async def test_address_beyond_its_byte_quota_is_refused(start_limited):
    service = await start_limited(max_bytes_per_address=400_000, session_timeout_ms=100_000)
    code, *_ = [await service.offer(offer="o" * 100_000) for _ in range(3)]
    # Bytes are charged to the address, not to the origin.
    response = await offer(service, origin=OTHER, offer="o" * 150_000)
    assert (response.status, response.json) == (429, TOO_MANY)
    assert 1 <= int(response.headers["Retry-After"]) <= 100
    answer = {"code": code, "side": "answerer"}
    for fields in ({"answer": "a" * 150_000}, {"candidates": ["c" * 100_000, "d" * 100_000]}):
        assert refused(await service.call("POST", "/answer", answer | fields))
    assert len(await service.sessions()) == 3
    assert (await service.post("/poll", code=code, side="answerer"))["offer"]
    await service.post("/refresh", code=code, side="offerer")
    service.clock.ms += 50_000
    await service.post("/answer", **answer, answer="a" * 150_000)
    # Each candidate is charged its overhead in the store.
    service = await start_limited(max_bytes_per_address=5000)
    answer = {"code": await service.offer(), "side": "offerer"}
    assert refused(await service.call("POST", "/answer", answer | {"candidates": ["c"] * 100}))


async def test_unfinished_bodies_share_a_limit(start_limited, monkeypatch):
    monkeypatch.setattr(request, "MAX_UNFINISHED_BYTES", 100_000)
    service = await start_limited()
    request_start = head("POST", "/lobby/offer", with_origin(ORIGIN, [("Content-Length", "200000")])) + b" " * 60_000
    async with service.connect() as first, service.connect() as second, service.connect() as third:
        for connection in (first, second):
            await connection.send(request_start)
        await until(lambda: service.application.unfinished_bytes == 120_000)
        await third.send(request_start)
        assert refused(await third.receive(), 503)
        assert (await offer(service)).status == 200
        assert service.application.unfinished_bytes == 120_000
    await until(lambda: service.application.unfinished_bytes == 0)
    assert (await offer(service, offer="x" * 150_000)).status == 200


@pytest.mark.parametrize(("setting", "status"), [("max_connections_per_address", 429), ("max_connections", 503)])
async def test_excess_connection_gets_an_error_or_is_closed_within_a_second(start_limited, setting, status):
    service = await start_limited(**{setting: 1})
    limits = service.shared.limits
    async with service.connect() as served:
        await until(lambda: limits.connections == 1)
        began_s = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(service.connect()) for _ in range(SPARE_OF_ONE)]
            await until(lambda: limits.refused == SPARE_OF_ONE)
            assert await asyncio.wait_for(service.raw(GET), BOUND_S) is None  # one more is closed when it is accepted
            assert [await connection.reader.read() for connection in silent] == [b""] * len(silent)
        assert time.monotonic() - began_s > 0.5
        async with service.connect() as excess:
            response = await ask(excess)
            assert (refused(response, status), response.headers["Connection"]) == (True, "close")
            assert await excess.receive() is None
        await until(lambda: limits.refused == 0)
        assert (await ask(served)).status == 200
        async with service.connect() as excess, service.connect() as slow:
            await until(lambda: limits.refused == 2)
            await excess.send(GET * 1000)  # this client neither reads nor closes
            for byte in GET[:20]:
                await slow.send(bytes([byte]))
                await asyncio.sleep(0.02)
            await until(lambda: limits.refused == 0)
    await until(lambda: limits.connections == 0)
    assert (await service.call("GET", "/")).status == 200


@pytest.mark.parametrize(
    ("settings", "lines"), [({}, 1), ({"unlimited_addresses": ()}, 0), ({"trusted_proxies": LOOPBACK}, 0)]
)
async def test_untrusted_proxy_is_logged_once(settings, lines, start_service, caplog):
    service = await start_service(**settings)
    for forwarded in ([], ["192.0.2.1"], ["192.0.2.2"], ["unknown"]):
        headers = [("X-Forwarded-For", address) for address in forwarded]
        assert (await service.call("GET", "/", headers=headers)).status == 200
        assert ["--trusted-proxies does not name" in each for each in caplog.messages] == [True] * lines * bool(
            forwarded
        )


async def test_refusals_are_logged_when_they_begin_and_end(start_service, caplog, pass_time):
    service = await start_service(trusted_proxies=LOOPBACK, rate_per_address=1, max_sessions_per_origin=1)
    refusals = service.shared.refusals
    await service.offer()
    for _ in range(2):
        assert (await offer(service, "b")).status == 429
        refusals.check()
    for _ in range(20):
        last = await service.call("GET", "/health", headers=[("X-Forwarded-For", "192.0.2.7")])
    assert last.status == 429
    assert (await service.call("GET", "/nowhere", origin=None)).status == 400  # a mistake of the client
    refusals.check()
    await pass_time(CALM_S)
    for _ in range(2):
        refusals.check()
    assert caplog.messages == [
        "clients are refused (429): sessions of an origin; the limit is --max-sessions-per-origin",
        "clients are refused (429): requests of an address; the limit is --rate-per-address",
        "clients are no longer refused (429): sessions of an origin; it was 2 requests",
        "clients are no longer refused (429): requests of an address; it was 10 requests",
    ]


async def test_disconnections_are_logged_when_they_begin_and_end(start_limited, caplog, pass_time):
    service = await start_limited(rate_per_address=10)
    refusals, unfinished = service.shared.refusals, service.server.state.unfinished

    async def closed(*frames, code, host="127.0.0.1"):
        async with open_socket(service, local_addr=(host, 0)) as client:
            for data in frames:
                client.socket.transport.write(data)
            assert await client.closed() == code
        refusals.check()

    for _ in range(2):
        await closed(frame(TEXT, b" " * 300_000), code=1009)
    await closed(frame(0x3), code=1002)
    await closed(frame(TEXT, b'{"type": "subscribe", "topics": []}'), code=1008)  # has a line of its own
    unfinished.max_bytes, max_bytes = 50_000, unfinished.max_bytes
    await closed(frame(TEXT, b" " * 100_000)[:-1], code=1006, host="127.0.0.2")
    unfinished.max_bytes = max_bytes
    await closed(*[frame(PING)] * 1000, code=1008)
    await closed(*[frame(TEXT, b'{"jsonrpc":"2.0","method":"health"}')] * 200, code=1008, host="127.0.0.3")
    await pass_time(CALM_S)
    refusals.check()
    reasons = {
        "messages have at most 262144 bytes": ("; the limit is --max-body-bytes", 2),
        "invalid opcode": ("", 1),
        "unfinished input of all clients": ("; the limit is --max-unsent-bytes", 1),
        "too many frames": ("; the limit is --rate-per-address", 1),
        "too many requests of an address": ("; the limit is --rate-per-address", 1),
    }
    begun = [f"clients are disconnected: {reason}{advice}" for reason, (advice, _) in reasons.items()]
    ended = [
        f"clients are no longer disconnected: {reason}; it was {n} connections" for reason, (_, n) in reasons.items()
    ]
    assert [line for line in caplog.messages if "disconnected" in line] == begun + ended
    assert len(caplog.messages) == 13


def test_each_setting_of_a_refusal_exists_and_is_of_a_reason():
    reasons = set()
    for path in PACKAGE.rglob("*.py"):
        reasons |= set(re.findall(r'(?:TooMany\(|POLICY_VIOLATION, )"([^"]+)"', path.read_text()))
    reasons = {reason.removeprefix("too many ") for reason in reasons}
    assert reasons | {*NAMES.values(), "candidates of a session", "bytes of a session"} >= SETTINGS.keys()
    names = {f"--{setting.name.replace('_', '-')}" for setting in ALL_SETTINGS}
    assert names >= {*SETTINGS.values()}
