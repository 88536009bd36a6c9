"""The lobbies of Godot's WebRTC signaling demo, each with a host, whose id is 1."""

import asyncio
import math
import secrets
from collections.abc import Coroutine
from typing import Any, Final

from ..relay import Channel, JoinResult, Lease
from ..service.request_context import RequestContext
from ..transport.frames import CloseCode
from .connection import MAX_MEMBERS, Rejected, encode, is_name
from .rooms import MemberConnection, Room

PATH: Final = "/godot"
JOIN, ID, PEER_CONNECT, PEER_DISCONNECT, OFFER, ANSWER, CANDIDATE, SEAL = range(8)
HOST: Final = "1"
GUEST, MESH, RELAYED, SEALED = "", "mesh", "relayed", "sealed"  # the data of members; the last three of the host
JOIN_S: Final = 1.0  # a client may be in no lobby for this time
SEALED_S: Final = 10.0  # the members of a sealed lobby stay connected for this time
MAX_ID: Final = 2**31


class GodotConnection(MemberConnection):
    """A member of a lobby. The texts and codes of closed connections are those of the original server."""

    pattern, protocol = PATH, "godot"
    rejection_code = 4000

    __slots__ = ("_timer",)

    def opened(self) -> None:
        self._close_later(JOIN_S, self.rejection_code, "Have not joined lobby yet")

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None] | None:
        self.refuse_other_protocol(message)
        fields = message if type(message) is dict else {}
        kind, number = (_whole(fields.get(name)) for name in ("type", "id"))
        data = fields["data"] if type(fields.get("data")) is str else ""
        if kind == JOIN:
            return self._join(data, context, RELAYED if number else MESH)
        if not self.joined:
            raise Rejected("Invalid message when not in a lobby")
        (room,) = self.joined
        self.authorize_signal(context)
        if kind == SEAL:
            return self._seal(room, context)
        if kind not in (OFFER, ANSWER, CANDIDATE):
            raise Rejected("Invalid command")
        if str(number) not in room.members:
            raise Rejected("Invalid destination")
        room.send(str(number), _encode(kind, self.id, data))
        return None

    async def _join(self, name: str, context: RequestContext, kind: str) -> None:
        """Join a lobby, or make one of a kind, which gets a random name."""
        context.authorize("list")
        if self.joined:
            raise Rejected("Already in a lobby")
        self._timer.cancel()
        lobby = Channel(self.scope, name or secrets.token_hex(8))
        context.require_topic(lobby.name)
        if name:
            host = await self.until_available(lambda: self.relay.find(lobby, HOST)) if is_name(name) else None
            if host is None:
                raise Rejected("Lobby does not exists")
            if host.data == SEALED:
                raise Rejected("Lobby is sealed")
            kind = GUEST
        joined = JoinResult.TAKEN
        while joined is JoinResult.TAKEN:
            self.id = str(2 + secrets.randbelow(MAX_ID - 2)) if kind == GUEST else HOST
            joined = await self.enter(lobby, context, kind)

    async def _seal(self, room: Room, context: RequestContext) -> None:
        if self.id != HOST:
            raise Rejected("Only host can seal the lobby")
        if room.members.get(HOST) != SEALED:
            context.charge(len(room.members))
            lease = Lease(HOST, self.owner, self.owner, SEALED)
            await self.until_available(lambda: room.enter(self, lease, MAX_MEMBERS))

    def member_changed(self, room: Room, member_id: str, data: str | None) -> None:
        host = room.members.get(HOST)
        if data == SEALED:
            self._post(SEAL, "0")
            self._close_later(SEALED_S, CloseCode.NORMAL_CLOSURE, "Seal complete")
        elif member_id == self.id:
            self._post(ID, self.id, "true" if host == MESH else "")
            for each in [each for each in room.members if each != self.id]:
                self._post(PEER_CONNECT, each)
            self._post(JOIN, "0", room.channel.name)
        elif host is not None:
            self._post(PEER_DISCONNECT if data is None else PEER_CONNECT, member_id)
        if host is None or (host == SEALED and member_id == self.id and data == GUEST):
            self.socket.close(self.rejection_code, "Lobby is sealed" if host else "Room host has disconnected")

    def disconnected(self) -> None:
        self._timer.cancel()
        super().disconnected()

    def _post(self, kind: int, member_id: str, data: str = "") -> None:
        self.relayed(_encode(kind, member_id, data))

    def _close_later(self, wait_s: float, code: int, reason: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.socket.close, code, reason)


def _whole(value: Any) -> int:
    """Return a number without its fraction. Raise Rejected for other values and negative numbers."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise Rejected("Invalid message format")
    return int(value)


def _encode(kind: int, member_id: str, data: str = "") -> bytes:
    return encode({"type": kind, "id": int(member_id), "data": data})
