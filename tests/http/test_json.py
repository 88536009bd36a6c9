"""JSON at the edges of RFC 8259 as payloads of protocols. Bodies and messages of the API have unit tests."""

import asyncio
import contextlib
import json
import math

import pytest
from support.json_vectors import messages
from support.service import ORIGIN
from websockets.asyncio.client import connect

BOUND_S = 30
LAST = "the last"
MISSING = object()
ANNOUNCE = b'{"action":"announce","info_hash":"%b","peer_id":"%%b","offers":[{"offer":%%%%b,"offer_id":"%b"}]}'
ANNOUNCE %= b"h" * 20, b"o" * 20
PEERJS = "/peerjs?key=k&token=t&id="
# Paths of a sender and a receiver, the receiver's first messages, a message with a payload, and the payload's name.
PROTOCOLS = {
    "PeerJS": (f"{PEERJS}a", f"{PEERJS}b", [], b'{"type":"OFFER","dst":"b","payload":%b}', "payload"),
    "y-webrtc": (
        *("/y-webrtc", "/y-webrtc", [b'{"type":"subscribe","topics":["r"]}']),
        *(b'{"type":"publish","topic":"r","data":%b}', "data"),
    ),
    "ws-relay": (
        *("/y-webrtc", "/y-webrtc", [b'{"type":"subscribe","topic":"r"}']),
        *(b'{"type":"publish","topic":"r","payload":%b}', "payload"),
    ),
    "tracker": ("/tracker", "/tracker", [ANNOUNCE % (b"b" * 20) % b"1"], ANNOUNCE % (b"a" * 20), "offer"),
}


def open_socket(service, path):
    return connect(f"ws://127.0.0.1:{service.port}{path}", origin=ORIGIN, compression=None, max_queue=None)


def is_text(message):
    """Return whether a message is UTF-8. Otherwise it must be binary."""
    with contextlib.suppress(UnicodeDecodeError):
        return bool(message.decode())


def parse(text):
    return json.loads(text, parse_int=finite, parse_float=finite)


def finite(text):
    """Return a number, or None if it is infinite as a double. The protocols deliver null in its place."""
    value = float(text)
    return value if math.isfinite(value) else None


@pytest.mark.parametrize("unusual", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_payload_is_delivered_if_it_is_json(protocol, unusual, service):
    sending, receiving, hello, template, name = PROTOCOLS[protocol]
    found, expected = {}, {}
    async with open_socket(service, sending) as sender, open_socket(service, receiving) as receiver:
        for message in (*hello, b'{"type":"ping"}'):
            await receiver.send(message, text=True)
        await asyncio.wait_for(receiver.recv(), BOUND_S)  # its hello has been handled
        for message, value in messages(template, unusual=unusual):
            expected[message] = [parse(value)] if value else []
            await sender.send(message, text=is_text(message))
            await sender.send(template % json.dumps(LAST).encode(), text=True)
            found[message] = []
            while (received := parse(await asyncio.wait_for(receiver.recv(), BOUND_S)).get(name, MISSING)) != LAST:
                found[message] += [] if received is MISSING else [received]
    assert found == expected
