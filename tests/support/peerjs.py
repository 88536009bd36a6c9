"""A client of the PeerJS protocol over a raw WebSocket."""

import asyncio
import json
from urllib.parse import quote, urlencode

from websockets.asyncio.client import connect

from .service import ORIGIN

BOUND_S = 30


class PeerSocket:
    """One connection. `connect` and `open_id` return it."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, kind, dst=None, **fields):
        """Send a message, whose payload can be among the fields."""
        message = {"type": kind, **({} if dst is None else {"dst": dst}), **fields}
        await self.socket.send(json.dumps(message))

    async def next(self):
        """Return the next message, which must be text."""
        text = await asyncio.wait_for(self.socket.recv(), BOUND_S)
        assert type(text) is str
        return json.loads(text)

    async def nothing_before(self, marker):
        """Check that no message is pending. `marker` is unique: the connection sends it to its own id and waits."""
        await self.send("OFFER", marker[0], payload=marker)
        assert (await self.next())["payload"] == list(marker)

    async def closed(self):
        """Return the code and reason of the end, after dropping all messages."""
        await asyncio.wait_for(self.socket.wait_closed(), BOUND_S)
        return self.socket.close_code, self.socket.close_reason

    async def close(self):
        await self.socket.close()

    def abort(self):
        """Lose the connection without a closing handshake."""
        self.socket.transport.abort()


async def connect_peer(port, origin=ORIGIN, prefix="", **query):
    """Complete a handshake with the query of a client."""
    query = urlencode(query, quote_via=quote)
    url = f"ws://127.0.0.1:{port}{prefix}/peerjs?{query}"
    return PeerSocket(await connect(url, origin=origin, compression=None, ping_interval=None, max_size=None))


async def open_peer(port, peer_id, token=None, *, key="peerjs", **options):
    """Connect with an id and wait for OPEN. The default token is derived from the id."""
    peer = await connect_peer(port, key=key, id=peer_id, token=token or f"token-{peer_id}", **options)
    assert await peer.next() == {"type": "OPEN"}
    return peer
