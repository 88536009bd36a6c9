"""The signaling of RxDB's replication over WebRTC: rooms whose members send signals to each other."""

from collections.abc import Coroutine
from typing import Any, Final

from ..relay import Channel, units_of_receivers
from ..service.request_context import RequestContext
from .connection import Rejected, encode, is_name
from .rooms import NOTIFIED_BYTES, MemberConnection, Room

PATH: Final = "/rxdb"
NAME_LENGTHS: Final = range(6, 100)  # of rooms, as in the original


class RxdbConnection(MemberConnection):
    """A client of RxDB."""

    pattern, protocol = PATH, "rxdb"

    __slots__ = ()

    def opened(self) -> None:
        self.send({"type": "init", "yourPeerId": self.id})

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None] | None:
        kind = message.get("type") if type(message) is dict else None
        if kind == "join":
            return self._join(message.get("room"), context)
        if kind == "signal":
            self._signal(message, context)
        elif kind != "ping":
            self.refuse_other_protocol(message)
            raise Rejected("invalid message" if message is None else "unknown type of message")
        return None

    async def _join(self, name: Any, context: RequestContext) -> None:
        if not is_name(name) or len(name) not in NAME_LENGTHS:
            raise Rejected(f"the name of a room has {NAME_LENGTHS.start} to {NAME_LENGTHS.stop - 1} characters")
        context.authorize("list")
        context.require_topic(name)
        if name not in self.names:
            await self.enter(Channel(self.scope, name), context)
            count = len(self.joined[-1].members) if self.joined else 0
            context.charge(units_of_receivers(count, NOTIFIED_BYTES * count))  # each member gets a list of all

    def member_changed(self, room: Room, member_id: str, data: str | None) -> None:
        others = (each for each in room.members if each != self.id)
        self.send({"type": "joined", "otherPeerIds": [*others, self.id]})

    def _signal(self, message: dict[str, Any], context: RequestContext) -> None:
        name, receiver = message.get("room"), message.get("receiverPeerId")
        if message.get("senderPeerId") != self.id:
            raise Rejected("spoofed sender")
        room = next((each for each in self.joined if each.channel.name == name), None)
        if room is not None and type(receiver) is str:
            self.authorize_signal(context)
            room.send(receiver, encode(message))
