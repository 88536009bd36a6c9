"""Peers that meet over one WebSocket each at a PeerJS server, as PeerJS's own client does."""

import orjson

from .peers import Pair, Peer
from .processes import BenchError
from .sockets import WebSocket, frame, open_socket


class Meeting:
    """The way one pair meets, with prepared messages."""

    def __init__(self, base: str, pair: Pair) -> None:
        self._base = base
        both = self._offerer, self._answerer = pair.offerer, pair.answerer
        named = {"connectionId": f"dc_{pair.offerer.token}", "type": "data"}
        self._upgrades, self._descriptions, self._candidates = {}, {}, {}
        for kind, peer, other in zip(("OFFER", "ANSWER"), both, reversed(both), strict=True):
            path = f"/peerjs?key=peerjs&id={peer.identity}&token={peer.token}&version=1.5.5"
            self._upgrades[peer] = peer.upgrade(base, path)
            self._descriptions[kind] = _message(kind, {"sdp": orjson.Fragment(peer.description), **named}, other)
            messages = [{"candidate": orjson.Fragment(candidate), **named} for candidate in peer.candidates]
            self._candidates[peer] = [_message("CANDIDATE", message, other) for message in messages]

    async def broker(self) -> None:
        """Broker the pair: an offer, an answer, and the candidates one by one."""
        answerer = await self._join(self._answerer)
        offerer = await self._join(self._offerer)
        offerer.send(self._descriptions["OFFER"])
        await received(answerer, "OFFER")
        answerer.send(self._descriptions["ANSWER"])
        await received(offerer, "ANSWER")
        for mine, theirs in zip(self._candidates[self._offerer], self._candidates[self._answerer], strict=True):
            offerer.send(mine)
            await received(answerer, "CANDIDATE")
            answerer.send(theirs)
            await received(offerer, "CANDIDATE")
        await offerer.close()
        await answerer.close()

    async def _join(self, peer: Peer) -> WebSocket:
        opened = await open_socket(self._base, self._upgrades[peer], peer.address)
        await received(opened, "OPEN")
        return opened


async def received(socket: WebSocket, kind: str) -> dict:
    message = orjson.loads(await socket.next())
    if message["type"] != kind:
        raise BenchError(f"PeerJS sent {message}, which is no {kind}")
    return message


def _message(kind: str, payload: dict, other: Peer) -> bytes:
    return frame(orjson.dumps({"type": kind, "payload": payload, "dst": other.identity}))
