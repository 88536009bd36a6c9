"""Rooms of protocols whose server gives ids, lists the members, and forwards messages to one of them."""

import asyncio
import os
from typing import Final

from .. import errors
from ..http.request import Request
from ..relay import COUNTED, Channel, JoinResult, Lease, units_of_receivers
from ..relay.memory import Deliveries
from ..relay.opening import Relay
from ..service.request_context import RequestContext
from ..transport.websocket import WebSocket
from .connection import MAX_MEMBERS, RETRY_S, ProtocolConnection, confirm

NOTIFIED_BYTES: Final = 40  # of a member, in what the others get
REFUSED: Final = (JoinResult.FULL, JoinResult.TAKEN)
JOINED, LEFT, SENT = b"+", b"-", b">"  # begin what is published in a room


class Room:
    """A room as this process knows it, from one channel (docs/decisions.md#rooms-of-rxdb-matchbox-and-godot)."""

    def __init__(self, relay: Relay, channel: Channel) -> None:
        self.relay, self.channel = relay, channel
        self.members: dict[str, str] = {}  # the data of all members by id
        self.own: dict[str, MemberConnection] = {}  # those of this process
        self.users = 0  # connections that are in the room, enter it or leave it
        self._missed = 1  # changes of members, or 1 before the first listing
        self._listing = asyncio.Lock()
        self._changed: set[str] = set()  # members that are newer than the listing in progress
        self._deliveries: Deliveries[MemberConnection] = Deliveries()

    async def enter(self, member: "MemberConnection", lease: Lease, max_members: int) -> JoinResult:
        """Join, or change the lease. The others know the member before it knows them."""
        if (opening := self.relay.subscribe(self.channel, self)) is not None:
            await confirm([opening])
        await self._list()
        joined = await self.relay.join(self.channel, lease, max_members)
        if joined not in REFUSED:
            self.relay.publish(self.channel, JOINED + f"{lease.member} {lease.data}".encode())
            self.own[lease.member] = member
            member.member_changed(self, lease.member, lease.data)
            if member.closed:
                await self.exit(lease.member, lease.owner)
        return joined

    async def exit(self, member_id: str, owner: str) -> None:
        """Leave, and let the others know."""
        self.own.pop(member_id, None)
        await self.relay.leave(self.channel, member_id, owner)
        self.relay.publish(self.channel, LEFT + member_id.encode())

    def send(self, member_id: str, message: bytes) -> None:
        """Send a message to a member, unless it has left."""
        if member_id in self.own:
            self.relayed(SENT + member_id.encode() + b" " + message)
        elif member_id in self.members:
            self.relay.publish(self.channel, SENT + member_id.encode() + b" " + message)

    def relayed(self, message: bytes) -> None:
        kind, (name, _, content) = message[:1], message[1:].partition(b" ")
        member_id = name.decode()
        if kind == SENT:
            if member_id in self.own:
                self._deliveries.deliver(lambda member: member.relayed(content), [self.own[member_id]], len(content))
        elif kind in (JOINED, LEFT) and not self._deliveries.is_full:
            if self._listing.locked():
                self._changed.add(member_id)
            self._change(member_id, content.decode() if kind == JOINED else None)
        # Otherwise list the members: changes were missed, or are too many to notify everybody of each.
        elif kind != COUNTED or (self.users == len(self.own) and (self._missed or int(name) != len(self.members))):
            self._missed += 1
            if self.own and not self._listing.locked():
                next(iter(self.own.values())).service.start(self._list())

    def _change(self, member_id: str, data: str | None) -> None:
        """Add a member, give it new data, or remove it without data. Notify the others."""
        if self.members.get(member_id) == data:
            return
        if data is None:
            del self.members[member_id]
        else:
            self.members[member_id] = data
        others = [member for own_id, member in self.own.items() if own_id != member_id]
        self._deliveries.deliver(lambda member: member.member_changed(self, member_id, data), others)

    async def _list(self) -> None:
        """List the members, and learn of those whose messages were lost, or whose server was."""
        async with self._listing:
            while missed := self._missed:
                if self._deliveries.is_full:
                    await asyncio.sleep(RETRY_S)
                    continue
                self._changed.clear()
                leases = {lease.member: lease.data for lease in (await self.relay.members(self.channel)).sample}
                lost = self.members.keys() - leases.keys() - self.own.keys()
                for member_id in (lost | leases.keys()) - self._changed:
                    self._change(member_id, leases.get(member_id))
                self._missed -= missed


class MemberConnection(ProtocolConnection):
    """A client of a protocol with rooms, which the connections of the process share."""

    __slots__ = ("_rooms", "id", "joined")

    def __init__(self, relay: Relay, rooms: dict[Channel, Room], handshake: Request, socket: WebSocket) -> None:
        super().__init__(relay, handshake, socket)
        self._rooms = rooms
        self.id = os.urandom(6).hex()
        self.joined: list[Room] = []

    @property
    def names(self) -> list[str]:
        return [room.channel.name for room in self.joined]

    def member_changed(self, room: Room, member_id: str, data: str | None) -> None:
        """Notify the client that a member, first itself, has joined, has new data, or has left, which is None."""

    async def enter(self, channel: Channel, context: RequestContext, data: str = "", limit: int = 0) -> JoinResult:
        """Enter a room, with a short text about the member. Without a limit of members, a full one raises TooMany."""
        self.acquire_peer(channel)
        room = self._rooms.get(channel) or self._rooms.setdefault(channel, Room(self.relay, channel))
        room.users += 1
        joined, lease = JoinResult.FULL, Lease(self.id, self.owner, self.owner, data)
        try:
            joined = await self.until_available(lambda: room.enter(self, lease, limit or MAX_MEMBERS))
        finally:
            if joined in REFUSED or self.closed:
                self._end_use(room)
            else:
                self.joined.append(room)
        if joined is JoinResult.FULL and not limit:
            raise errors.TooMany("members of a room")
        context.charge(units_of_receivers(len(room.members), NOTIFIED_BYTES))
        return joined

    def _end_use(self, room: Room) -> None:
        """Undo what `enter` has counted, once for each. The last user ends the room in this process."""
        self.release_peer(room.channel)
        room.users -= 1
        if not room.users:
            self.relay.unsubscribe(room.channel, room)
            del self._rooms[room.channel]

    async def leave(self) -> None:
        while self.joined:
            room = self.joined.pop()
            await room.exit(self.id, self.owner)
            self._end_use(room)
