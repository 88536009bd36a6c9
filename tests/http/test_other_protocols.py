"""Clients of other protocols: the close reason or body, and the log, say what an endpoint expects."""

import json

import pytest
from support.rpc import RpcClient
from support.service import HANDSHAKE, ORIGIN, head, with_origin
from websockets.asyncio.client import connect

from tornado_signal.service import other_protocols
from tornado_signal.system.hourly import INTERVAL_S, MAX_CAUSES, HourlyWarnings

MESSAGES = {
    "Godot": {"type": 0, "id": 0, "data": ""},
    "JSON-RPC": {"jsonrpc": "2.0", "id": 1, "method": "health"},
    "matchbox": "KeepAlive",
    "Nostr": ["REQ", "a", {"kinds": [20000]}],
    "PeerJS": {"type": "OFFER", "dst": "a", "payload": {}},
    "RxDB": {"type": "join", "room": "a room"},
    "WebTorrent": {"action": "announce", "info_hash": "a" * 20},
    "y-webrtc": {"type": "subscribe", "topics": ["a"]},
}
QUERIES = {"PeerJS": "?key=peerjs&id=a&token=b"}


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("expected", MESSAGES)
async def test_endpoint_names_the_right_path_and_the_log_does_once(expected, service, caplog):
    path = other_protocols.PATHS[expected]
    for found in MESSAGES.keys() - {expected}:
        reason = f"{path} is for {expected}; for {found} use {other_protocols.PATHS[found]}"
        for _ in range(2):
            url = f"ws://127.0.0.1:{service.port}{path}{QUERIES.get(expected, '')}"
            async with connect(url, origin=ORIGIN) as socket:
                await socket.send(json.dumps(MESSAGES[found]))
                await socket.wait_closed()
            assert (socket.close_code, socket.close_reason) == (1008, reason)
        (warning,) = warnings(caplog)
        assert reason in warning
        caplog.clear()
        service.shared.client_warnings = HourlyWarnings()


async def test_message_of_no_protocol_is_the_endpoints_own_matter(service, caplog):
    async with RpcClient(f"ws://127.0.0.1:{service.port}/ws", ORIGIN) as client:
        await client.socket.send('["nothing"]')
        assert (await client.call("health"))["status"] == "ok"
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("target", "headers", "status", "text"),
    [
        ("/socket.io/?EIO=4&transport=polling", [], 404, "Socket.IO is not served here"),
        ("/socket.io/?EIO=4&transport=websocket", HANDSHAKE, 404, "Socket.IO is not served here"),
        ("/signal/ws", HANDSHAKE, 404, "No WebSocket here: use /ws"),
        ("/lobby/sessions", HANDSHAKE, 200, "use /ws"),
    ],
)
async def test_other_client_at_a_path_reads_or_logs_what_is_expected(target, headers, status, text, service, caplog):
    for _ in range(2):
        response = await service.raw(head("GET", target, with_origin(ORIGIN, headers)))
        assert (response.status, response.json) == (status, {"sessions": []} if status == 200 else {"error": text})
    (warning,) = warnings(caplog)
    assert text in warning


def test_each_address_causes_one_warning_an_hour_and_memory_is_bounded():
    hourly = HourlyWarnings()
    assert [hourly.due("a", 0.0), hourly.due("a", 1.0), hourly.due("b", 2.0)] == [True, False, True]
    assert hourly.due("a", INTERVAL_S)
    due = [hourly.due(str(number), INTERVAL_S) for number in range(2 * MAX_CAUSES)]
    assert sum(due) == MAX_CAUSES - 2  # `a` and `b`
    assert hourly.due("b", INTERVAL_S + 2.0)
