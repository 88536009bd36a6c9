"""The memory that WebSockets keep and count, and messages that break the rules."""

import asyncio
import contextlib
import tracemalloc

import pytest
from support.frame_vectors import CONT, MORE, PING, TEXT, frame
from support.rpc import open_socket, until
from support.service import HANDSHAKE, ORIGIN, head, with_origin

from tornado_signal.transport import websocket

BOUND_S = 30
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


async def test_binary_message_closes_a_connection_of_the_api(service):
    async with open_socket(service) as client:
        await client.socket.send(b"{}")
        assert await client.closed() == 1003
