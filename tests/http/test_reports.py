"""Reports of clients about their connections: counters, and nothing else."""

import asyncio
import contextlib
import ipaddress
import itertools
import json
import re
from unittest import mock

import pytest
from support.rpc import open_socket, until
from support.service import ORIGIN, refused, request

from tornado_signal.service import reports
from tornado_signal.service.reports import KINDS, TRANSPORTS, ConnectionReports
from tornado_signal_client import SignalClient

GOOD = {"outcome": "connected", "local": "host", "remote": "srflx", "transport": "udp", "ms": 380}
LOOPBACK = (ipaddress.ip_network("127.0.0.1"),)
FAILED = {"outcome": "failed", "ms": 15_000}


@pytest.fixture
def wanting(start_service, io_loop):
    return io_loop.run_sync(lambda: start_service(connection_reports=True))


async def series(service):
    text = (await service.ask_admin("/metrics")).body.decode()
    return dict(re.findall(r"^tornado_signal_(report\S+) (\S+)$", text, re.MULTILINE))


async def test_reports_are_not_taken_unless_they_are_wanted(service):
    assert refused(await service.call("POST", "/report", GOOD)) == (404, "Not found")
    assert "reports" not in await service.get("/ice-servers")
    assert await series(service) == {}


async def test_reports_over_http_and_the_websocket(wanting):
    assert (await wanting.get("/ice-servers"))["reports"] is True
    response = await wanting.call("POST", "/report", GOOD | {"address": "192.0.2.7", "topic": "of-lobby"})
    assert (response.status, response.body) == (204, b"")
    async with open_socket(wanting) as client:
        assert await client.call("report", **GOOD | {"remote": "relay", "transport": "tls"}) is None
        assert await client.call("report", **FAILED) is None
    found = await series(wanting)
    assert {name: value for name, value in found.items() if "connections" in name} == {
        'reported_connections_total{kind="srflx",outcome="connected",transport="udp"}': "1.0",
        'reported_connections_total{kind="relay",outcome="connected",transport="tls"}': "1.0",
        'reported_connections_total{kind="",outcome="failed",transport=""}': "1.0",
    }
    assert found['reported_connect_seconds_bucket{le="0.4"}'] == "2.0"
    assert found["reports_ignored_total"] == "0.0"
    texts = [(await wanting.ask_admin(path)).body for path in ("/status", "/metrics")]
    assert b"of-lobby" not in b"".join(texts)  # other fields are not kept
    (process,) = json.loads(texts[0])["processes"]
    assert process["reported"] == {"connected": 2, "unconnected": 1, "relayed": 1, "median_s": 0.4}


async def test_reports_of_a_thousand_addresses_and_of_one_that_lies(start_service):
    """The verdict has the cause when fewer than nine of ten connect. A single address cannot bring that about."""
    service = await start_service(
        connection_reports=True, trusted_proxies=LOOPBACK, unlimited_addresses=(), rate_per_address=1000
    )

    async def send(report, *addresses):
        async with service.connect() as connection:
            for address in addresses:
                await connection.send(request("POST", "/report", report, headers=[("X-Forwarded-For", address)]))
                assert (await connection.receive("POST")).status == 204

    async def judge():
        """Return the figures, and the causes of the verdict."""
        status = (await service.ask_admin("/status")).json
        return status["processes"][0]["reported"], [cause["text"] for cause in status["verdict"]["causes"]]

    addresses = [f"198.51.{number // 250}.{number % 250}" for number in range(1000)]
    await send(GOOD, *addresses[:850])
    await send(GOOD | {"remote": "relay"}, *addresses[850:930])
    await send(FAILED, *["192.0.2.7"] * 200)
    figures, causes = await judge()
    assert figures == {"connected": 930, "unconnected": 103, "relayed": 80, "median_s": 0.4}
    assert causes == []
    assert (await series(service))["reports_ignored_total"] == "97.0"
    await send(FAILED, *addresses[930:])
    figures, causes = await judge()
    assert figures["unconnected"] == 173
    assert causes == ["16 % of the reported connections of an hour have failed; a TURN server may be missing"]


def test_metrics_have_few_series():
    counters = ConnectionReports()
    kinds, transports = ("", *KINDS), ("", *TRANSPORTS)
    for local, remote, transport in itertools.product(kinds, kinds, transports):
        counters.add(None, "connected", local, remote, transport, 1, 0)
    counters.add(None, "failed", "host", "host", "udp", 1, 0)
    numbers, seconds, _ = (family.values for family in counters.families())
    assert len(numbers) == len(kinds) * len(transports) + 1
    assert len(numbers) + len(seconds.counts) + 2 + 1 <= 40


def test_shares_are_of_an_hour_and_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(reports, "MAX_ADDRESSES", 100)
    counters = ConnectionReports()

    def counts(now_ms, address="one"):
        before = counters.ignored
        counters.add(address, "failed", "", "", "", 1, now_ms)
        return counters.ignored == before

    window_ms = reports.WINDOW_MS
    assert [counts(now_ms) for now_ms in (0, window_ms - 1, window_ms, 2 * window_ms)] == [True, False, False, True]
    assert counts(4 * window_ms)
    for number in range(1000):
        assert counts(4 * window_ms, f"address {number}")
        assert max(map(len, counters._windows)) <= 100


# The Python client


@contextlib.asynccontextmanager
async def meet_in_a_room(peers, others):
    async with peers.room("lobby"), others.room("lobby"):
        yield


@contextlib.asynccontextmanager
async def meet_under_a_topic(peers, others):
    async def join():
        async with await others.join("lobby"):
            await asyncio.Event().wait()

    async with peers.publish("lobby") as publication:
        joining = asyncio.create_task(join())
        try:
            yield
        finally:
            joining.cancel()
            await asyncio.gather(joining, return_exceptions=True)
            await publication.close()
            async for connection in publication:
                await connection.close()


@pytest.mark.needs("aiortc")
@pytest.mark.parametrize("meet", [meet_in_a_room, meet_under_a_topic])
@pytest.mark.parametrize("outcome", ["connected", "failed"])
@pytest.mark.parametrize("websocket", [True, False], ids=["websocket", "http"])
async def test_python_client_reports_each_attempt(meet, outcome, websocket, start_service, monkeypatch):
    from tornado_signal_client import Peers, link, room_peer

    async def without_candidates(connection, description):
        sdp = re.sub("a=candidate.*\r\n", "", description["sdp"])
        await set_remote_description(connection, {**description, "sdp": sdp})

    service = await start_service(connection_reports=True, stun_servers=())
    if outcome == "failed":
        set_remote_description = link.set_remote_description
        for module in (link, room_peer):
            monkeypatch.setattr(module, "set_remote_description", without_candidates)
    for module, name in (room_peer, "PAIR_S"), (room_peer, "LATE_S"), (link, "OPEN_S"):
        monkeypatch.setattr(module, name, 0.2 if outcome == "failed" else 600)
    sent, call = [], SignalClient._report

    def record(client, fields):
        sent.append(fields)
        call(client, fields)

    monkeypatch.setattr(SignalClient, "_report", record)
    url = f"http://127.0.0.1:{service.port}"
    async with (
        Peers(url, ORIGIN, websocket=websocket) as peers,
        Peers(url, ORIGIN, websocket=websocket) as others,
        meet(peers, others),
    ):
        await until(lambda: service.shared.reports.count(outcome) >= 2)
    pair = {"local": "host", "remote": mock.ANY, "transport": "udp"} if outcome == "connected" else {}
    assert sent[0] == {"outcome": outcome, "ms": sent[0]["ms"], **pair}
    assert sent[0]["ms"] % 100 == 0 < sent[0]["ms"]
    assert outcome == "failed" or len(sent) == 2


@pytest.mark.needs("aiortc")
async def test_python_client_sends_no_reports_that_are_not_wanted(start_service):
    from tornado_signal_client import Peers

    service = await start_service(stun_servers=())
    url = f"http://127.0.0.1:{service.port}"
    async with Peers(url, ORIGIN) as peers, peers.room("lobby") as room, peers.room("lobby"):
        await anext(aiter(room))
    assert "/report" not in {path for path, *_ in service.shared.log.metrics.requests}
