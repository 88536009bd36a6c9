"""PeerJS clients over raw WebSockets and HTTP (docs/peerjs.md)."""

import asyncio
import contextlib
import json
import re

import pytest
from support.peerjs import connect_peer, open_peer
from support.rpc import until
from support.service import ORIGIN, OTHER, allowed_origin, head, with_origin
from support.y_webrtc import BOUND_S
from websockets.exceptions import ConnectionClosed

from tornado_signal.errors import Unavailable
from tornado_signal.protocols import peerjs
from tornado_signal.protocols.connection import MAX_NAME
from tornado_signal.protocols.endpoint import make_scope
from tornado_signal.protocols.peerjs import RETRY_S
from tornado_signal.relay import Channel

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


TAKEN = {"type": "ID-TAKEN", "payload": {"msg": "ID is taken"}}
TOO_LONG = "Id and key may have at most 256 characters"


@pytest.fixture
def opened(io_loop):
    """A function that opens an id on a server. The connections are closed after the test."""
    stack = contextlib.AsyncExitStack()

    async def opening(service, peer_id, *arguments, **options):
        peer = await open_peer(service.port, peer_id, *arguments, **options)
        stack.push_async_callback(peer.close)
        return peer

    yield opening
    io_loop.run_sync(stack.aclose)


async def exchange(sender, receiver, dst, payload):
    """Send an offer, and check that it arrives."""
    await sender.send("OFFER", dst, payload=payload)
    assert (await receiver.next())["payload"] == payload


async def text(service, target, origin=ORIGIN, **options):
    response = await service.raw(head("GET", target, with_origin(origin, **options)))
    return response.status, response.headers["Content-Type"], response.body.decode()


async def ids(service, key="peerjs", origin=ORIGIN):
    status, kind, body = await text(service, f"/{key}/peers", origin)
    assert (status, kind) == (200, "application/json")
    return sorted(json.loads(body))


async def until_free(service, peer_id, token):
    """Wait until another token gets an id, and return the connection."""
    async with asyncio.timeout(BOUND_S):
        while True:
            peer = await connect_peer(service.port, key="peerjs", id=peer_id, token=token)
            if (await peer.next())["type"] == "OPEN":
                return peer
            await peer.closed()
            await asyncio.sleep(0.01)


async def is_taken(service, peer_id, **options):
    peer = await connect_peer(service.port, **{"key": "peerjs", "id": peer_id, "token": "another token", **options})
    message = await peer.next()
    assert message in (TAKEN, {"type": "OPEN"})
    if message == TAKEN:
        assert (await peer.closed())[0] == 1005
    await peer.close()
    return message == TAKEN


async def test_id_is_a_new_uuid_as_text(service):
    for key in ("peerjs", "another%20key", "peerjs/peerjs", "peerjs/another%20key"):
        target = f"/{key}/id?ts=17000.5&version=1.5.5"
        response = await service.raw(head("GET", target, with_origin(ORIGIN)))
        assert (response.status, response.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert (allowed_origin(response), response.headers.get_list("Vary")) == (ORIGIN, ["Origin"])
        assert UUID.fullmatch(response.body.decode())
        assert (await text(service, target))[2] != response.body.decode()


async def test_peers_are_listed_only_if_the_operator_allows_it(start_service, opened):
    closed, open_ = await start_service(), await start_service(peerjs_discovery=True)
    assert await text(closed, "/peerjs/peers") == (401, "text/plain; charset=utf-8", "Unauthorized")
    assert await ids(open_) == []
    for peer_id, key in (("a", "peerjs"), ("b", "peerjs"), ("c", "another key")):
        await opened(open_, peer_id, key=key)
    assert await ids(open_) == ["a", "b"]
    assert await ids(open_, "another%20key") == await ids(open_, "peerjs/another%20key") == ["c"]
    await opened(open_, "d", prefix="/peerjs")
    assert await ids(open_) == await ids(open_, "peerjs/peerjs") == ["a", "b", "d"]
    assert await ids(open_, origin=OTHER) == []


async def test_list_of_peers_is_bounded_and_charged(start_service, opened, monkeypatch):
    monkeypatch.setattr(peerjs, "MAX_LISTED", 2 * peerjs.GROUPS)
    monkeypatch.setattr(peerjs, "LISTED_PER_UNIT", 1)
    service = await start_service(unlimited_addresses=(), peerjs_discovery=True, rate_per_address=20)
    given = {str(number) for number in range(100)}
    for peer_id in given:
        await opened(service, peer_id)
    listed = await ids(service)
    assert len(listed) == 2 * peerjs.GROUPS
    assert given.issuperset(listed)
    statuses = [(await text(service, "/peerjs/peers"))[0] for _ in range(5)]
    assert statuses[-1] == 429


@pytest.mark.parametrize("code", [1000, 1001])
async def test_live_id_is_taken_and_free_at_once_after_a_clean_close(code, start_service, opened):
    service = await start_service(hold_grace_ms=3_600_000)
    peer = await opened(service, "a")
    assert await is_taken(service, "a")
    await exchange(peer, peer, "a", 1)
    await peer.socket.close(code)
    await (await until_free(service, "a", "another token")).close()


async def test_id_is_kept_for_its_token_after_an_abnormal_loss(start_service, opened, pass_time):
    service = await start_service(hold_grace_ms=10_000, peerjs_discovery=True)
    peer = await opened(service, "a", "its token")
    peer.abort()
    assert await is_taken(service, "a")
    peer = await opened(service, "a", "its token")
    await pass_time(11)  # the grace period of the lost connection ends
    assert await is_taken(service, "a")
    peer.abort()
    assert await is_taken(service, "a")
    await pass_time(9)
    assert await is_taken(service, "a")
    await pass_time(2)
    await (await until_free(service, "a", "another token")).close()


async def test_reconnection_replaces_the_earlier_connection_also_after_an_outage(service, opened, monkeypatch):
    first, other = await opened(service, "a", "its token"), await opened(service, "b", "its token")
    earlier = await opened(service, "a", "its token")
    assert await first.closed() == (1000, "taken over")
    await exchange(other, earlier, "a", "for the later one")
    assert await is_taken(service, "a")
    relay, calls = service.application.relay, []

    async def fail(*arguments):
        calls.append(arguments)
        raise Unavailable("redis")

    with monkeypatch.context() as outage:
        outage.setattr(relay, "find", fail)
        await opened(service, "a", "its token")
        relay.publish(Channel(make_scope("peerjs", ORIGIN, "peerjs"), "id b"), b"taken over by an earlier owner")
        await until(lambda: len(calls) > 3)
        assert (earlier.socket.close_code, other.socket.close_code) == (None, None)
    assert await earlier.closed() == (1000, "taken over")
    await asyncio.sleep(2 * RETRY_S)  # `b` is checked at least once
    assert await is_taken(service, "b")
    assert other.socket.close_code is None


async def test_too_long_query_is_refused_and_a_client_without_an_id_cannot_send(service, opened):
    for query in ({"key": "k", "id": "a" * 257, "token": "t"}, {"key": "k" * 257, "id": "a", "token": "t"}):
        peer = await connect_peer(service.port, **query)
        assert await peer.next() == {"type": "ERROR", "payload": {"msg": TOO_LONG}}
        assert await peer.closed() == (1005, "")
    peer = await opened(service, "a")
    async with contextlib.AsyncExitStack() as stack:
        for query in ({"id": "a", "token": "x", "key": "peerjs"}, {"id": "", "token": "x", "key": "peerjs"}):
            refused = await connect_peer(service.port, **query)
            stack.push_async_callback(refused.close)
            with contextlib.suppress(ConnectionClosed):  # if the server was faster
                await refused.send("OFFER", "a", payload="forged")
            await refused.closed()
    left = await opened(service, "b")
    await left.send("LEAVE")
    await left.send("OFFER", "a", payload="lost")
    await (await until_free(service, "b", "another token")).close()
    await peer.nothing_before(("a", "own"))
    await left.close()


JUNK = [
    *("", "nonsense", "[1]", "null", "5", '"OFFER"', "{", '{"type":"OFFER"}', '{"type":"OFFER","dst":""}'),
    *('{"type":"OFFER","dst":5}', '{"type":"OFFER","dst":["b"]}', '{"type":["OFFER"],"dst":"b"}', '{"type":{}}'),
    *('{"type":"HEARTBEAT"}', '{"type":"UNKNOWN","dst":"b"}', '{"type":"OPEN","dst":"b"}'),
    *('{"dst":"b"}', '{"type":"LEAVE","dst":"absent"}', '{"type":"EXPIRE","dst":"absent"}'),
    json.dumps({"type": "OFFER", "dst": "b" * 257}),
    *('{"type":"OFFER","dst":"b","payload":' + "[" * levels + "]" * levels + "}" for levels in (300, 1020, 5000)),
    b"\xff\xfe",
]  # fmt: skip


async def test_messages_arrive_at_any_id_and_junk_is_ignored(service, opened):
    one, other = await opened(service, "a"), await opened(service, "b")
    for junk in JUNK:
        await one.socket.send(junk)
    await one.nothing_before(("a", "own"))
    await exchange(one, other, "b", "after all that")
    for name in ("two words", "ä ö/ü?&#%20", '"quoted"\\', "x" * MAX_NAME, "ids 3", "taken over by x"):
        peer = await opened(service, name)
        await one.send("OFFER", name, payload=name)
        assert await peer.next() == {"type": "OFFER", "src": "a", "dst": name, "payload": name}


async def test_messages_to_an_absent_id_arrive_in_order_after_open_and_no_expire_is_sent(service, opened, pass_time):
    """Those of a sender that has left do not arrive."""
    one, two, left = [await opened(service, name) for name in ("a", "c", "d")]
    await left.send("OFFER", "b", payload="of one that has left")
    await left.nothing_before(("d", "own"))
    await left.close()
    await (await until_free(service, "d", "another token")).close()
    for number in range(10):
        await one.send(("OFFER", "ANSWER", "CANDIDATE")[number % 3], "b", payload=number)
    await one.send("LEAVE", "b")  # dropped
    await two.send("OFFER", "b", payload="of another sender")
    await one.nothing_before(("a", "own"))
    await two.nothing_before(("c", "own"))
    other = await opened(service, "b")
    messages = [await other.next() for _ in range(11)]
    assert [each["payload"] for each in messages if each["src"] == "a"] == [*range(10)]
    assert [each["payload"] for each in messages if each["src"] == "c"] == ["of another sender"]
    await exchange(one, other, "b", "directly")
    await pass_time(6)
    await one.nothing_before(("a", "again"))


async def test_sender_gets_one_expire_for_each_absent_id_and_later_attempt(service, opened, pass_time):
    peer = await opened(service, "a")
    for attempt in range(2):
        for dst in ("b", "c", "b", "d" * (MAX_NAME + 1), "b"):
            await peer.send("OFFER", dst, payload=1)
        await peer.nothing_before(("a", f"own {attempt}"))
        await pass_time(4)
        await peer.nothing_before(("a", f"later {attempt}"))
        await pass_time(2)
        await peer.send("OFFER", "a", payload="behind them")
        assert [await peer.next() for _ in range(2)] == [{"type": "EXPIRE", "src": dst, "dst": "a"} for dst in "bc"]
        assert (await peer.next())["payload"] == "behind them"
    await peer.nothing_before(("a", "own"))


@pytest.mark.parametrize(("payload", "count"), [("x", 100), ("x" * 20_000, 3)])
async def test_messages_to_absent_ids_are_bounded(payload, count, service, opened):
    peer = await opened(service, "a")
    for number in range(count + 5):
        await peer.send("OFFER", "b", payload=[number, payload])
    await peer.send("OFFER", "c", payload=payload)
    assert await peer.next() == {"type": "EXPIRE", "src": "c", "dst": "a"}
    other = await opened(service, "b")
    assert [(await other.next())["payload"][0] for _ in range(count)] == [*range(count)]
    await other.nothing_before(("b", "own"))
    await peer.send("OFFER", "c", payload=payload)  # there is room again
    await peer.nothing_before(("a", "own"))


async def test_ids_of_other_keys_are_separate_and_those_of_a_shared_protocol_are_of_all_origins(start_service, opened):
    service = await start_service(shared_protocols=("peerjs",), peerjs_discovery=True)
    peers = [await opened(service, name, origin=origin) for name, origin in (("a", ORIGIN), ("b", OTHER), ("c", None))]
    for origin in (ORIGIN, OTHER, None):
        assert await ids(service, origin=origin) == ["a", "b", "c"]
    assert UUID.fullmatch((await text(service, "/peerjs/id", None))[2])
    assert await is_taken(service, "a", origin=OTHER)
    for number, peer in enumerate((peers[0], await opened(service, "a", "another", key="another key"))):
        await exchange(peer, peer, "a", number)


async def test_ids_of_an_address_are_limited_and_a_drain_closes_with_1012_and_keeps_them(start_service, opened):
    service = await start_service(max_sessions_per_address=3, unlimited_addresses=())
    first = await opened(service, "a", "its token")
    second = await connect_peer(service.port, key="peerjs", id="b", token="t")
    assert (await second.closed())[0] == 1008
    await first.nothing_before(("a", "own"))
    service.server.close_websockets(0)
    assert (await first.closed())[0] == 1012
    assert await is_taken(service, "a")
