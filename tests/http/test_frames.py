"""Frames of WebSockets as RFC 6455 has them, and the memory that WebSockets keep and count."""

import asyncio
import contextlib
import json
import socket
import tracemalloc

import pytest
from support.frame_vectors import CLOSE, CONT, MORE, PING, TEXT, VECTORS, frame, message
from support.rpc import until
from support.service import HANDSHAKE, ORIGIN, head, with_origin
from websockets.frames import Close, Opcode
from websockets.protocol import CLIENT, OPEN, Protocol

from tornado_signal.transport import websocket

ENDPOINTS = {"/ws": 1003, "/y-webrtc": None}  # and the code after a binary message
LAST = "the last"
BOUND_S = 30


async def exchange(port, path, sent, count):
    """Return texts, data of pongs, and code of the close frame from the server. Close after `count` other frames."""
    texts, pongs, loop, protocol = [], [], asyncio.get_running_loop(), Protocol(CLIENT, state=OPEN, max_size=None)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_sendall(client, head("GET", path, with_origin(ORIGIN, HANDSHAKE)))
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await loop.sock_recv(client, 1 << 16)
            assert chunk, data
            data += chunk
        with contextlib.suppress(ConnectionError):  # a close frame can be read although the server takes no more
            if path == "/y-webrtc":
                await loop.sock_sendall(client, frame(TEXT, b'{"type":"subscribe","topics":["t"]}'))
            await loop.sock_sendall(client, sent)
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


@pytest.mark.parametrize("path", ENDPOINTS)
async def test_frames_are_handled_as_in_rfc_6455(path, service):
    found, wanted = {}, {}
    for name, (sent, messages, pings, code, binary) in VECTORS.items():
        code = ENDPOINTS[path] if binary else code
        open_, texts, pongs = code is None, [*echoes(path, messages), LAST], [*pings, b"last"]
        if open_:  # otherwise messages before the close may be answered or not
            sent += frame(TEXT, message(text=LAST)) + frame(PING, b"last")
        wanted[name] = (texts, pongs, 1000) if open_ else code
        count = len(texts + pongs) if open_ else -1
        answers, pongs, code = await exchange(service.port, path, sent, count)
        texts = [each["data"] if "data" in each else each["id"] for each in map(json.loads, answers)]
        found[name] = (texts, pongs, code) if open_ else code
    assert found == wanted


MESSAGES = {
    "/ws": b'{"jsonrpc":"2.0","id":1,"method":"health"}',
    "/peerjs?id=a&key=k": b'{"type":"HEARTBEAT"}',
    "/y-webrtc": b'{"type":"ping"}',
    "/tracker": b'{"action":"scrape"}',
    "/nostr": b'["CLOSE","id"]',
}


async def upgraded(stack, service, path="/ws"):
    connection = await stack.enter_async_context(service.connect())
    await connection.send(head("GET", path, with_origin(ORIGIN, HANDSHAKE)))
    assert b" 101 " in await connection.reader.readuntil(b"\r\n\r\n")
    return connection


async def ping(connections):
    """Wait until the server has processed everything sent before."""
    for connection in connections:
        await connection.send(frame(PING, b"done?"))
    for connection in connections:
        await asyncio.wait_for(connection.reader.readuntil(b"done?"), BOUND_S)


@pytest.fixture
def traced():
    """The function that returns the bytes in memory since the last call of `tracemalloc.clear_traces`."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize(("path", "message"), MESSAGES.items())
async def test_neither_the_query_of_a_handshake_nor_a_large_message_stays_in_memory(path, message, service, traced):
    token = "&token=" if "?" in path else "?token="
    async with contextlib.AsyncExitStack() as stack:
        targets = [f"{path.replace('id=a', f'id={number}')}{token}{number}".ljust(24_000, "x") for number in range(30)]
        connections = [await upgraded(stack, service, target) for target in targets]
        del targets
        assert traced() < len(connections) * 16_000
        data = frame(TEXT, message.ljust(256 * 1024)) + frame(TEXT, b"{".ljust(1500)) * 3
        tracemalloc.clear_traces()
        for connection in connections:
            await connection.send(data)
        await ping(connections)
        await until(lambda: not service.server.state.unfinished.bytes)
        assert traced() < len(connections) * 20_000


async def test_tiny_fragments_take_no_more_memory_than_is_counted(service, traced):
    async with contextlib.AsyncExitStack() as stack:
        connection = await upgraded(stack, service)
        fragments = frame(CONT | MORE, b"ab") * 20_000
        await connection.send(frame(TEXT | MORE, b"x"))
        tracemalloc.clear_traces()
        await connection.send(fragments)
        await until(lambda: service.server.state.unfinished.bytes >= 40_000)
        await ping([connection])
        assert traced() < 3 * 40_000


async def test_messages_sent_while_a_client_breaks_the_rules_are_dropped(service, monkeypatch):
    sockets = []

    def process(self, opcode, data):
        sockets.append(self)
        self.send(b"before")
        self.send_part(b"", first=True)
        self.receiver.frame_received()

    monkeypatch.setattr(websocket.WebSocket, "_process", process)
    async with contextlib.AsyncExitStack() as stack:
        connection = await upgraded(stack, service)
        await connection.send(frame(PING) + frame(CONT, b"x"))  # a violation
        await until(lambda: sockets and sockets[0]._closing)
        sockets[0].send(b"after")
        sockets[0].send_part(b"after", last=True)
        sockets[0].post(b"after")
        received = await asyncio.wait_for(connection.reader.read(), BOUND_S)
    assert received.startswith(b"\x81\x06before\x01\x00\x88")
    assert b"after" not in received
