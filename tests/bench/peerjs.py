"""Peers that meet over one WebSocket each at a PeerJS server, as PeerJS's own client does."""

import orjson

from .peers import Pair, Peer
from .processes import BenchError
from .sockets import WebSocket, open_socket


class Meeting:
    """The way one pair meets: an offer, an answer, and the candidates one by one."""

    def __init__(self, base: str, pair: Pair) -> None:
        self._base, self._pair = base, pair

    async def broker(self) -> None:
        one, other = self._pair.offerer, self._pair.answerer
        named = {"connectionId": f"dc_{one.token}", "type": "data"}
        answerer, offerer = await self._join(other), await self._join(one)

        async def send(kind: str, name: str, value: str, *, to_answerer: bool) -> None:
            sender, receiver, peer = (offerer, answerer, other) if to_answerer else (answerer, offerer, one)
            payload = {name: orjson.Fragment(value), **named}
            sender.send_json({"type": kind, "payload": payload, "dst": peer.identity})
            await received(receiver, kind)

        await send("OFFER", "sdp", one.description, to_answerer=True)
        await send("ANSWER", "sdp", other.description, to_answerer=False)
        for mine, theirs in zip(one.candidates, other.candidates, strict=True):
            await send("CANDIDATE", "candidate", mine, to_answerer=True)
            await send("CANDIDATE", "candidate", theirs, to_answerer=False)
        await offerer.close()
        await answerer.close()

    async def _join(self, peer: Peer) -> WebSocket:
        path = f"/peerjs?key=peerjs&id={peer.identity}&token={peer.token}&version=1.5.5"
        opened = await open_socket(self._base, peer.upgrade(self._base, path), peer.address)
        await received(opened, "OPEN")
        return opened


async def received(socket: WebSocket, kind: str) -> None:
    message = orjson.loads(await socket.next())
    if message["type"] != kind:
        raise BenchError(f"PeerJS sent {message}, which is no {kind}")
