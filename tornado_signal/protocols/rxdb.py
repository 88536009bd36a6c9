"""The signaling of RxDB's replication over WebRTC: rooms whose members send signals to each other."""

import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from ..service.client_connection import Client
from ..service.request_context import RequestContext
from ..transport.frames import CloseCode
from .connection import encode, is_utf8
from .rooms import MemberConnection, Room, Rooms

PATH: Final = "/rxdb"
NAME_LENGTHS: Final = range(6, 100)  # of rooms, as in the original


class RxdbConnection(MemberConnection):
    """A client of RxDB. A signal is opaque, so it needs a token for offers and for answers."""

    pattern = PATH
    lists = True

    __slots__ = ()

    def __init__(self, client: Client, rooms: Rooms, origin: str | None) -> None:
        super().__init__(client, rooms, "rxdb", origin, os.urandom(6).hex())

    def opened(self) -> None:
        self.send({"type": "init", "yourPeerId": self.id})

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None] | None:
        kind = message.get("type") if type(message) is dict else None
        if kind == "join":
            return self._join(message.get("room"), context)
        if kind == "signal":
            self._signal(message, context)
        elif kind != "ping" and not self.refuse_other_protocol(message):
            self._reject("unknown type of message")
        return None

    def received_junk(self, error: ValueError) -> None:
        self._reject("invalid message")

    async def _join(self, name: Any, context: RequestContext) -> None:
        if type(name) is not str or len(name) not in NAME_LENGTHS or not is_utf8(name):
            self._reject(f"the name of a room has {NAME_LENGTHS.start} to {NAME_LENGTHS.stop - 1} characters")
            return
        context.authorize("list")
        context.require_topic(name)
        if name not in self.names:
            await self.enter(name, context)

    def entered(self, room: Room, others: list[str]) -> None:
        self._list(others)

    def peer_joined(self, room: Room, member_id: str) -> None:
        self._list(each for each in room.members if each != self.id)

    peer_left = peer_joined

    def _list(self, others: Iterable[str]) -> None:
        self.send({"type": "joined", "otherPeerIds": [*others, self.id]})

    def _signal(self, message: dict[str, Any], context: RequestContext) -> None:
        name, receiver = message.get("room"), message.get("receiverPeerId")
        if message.get("senderPeerId") != self.id:
            self._reject("spoofed sender")
            return
        room = next((each for each in self.joined if each.channel.name == name), None)
        if room is not None and type(receiver) is str:
            context.authorize("offer")
            context.authorize("answer")
            room.send(receiver, encode(message))

    def _reject(self, reason: str) -> None:
        self.client.socket.close(CloseCode.POLICY_VIOLATION, reason)
