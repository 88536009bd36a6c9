"""Connections of clients of all protocols: unexpected errors, the cost of messages, unusual JSON, cancellation."""

import asyncio
import json
import logging

import pytest
from support.peerjs import open_peer
from support.rpc import BOUND_S, RpcClient
from support.service import ORIGIN, TIMEOUT_MS
from websockets.asyncio.client import connect

from tornado_signal.protocols import peerjs
from tornado_signal.protocols.connection import ProtocolConnection
from tornado_signal.websocket import rpc

MESSAGES = {  # a message that is processed at once, and one whose work is awaited
    "/ws": ['{"jsonrpc":"2.0","id":1,"method":"health"}'],
    "/peerjs?id=a&token=t&key=k": ['{"type":"HEARTBEAT"}', '{"type":"LEAVE"}'],
    "/y-webrtc": ['{"type":"ping"}', '{"type":"subscribe","topics":["a"]}'],
    "/tracker": ['{"action":"scrape"}'],
}


def open_socket(service, path):
    return connect(f"ws://127.0.0.1:{service.port}{path}", origin=ORIGIN, compression=None, ping_interval=None)


async def until(condition):
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
@pytest.mark.parametrize("path", MESSAGES)
async def test_unexpected_error_closes_the_connection_and_ends_the_message(
    path, error, later, service, monkeypatch, caplog
):
    async def fail_later():
        raise error

    def fail(*arguments):
        if later:
            return fail_later()
        raise ZeroDivisionError

    async with open_socket(service, path) as socket:
        if path == "/ws":
            monkeypatch.setattr(rpc, "parse", lambda message: [])
        else:
            monkeypatch.setattr(ProtocolConnection, "_handle", fail)
        await socket.send(MESSAGES[path][0])
        await socket.send(MESSAGES[path][-1])
        await asyncio.wait_for(socket.wait_closed(), BOUND_S)
        assert socket.close_code == 1013
    monkeypatch.undo()
    assert [record.name for record in caplog.records if record.levelno >= logging.ERROR]
    caplog.clear()
    await asyncio.wait_for(service.shared.drain(), BOUND_S)
    assert not service.shared.running


@pytest.mark.parametrize("path", MESSAGES)
async def test_large_message_is_charged_for_each_16_kib(path, service, monkeypatch):
    charged, charge = [], service.shared.limits.charge_request

    def recording(client, now_ms, units=1):
        charged.append(units)
        return charge(client, now_ms, units)

    async with open_socket(service, path) as socket:
        await (await socket.ping())
        monkeypatch.setattr(service.shared.limits, "charge_request", recording)
        await socket.send('{"jsonrpc":"2.0","id":1,"method":"health"}'.ljust(33 * 1024))
        await until(lambda: charged)
        assert charged == [3]


async def test_names_of_an_unsubscription_are_charged_like_those_of_a_subscription(start_service):
    service = await start_service(unlimited_addresses=(), rate_per_address=1)
    async with open_socket(service, "/y-webrtc") as socket:
        await socket.send(json.dumps({"type": "unsubscribe", "topics": [f"t{number}" for number in range(1000)]}))
        await asyncio.wait_for(socket.wait_closed(), BOUND_S)
        assert (socket.close_code, socket.close_reason) == (1008, "too many requests of an address")


UNUSUAL = ['"Party \\ud83c"', '{"\\udfff":[1.5,12345678901234567890,-7]}', "[1e400,-1E+999,1]"]
RECEIVED = ["Party \ud83c", {"\udfff": [1.5, 12345678901234567890, -7]}, [None, None, 1]]


@pytest.mark.parametrize(("sent", "expected"), [*zip(UNUSUAL, RECEIVED, strict=True)], ids=UNUSUAL)
async def test_all_valid_json_is_delivered(sent, expected, service):
    a, b = await open_peer(service.port, "a"), await open_peer(service.port, "b")
    await a.socket.send(f'{{"type":"OFFER","dst":"b","payload":{sent}}}')
    assert (await b.next())["payload"] == expected
    await a.close()
    await b.close()
    for kind in ("data", "payload"):
        async with open_socket(service, "/y-webrtc") as socket:
            topics = '"topics":["r"]' if kind == "data" else '"topic":"r"'
            await socket.send(f'{{"type":"subscribe",{topics}}}')
            await socket.send(f'{{"type":"publish","topic":"r","{kind}":{sent}}}')
            assert json.loads(await asyncio.wait_for(socket.recv(), BOUND_S))[kind] == expected
    async with open_socket(service, "/tracker") as first, open_socket(service, "/tracker") as second:
        announce = {"action": "announce", "info_hash": "h" * 20, "event": "started"}
        await first.send(json.dumps({**announce, "peer_id": "1" * 20}))
        await asyncio.wait_for(first.recv(), BOUND_S)
        text = json.dumps({**announce, "peer_id": "2" * 20, "offers": [{"offer": 1, "offer_id": 2}]})
        await second.send(text.replace('"offer": 1', f'"offer": {sent}'))
        assert json.loads(await asyncio.wait_for(first.recv(), BOUND_S))["offer"] == expected


@pytest.mark.parametrize("junk", ["NaN", "[Infinity]", '{"\\ud83c":' + "[" * 100_000, "1" * 5000 + "x", "\ufeff{}"])
async def test_what_is_not_json_is_ignored(junk, service):
    async with open_socket(service, "/y-webrtc") as socket:
        await socket.send(junk)
        await socket.send('{"type":"ping"}')
        assert json.loads(await asyncio.wait_for(socket.recv(), BOUND_S)) == {"type": "pong"}


async def test_rooms_with_lone_surrogates_in_their_names_work(service):
    async with open_socket(service, "/y-webrtc") as socket:
        await socket.send('{"type":"subscribe","topics":["\\ud83c"]}')
        await socket.send('{"type":"publish","topic":"\\ud83c","data":1}')
        assert json.loads(await asyncio.wait_for(socket.recv(), BOUND_S))["topic"] == "\ud83c"


async def test_message_to_an_id_with_a_lone_surrogate_expires_at_once(service):
    a = await open_peer(service.port, "a")
    await a.socket.send('{"type":"OFFER","dst":"\\ud83c"}')
    assert await a.next() == {"type": "EXPIRE", "src": "\ud83c", "dst": "a"}
    await a.close()


async def test_messages_for_absent_ids_are_in_the_budget_for_unread_data(service):
    a = await open_peer(service.port, "a")
    unsent = service.server.state.unsent
    for _ in range(3):
        await a.send("OFFER", "absent", payload="x" * 30_000)
    await until(lambda: unsent.bytes > 60_000)
    assert unsent.bytes < peerjs.MAX_KEPT_BYTES
    b = await open_peer(service.port, "absent")
    assert len((await b.next())["payload"]) == 30_000
    await until(lambda: not unsent.bytes)
    await a.send("OFFER", "also absent", payload="x" * 30_000)
    await until(lambda: unsent.bytes > 30_000)
    a.abort()
    await until(lambda: not unsent.bytes)
    await b.close()


async def test_token_of_a_peerjs_client_does_not_stay_in_memory(service):
    a = await open_peer(service.port, "a", "the token")
    (socket,) = service.server.state.connections
    assert "the token" not in str([getattr(socket.receiver, name) for name in ("client", "_token", "_peer_id")])
    await a.close()


# Cancellation


async def test_cancelled_wait_ends_without_a_response_and_frees_its_place(service):
    code = await service.offer()
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        other = client.send("poll", code=code, side="offerer", wait=30)
        await until(lambda: service.shared.limits.waiting == 1)
        message = {"jsonrpc": "2.0", "method": "poll", "params": {"code": code, "side": "offerer", "wait": 30}}
        for id_ in ("x", 7.5, None):
            await client.socket.send(json.dumps(message | {"id": id_}))
            await until(lambda: service.shared.limits.waiting == 2)
            cancellation = {"jsonrpc": "2.0", "method": "cancel", "params": {"id": id_}}
            await client.socket.send(json.dumps(cancellation))
            await until(lambda: service.shared.limits.waiting == 1)
        # Also before it waits, and in a batch, whose other responses arrive.
        batch = [message | {"id": "y"}, {"jsonrpc": "2.0", "method": "health", "id": "z"}]
        arrived = client.expect(json.dumps(["z"]))
        await client.socket.send(json.dumps(batch))
        await client.socket.send(json.dumps(cancellation | {"params": {"id": "y"}}))
        assert [response["id"] for response in await asyncio.wait_for(arrived, BOUND_S)] == ["z"]
        assert await client.call("cancel", id="of no request") == {"success": True}
        assert (await client.refused("cancel", id=[]))[0] == 400
        assert service.shared.limits.waiting == 1
        service.clock.ms += TIMEOUT_MS
        await service.store.expiry.sweep(service.clock.ms)
        assert (await asyncio.wait_for(other, BOUND_S))["error"]["code"] == 404
    assert not service.shared.running
