"""The lobbies of Godot's WebRTC signaling demo, each with a host, whose id is 1."""

import asyncio
import math
import secrets
from collections.abc import Coroutine
from typing import Any, Final

from ..relay import Channel, JoinResult
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from ..transport.frames import CloseCode
from .connection import MAX_MEMBERS, MAX_NAME, Rejected, encode, is_utf8
from .rooms import MemberConnection, Room, Rooms

PATH: Final = "/godot"
JOIN, ID, PEER_CONNECT, PEER_DISCONNECT, OFFER, ANSWER, CANDIDATE, SEAL = range(8)
HOST: Final = "1"
MESH, RELAYED, SEALED = "mesh", "relayed", "sealed"  # the data of the host
JOIN_S: Final = 1.0  # for which a client may be in no lobby
SEALED_S: Final = 10.0  # for which the members of a sealed lobby stay connected
MAX_ID: Final = 2**31
NAME_LENGTH: Final = 16


class Refused(Rejected):
    """The connection is closed. The text is the reason, as the original server words it."""

    code = 4000


class GodotConnection(MemberConnection):
    """A member of a lobby."""

    pattern = PATH

    __slots__ = ("_is_mesh", "_timer")

    def __init__(self, client: Client, rooms: Rooms, origin: str | None) -> None:
        super().__init__(client, rooms, "godot", origin, HOST)
        self._is_mesh = False
        self._close_later(JOIN_S, Refused.code, "Have not joined lobby yet")

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None] | None:
        if self.refuse_other_protocol(message):
            return None
        fields = message if type(message) is dict else {}
        kind, number = (_whole(fields.get(name)) for name in ("type", "id"))
        data = fields["data"] if type(fields.get("data")) is str else ""
        if kind == JOIN:
            return self._join(data, context, is_mesh=number == 0)
        if not self.joined:
            raise Refused("Invalid message when not in a lobby")
        (room,) = self.joined
        self.authorize_signal(context)
        if kind == SEAL:
            return self._seal(room, context)
        if kind not in (OFFER, ANSWER, CANDIDATE):
            raise Refused("Invalid command")
        if str(number) not in room.members:
            raise Refused("Invalid destination")
        room.send(str(number), _encode(kind, self.id, data))
        return None

    def received_junk(self, error: ValueError) -> None:
        raise Refused("Invalid message format")

    async def _join(self, name: str, context: RequestContext, *, is_mesh: bool) -> None:
        """Join a lobby, or make one, which gets a random name."""
        context.authorize("list")
        if self.joined:
            raise Refused("Already in a lobby")
        self._timer.cancel()
        is_new, name = not name, name or secrets.token_hex(NAME_LENGTH // 2)
        context.require_topic(name)
        if is_new:
            self._is_mesh = is_mesh
            await self.enter(name, context, MESH if is_mesh else RELAYED)
            return
        host = None
        if len(name) <= MAX_NAME and is_utf8(name):
            host = await self.until_available(lambda: self.relay.find(Channel(self.scope, name), HOST))
        if host is None:
            raise Refused("Lobby does not exists")
        if host.data == SEALED:
            raise Refused("Lobby is sealed")
        self._is_mesh = host.data == MESH
        joined = JoinResult.TAKEN
        while joined is JoinResult.TAKEN:
            self.id = str(2 + secrets.randbelow(MAX_ID - 2))
            joined = await self.enter(name, context)

    async def _seal(self, room: Room, context: RequestContext) -> None:
        if self.id != HOST:
            raise Refused("Only host can seal the lobby")
        if room.members.get(HOST) != SEALED:
            context.charge(len(room.members))
            lease = self.make_lease(SEALED)
            await self.until_available(lambda: self.relay.join(room.channel, lease, MAX_MEMBERS))
            room.announce(lease)
            self._notify_sealed()

    def entered(self, room: Room, others: list[str]) -> None:
        self._post(ID, self.id, "true" if self._is_mesh else "")
        for each in others:
            self._post(PEER_CONNECT, each)
        self._post(JOIN, "0", room.channel.name)
        if self.id != HOST and HOST not in others:
            self.client.socket.close(Refused.code, "Room host has disconnected")

    def peer_changed(self, room: Room, member_id: str, data: str | None) -> None:
        if data == SEALED:
            self._notify_sealed()
        elif data is not None or member_id != HOST:
            self._post(PEER_DISCONNECT if data is None else PEER_CONNECT, member_id)
        else:
            self.client.socket.close(Refused.code, "Room host has disconnected")

    def _notify_sealed(self) -> None:
        """Notify the client that the lobby is sealed, and close the connection later."""
        self._post(SEAL, "0")
        self._close_later(SEALED_S, CloseCode.NORMAL_CLOSURE, "Seal complete")

    def disconnected(self) -> None:
        self._timer.cancel()
        super().disconnected()

    def _post(self, kind: int, member_id: str, data: str = "") -> None:
        self.relayed(_encode(kind, member_id, data))

    def _close_later(self, wait_s: float, code: int, reason: str) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self.client.socket.close, code, reason)


def _whole(value: Any) -> int:
    """Return a number without its fraction. Raise Refused for other values and negative numbers."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise Refused("Invalid message format")
    return int(value)


def _encode(kind: int, member_id: str, data: str = "") -> bytes:
    return encode({"type": kind, "id": int(member_id), "data": data})
