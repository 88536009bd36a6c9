"""A client of the PeerJS protocol over a raw WebSocket."""

from urllib.parse import quote, urlencode

from .service import ORIGIN
from .y_webrtc import RawClient


class PeerSocket(RawClient):
    """One connection. `connect_peer` and `open_peer` return it."""

    next = RawClient.receive
    closed = RawClient.close_frame

    async def send(self, kind, dst=None, **fields):
        """Send a message, whose payload can be among the fields."""
        await super().send({"type": kind, **({} if dst is None else {"dst": dst}), **fields})

    async def nothing_before(self, marker):
        """Check that no message is pending. `marker` is unique: the connection sends it to its own id and waits."""
        await self.send("OFFER", marker[0], payload=marker)
        assert (await self.next())["payload"] == list(marker)

    async def close(self):
        await self.socket.close()


async def connect_peer(port, origin=ORIGIN, prefix="", **query):
    """Complete a handshake with the query of a client."""
    query = urlencode(query, quote_via=quote)
    return await PeerSocket(f"ws://127.0.0.1:{port}{prefix}/peerjs?{query}", origin).__aenter__()


async def open_peer(port, peer_id, token=None, *, key="peerjs", **options):
    """Connect with an id and wait for OPEN. The default token is derived from the id."""
    peer = await connect_peer(port, key=key, id=peer_id, token=token or f"token-{peer_id}", **options)
    assert await peer.next() == {"type": "OPEN"}
    return peer
