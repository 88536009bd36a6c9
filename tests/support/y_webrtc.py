"""A raw client of a WebSocket, with the messages of y-webrtc and of trystero's ws-relay (docs/y-webrtc.md)."""

import asyncio
import contextlib
import json

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

BOUND_S = 30
PONG = {"type": "pong"}


class RawClient:
    def __init__(self, url, origin, **options):
        self._connecting = connect(url, origin=origin, compression=None, ping_interval=None, max_size=None, **options)

    async def __aenter__(self):
        self.socket = await self._connecting
        return self

    async def __aexit__(self, *exc):
        await self.socket.close()

    def abort(self):
        """Lose the connection without a closing handshake."""
        self.socket.transport.abort()

    async def send(self, message):
        """Send text or bytes unchanged, or anything else as JSON."""
        async with asyncio.timeout(BOUND_S):
            await self.socket.send(message if isinstance(message, str | bytes) else json.dumps(message))

    async def ping(self):
        """Wait until the server has read everything sent before."""
        async with asyncio.timeout(BOUND_S):
            await (await self.socket.ping())

    async def subscribe(self, *topics):
        await self.send({"type": "subscribe", "topics": topics})
        await self.read()

    async def publish(self, topic, data, **more):
        await self.send({"type": "publish", "topic": topic, "data": data, **more})

    async def receive(self):
        text = await asyncio.wait_for(self.socket.recv(), BOUND_S)
        assert isinstance(text, str)
        return json.loads(text)

    async def read(self):
        """Return all messages up to the response to a ping, when the server has handled everything sent before it."""
        await self.send({"type": "ping"})
        messages = []
        while (message := await self.receive()) != PONG:
            messages.append(message)
        return messages

    async def close_frame(self):
        """Return the code and the reason of the end. Messages that are left can be read meanwhile."""
        await asyncio.wait_for(self.socket.wait_closed(), BOUND_S)
        return self.socket.close_code, self.socket.close_reason

    async def closed(self):
        return (await self.close_frame())[0]

    async def ended(self):
        """Return the code and the reason of the end, after dropping all messages."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                await asyncio.wait_for(self.socket.recv(), BOUND_S)
        return self.socket.close_code, self.socket.close_reason


def published(topic, data, clients, **more):
    return {"type": "publish", "topic": topic, "data": data, "clients": clients, **more}
