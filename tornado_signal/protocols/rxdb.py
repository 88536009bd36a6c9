"""The signaling of RxDB's replication over WebRTC: rooms whose members send signals to each other."""

import os
from collections.abc import Coroutine, Iterable
from typing import Any, Final

from ..relay import units_of_receivers
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from .connection import Rejected, encode, is_utf8
from .rooms import NOTIFIED_BYTES, MemberConnection, Room, Rooms

PATH: Final = "/rxdb"
NAME_LENGTHS: Final = range(6, 100)  # of rooms, as in the original


class RxdbConnection(MemberConnection):
    """A client of RxDB."""

    pattern = PATH

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
            raise Rejected("unknown type of message")
        return None

    def received_junk(self, error: ValueError) -> None:
        raise Rejected("invalid message")

    async def _join(self, name: Any, context: RequestContext) -> None:
        if type(name) is not str or len(name) not in NAME_LENGTHS or not is_utf8(name):
            raise Rejected(f"the name of a room has {NAME_LENGTHS.start} to {NAME_LENGTHS.stop - 1} characters")
        context.authorize("list")
        context.require_topic(name)
        if name not in self.names:
            await self.enter(name, context)
            count = len(self.joined[-1].members) if self.joined else 0
            if units := units_of_receivers(count, NOTIFIED_BYTES * count):  # each member gets a list of all
                context.charge(units)

    def entered(self, room: Room, others: list[str]) -> None:
        self._list(others)

    def peer_changed(self, room: Room, member_id: str, data: str | None) -> None:
        self._list(each for each in room.members if each != self.id)

    def _list(self, others: Iterable[str]) -> None:
        self.send({"type": "joined", "otherPeerIds": [*others, self.id]})

    def _signal(self, message: dict[str, Any], context: RequestContext) -> None:
        name, receiver = message.get("room"), message.get("receiverPeerId")
        if message.get("senderPeerId") != self.id:
            raise Rejected("spoofed sender")
        room = next((each for each in self.joined if each.channel.name == name), None)
        if room is not None and type(receiver) is str:
            self.authorize_signal(context)
            room.send(receiver, encode(message))
