"""Frames of WebSockets as RFC 6455 has them, at endpoints for text and for text and binary messages."""

import asyncio
import contextlib
import json
import socket

import pytest
from support.frame_vectors import CLOSE, PING, TEXT, VECTORS, frame, message
from support.service import HANDSHAKE, ORIGIN, head, with_origin
from websockets.frames import Close, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

ENDPOINTS = {"/ws": 1003, "/y-webrtc": None}  # and the code after a binary message
LAST = "the last"
BOUND_S = 30


async def exchange(port, path, sent, count, size):
    """Return texts, data of pongs, and code of the close frame from the server. Close after `count` other frames."""
    texts, pongs, loop, protocol = [], [], asyncio.get_running_loop(), Protocol(CLIENT, state=OPEN, max_size=None)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_sendall(client, head("GET", path, with_origin(ORIGIN, HANDSHAKE)))
        data = b""
        while b"\r\n\r\n" not in data:
            data += await loop.sock_recv(client, 1 << 16)
        with contextlib.suppress(ConnectionError):  # a close frame can be read although the server takes no more
            if path == "/y-webrtc":
                await loop.sock_sendall(client, frame(TEXT, b'{"type":"subscribe","topics":["t"]}'))
            for at in range(0, len(sent), size):
                await loop.sock_sendall(client, sent[at : at + size])
                await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            while data := await asyncio.wait_for(loop.sock_recv(client, 1 << 16), BOUND_S):
                protocol.receive_data(data)
                for each in protocol.events_received():
                    if each.opcode is Opcode.CLOSE:
                        return texts, pongs, Close.parse(bytes(each.data)).code
                    (texts if each.opcode is Opcode.TEXT else pongs).append(bytes(each.data))
                if count == len(texts) + len(pongs):
                    await loop.sock_sendall(client, frame(CLOSE, b"\3\xe8"))
    return texts, pongs, None


def echoes(path, messages):
    """Return the texts that an endpoint answers messages with."""
    known = [json.loads(each)["data"] if each.startswith(b"{") else None for each in messages]
    return known if path == "/ws" else [text for text in known if text is not None]


@pytest.mark.parametrize("size", [1 << 20, 7, 1], ids=["whole", "in pieces", "in bytes"])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_frames_are_handled_as_in_rfc_6455(path, size, service):
    found, wanted = {}, {}
    for name, (sent, messages, pings, code, binary) in VECTORS.items():
        if len(sent) > 300 * size:
            continue
        code = ENDPOINTS[path] if binary else code
        open_, texts, pongs = code is None, [*echoes(path, messages), LAST], [*pings, b"last"]
        if open_:  # otherwise messages before the close may be answered or not
            sent += frame(TEXT, message(text=LAST)) + frame(PING, b"last")
        wanted[name] = (texts, pongs, 1000) if open_ else code
        count = len(texts + pongs) if open_ else -1
        answers, pongs, code = await exchange(service.port, path, sent, count, size)
        texts = [each["data"] if "data" in each else each["id"] for each in map(json.loads, answers)]
        found[name] = (texts, pongs, code) if open_ else code
    assert found == wanted
