"""The signaling of matchbox: rooms of peers that each connect to all others, or to a host."""

import asyncio
import time
import uuid
from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from .. import errors
from ..http.fields import decode_segment
from ..http.request import Request
from ..relay import Channel, JoinResult, Lease
from ..relay.opening import Relay
from ..service.request_context import RequestContext
from ..transport.websocket import WebSocket
from .connection import MAX_MEMBERS, RETRY_S, encode, is_name
from .endpoint import ProtocolUpgrade
from .rooms import REFUSED, MemberConnection, Room

PATH: Final = "/matchbox/{room}"
PREFIX: Final = "/matchbox/"
FIRST: Final = "first"  # the only member of a group. Its token and data are the id of the host or first client


class MatchboxConnection(MemberConnection):
    """A client of matchbox, in one room. Its id is a UUID that begins with the time: an older member has a smaller one.

    With `?next=N`, each N clients are together, in the order of their arrival. With `?host=1`, the first one is the
    host, and the others know only the host. Each such group is a room, named after its first client.
    """

    pattern, protocol = PATH, "matchbox"

    __slots__ = ("_first", "_is_hosted", "_next", "_room")

    def __init__(self, relay: Relay, rooms: dict[Channel, Room], handshake: Request, socket: WebSocket) -> None:
        super().__init__(relay, rooms, handshake, socket)
        query = handshake.query_arguments
        self.id = str(uuid.UUID(int=time.time_ns() << 64 | uuid.uuid4().int >> 64))
        count = query.get("next", [b""])[0]
        self._next = min(int(count[:9]), MAX_MEMBERS) if count.isdigit() else 0
        self._is_hosted = not self._next and query.get("host") == [b"1"]
        kind = f"next {self._next}" if self._next else "host" if self._is_hosted else "all"
        # The room itself, or, with groups, the channel whose lease FIRST names the current group.
        self._room = Channel(f"{kind} {self.scope}", decode_segment(handshake.path[len(PREFIX) :]) or "")
        self._first = ""  # the id of the host, or of the first client of a batch that is not complete

    def opened(self) -> Awaitable[None]:
        return self.complete_opening(self._start)

    async def _start(self, context: RequestContext) -> None:
        context.authorize("list")
        context.require_topic(self._room.name)
        room, joined = self._room, JoinResult.FULL
        while joined is JoinResult.FULL and not self.closed:
            if self._next or self._is_hosted:
                await self.until_available(self._find_first)
                room = Channel(f"{self._first} {self._room.scope}", self._room.name)
            joined = await self.enter(room, context, limit=self._next)
            if joined is JoinResult.FULL:  # the batch is complete, and its members still own the lease FIRST
                await asyncio.sleep(RETRY_S)

    async def _find_first(self) -> None:
        """Set `_first` to the host, or the first client of the incomplete batch. Without one, it is this client."""
        owned = False
        while not owned:
            found = await self.relay.find(self._room, FIRST)
            self._first = self.id if found is None else found.data
            owned = (found is not None and self._is_hosted) or await self._own(self._first)

    async def _own(self, first: str) -> bool:
        """Own the lease that names the first client, as each client of its batch may. Its owner can have left."""
        joined = await self.relay.join(self._room, Lease(FIRST, self.owner, first, first), 1)
        if self.closed or not self._first:  # the batch is complete by now
            self._disown()
        return joined not in REFUSED

    def _disown(self) -> None:
        self.service.start(self.relay.leave(self._room, FIRST, self.owner))

    def member_changed(self, room: Room, member_id: str, data: str | None) -> None:
        if member_id == self.id:
            self.send({"IdAssigned": self.id})
            for each in [each for each in room.members if each != self.id]:
                self.member_changed(room, each, "")
        elif data is not None:  # the older of two members offers, or the host
            if self.id == self._first if self._is_hosted else self.id < member_id:
                self.send({"NewPeer": member_id})
        elif not self._is_hosted or self._first in (self.id, member_id):
            self.send({"PeerLeft": member_id})
        if self._next and self._first and len(room.members) >= self._next:
            self._first = ""
            self._disown()
        elif self._next and self._first and data is None:
            self.service.start(self.until_available(partial(self._own, self._first)))

    def received(self, message: Any, context: RequestContext) -> None:
        signal = message.get("Signal") if type(message) is dict and len(message) == 1 else None
        if type(signal) is not dict:
            self.refuse_other_protocol(message)
            return
        self.authorize_signal(context)
        to = self._first if self._is_hosted and self.id != self._first else signal.get("receiver")
        if self.joined and type(to) is str and "data" in signal:
            self.joined[0].send(to, encode({"Signal": {"sender": self.id, "data": signal["data"]}}))

    async def leave(self) -> None:
        await super().leave()
        if self._first:  # other clients of the batch own its lease first
            asyncio.get_running_loop().call_later(RETRY_S if self._next else 0, self._disown)


class MatchboxUpgrade(ProtocolUpgrade):
    """GET /matchbox/ROOM."""

    def admit(self) -> None:
        super().admit()
        if self.request.method != "OPTIONS" and not is_name(decode_segment(self.request.path[len(PREFIX) :])):
            raise errors.PathNotFound
