"""The lobbies of Godot's WebRTC signaling demo, each with a host, whose id is 1."""

import asyncio
import math
import secrets
import string
from collections.abc import Coroutine
from typing import Any, Final

from ..relay import Channel, JoinResult
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from ..transport.frames import CloseCode
from .connection import MAX_NAME, encode, is_utf8
from .rooms import MAX_MEMBERS, MemberConnection, Room, Rooms

PATH: Final = "/godot"
JOIN, ID, PEER_CONNECT, PEER_DISCONNECT, OFFER, ANSWER, CANDIDATE, SEAL = range(8)
HOST: Final = "1"
MESH, RELAYED, SEALED = "mesh", "relayed", "sealed"  # the data of the host
REFUSED: Final = 4000  # the close code
JOIN_S: Final = 1.0  # for which a client may be in no lobby
SEALED_S: Final = 10.0  # for which the members of a sealed lobby stay connected
MAX_ID: Final = 2**31
NAME_LENGTH: Final = 16


class Refused(Exception):
    """The connection is closed. The text is the reason, as the original server words it."""


class GodotConnection(MemberConnection):
    """A member of a lobby. A message is opaque, so it needs a token for offers and for answers."""

    pattern = PATH

    __slots__ = ("_is_mesh", "_timer")

    def __init__(self, client: Client, rooms: Rooms, origin: str | None) -> None:
        super().__init__(client, rooms, "godot", origin, HOST)
        self._is_mesh = False
        self._timer = asyncio.get_running_loop().call_later(JOIN_S, self._refuse, "Have not joined lobby yet")

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None] | None:
        return None if self.refuse_other_protocol(message) else self._respond(message, context)

    def received_junk(self, error: ValueError) -> None:
        self._refuse("Invalid message format")

    async def _respond(self, message: Any, context: RequestContext) -> None:
        try:
            fields = message if type(message) is dict else {}
            kind, number = (_whole(fields.get(name)) for name in ("type", "id"))
            data = fields.get("data")
            data = data if type(data) is str else ""
            if kind == JOIN:
                await self._join(data, context, is_mesh=number == 0)
            elif self.joined:
                await self._send(kind, str(number), data, context)
            else:
                raise Refused("Invalid message when not in a lobby")
        except Refused as refusal:
            self._refuse(str(refusal))

    async def _join(self, name: str, context: RequestContext, *, is_mesh: bool) -> None:
        """Join a lobby, or make one, which gets a random name."""
        context.authorize("list")
        if self.joined:
            raise Refused("Already in a lobby")
        self._timer.cancel()
        if not name:
            name = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(NAME_LENGTH))
            context.require_topic(name)
            self._is_mesh = is_mesh
            await self.enter(name, context, MESH if is_mesh else RELAYED)
            return
        context.require_topic(name)
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

    def entered(self, room: Room, others: list[str]) -> None:
        self._post(ID, self.id, "true" if self._is_mesh else "")
        for each in others:
            self._post(PEER_CONNECT, each)
        self._post(JOIN, "0", room.channel.name)
        if self.id != HOST and HOST not in others:
            self._refuse("Room host has disconnected")

    def peer_joined(self, room: Room, member_id: str) -> None:
        if room.members[member_id] == SEALED:
            self._notify_sealed()
        else:
            self._post(PEER_CONNECT, member_id)

    def peer_left(self, room: Room, member_id: str) -> None:
        if member_id == HOST:
            self._refuse("Room host has disconnected")
        else:
            self._post(PEER_DISCONNECT, member_id)

    async def _send(self, kind: int, to: str, data: str, context: RequestContext) -> None:
        (room,) = self.joined
        context.authorize("offer")
        context.authorize("answer")
        if kind == SEAL:
            if self.id != HOST:
                raise Refused("Only host can seal the lobby")
            if room.members.get(HOST) != SEALED:
                context.charge(len(room.members))
                lease = self.make_lease(SEALED)
                await self.until_available(lambda: self.relay.join(room.channel, lease, MAX_MEMBERS))
                room.announce(lease)
                self._notify_sealed()
        elif kind not in (OFFER, ANSWER, CANDIDATE):
            raise Refused("Invalid command")
        elif to not in room.members:
            raise Refused("Invalid destination")
        else:
            room.send(to, _encode(kind, self.id, data))

    def _notify_sealed(self) -> None:
        """Notify the client that the lobby is sealed, and close the connection later."""
        self._post(SEAL, "0")
        self._timer = asyncio.get_running_loop().call_later(
            SEALED_S, self.client.socket.close, CloseCode.NORMAL_CLOSURE, "Seal complete"
        )

    def disconnected(self) -> None:
        self._timer.cancel()
        super().disconnected()

    def _post(self, kind: int, member_id: str, data: str = "") -> None:
        self.relayed(_encode(kind, member_id, data))

    def _refuse(self, reason: str) -> None:
        self.client.socket.close(REFUSED, reason)


def _whole(value: Any) -> int:
    """Return a number without its fraction. Raise Refused for other values and negative numbers."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise Refused("Invalid message format")
    return int(value)


def _encode(kind: int, member_id: str, data: str = "") -> bytes:
    return encode({"type": kind, "id": int(member_id), "data": data})
