"""Rooms of protocols whose server gives ids, lists the members, and forwards messages to one of them."""

import asyncio
import os
from typing import Final

from .. import errors
from ..relay import COUNTED, Channel, Deliveries, JoinResult, Lease, Relay, units_of_receivers
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from .connection import MAX_MEMBERS, RETRY_S, ProtocolConnection, confirm
from .endpoint import make_scope

NOTIFIED_BYTES: Final = 40  # of a member, in what the others get
REFUSED: Final = (JoinResult.FULL, JoinResult.TAKEN)
JOINED, LEFT, SENT = b"+", b"-", b">"  # begin what is published in a room


class Room:
    """A room as this process knows it: the data of all members by id, and its own connections.

    Everything about a room goes through one channel, so that a member is known before its messages arrive. A server
    subscribes, lists the members, and announces each member that has joined: each learns of every other one once.
    """

    def __init__(self, relay: Relay, channel: Channel) -> None:
        self.relay, self.channel = relay, channel
        self.members: dict[str, str] = {}
        self.own: dict[str, MemberConnection] = {}
        self.users = 0  # connections that are in the room, enter it or leave it
        self._missed = 1  # changes of members, or 1 before the first listing
        self._listing = asyncio.Lock()
        self._changed: set[str] = set()  # members that are newer than the listing in progress
        self._deliveries: Deliveries[MemberConnection] = Deliveries()

    async def enter(self, member: "MemberConnection", lease: Lease, max_members: int) -> JoinResult:
        """Join, and announce the member, which is notified of the others first."""
        if self._missed:
            if (opening := self.relay.subscribe(self.channel, self)) is not None:
                await confirm([opening])
            await self._list()
        joined = await self.relay.join(self.channel, lease, max_members)
        if joined not in REFUSED:
            self.own[lease.member] = member
            member.entered(self, [each for each in self.members if each != lease.member])
            self.announce(lease)
        return joined

    def announce(self, lease: Lease) -> None:
        """Let the others know of a member that has joined, or of its new data."""
        self.relay.publish(self.channel, JOINED + f"{lease.member} {lease.data}".encode())

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
        if kind == SENT and member_id in self.own:
            self._deliveries.deliver(lambda member: member.relayed(content), [self.own[member_id]], len(content))
        elif kind in (JOINED, LEFT):
            if self._listing.locked():
                self._changed.add(member_id)
            if self._deliveries.is_full:
                self._list_again()
            else:
                self._change(member_id, content.decode() if kind == JOINED else None)
        elif kind == COUNTED and self.users == len(self.own) and (self._missed or int(name) != len(self.members)):
            self._list_again()

    def _change(self, member_id: str, data: str | None) -> None:
        """Add a member, give it new data, or remove it without data. Notify the others."""
        if self.members.get(member_id) == data:
            return
        if data is None:
            del self.members[member_id]
        else:
            self.members[member_id] = data

        def notify(member: MemberConnection) -> None:
            if not member.closed:
                member.peer_changed(self, member_id, data)

        self._deliveries.deliver(notify, [member for own_id, member in self.own.items() if own_id != member_id])

    def _list_again(self) -> None:
        """List the members because changes were missed, or were too many to notify everybody of each."""
        self._missed += 1
        if self.own and not self._listing.locked():
            next(iter(self.own.values())).client.service.start(self._list())

    async def _list(self) -> None:
        """List the members, and learn of those whose messages were lost, or whose server was."""
        async with self._listing:
            while missed := self._missed:
                if self._deliveries.is_full:
                    await asyncio.sleep(RETRY_S)
                    continue
                self._changed.clear()
                leases = {lease.member: lease.data for lease in (await self.relay.members(self.channel)).sample}
                for member_id in (self.members.keys() | leases.keys()) - self._changed:
                    if member_id in leases or member_id not in self.own:
                        self._change(member_id, leases.get(member_id))
                self._missed -= missed


class Rooms(dict[Channel, Room]):
    """The rooms that this process has connections in."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    def __missing__(self, channel: Channel) -> Room:
        return self.setdefault(channel, Room(self.relay, channel))


class MemberConnection(ProtocolConnection):
    """A client of a protocol with rooms. Its origin is None if all origins share their rooms."""

    __slots__ = ("_rooms", "id", "joined", "owner")

    def __init__(self, client: Client, rooms: Rooms, protocol: str, origin: str | None, own_id: str) -> None:
        super().__init__(client, rooms.relay, make_scope(protocol, origin))
        self._rooms = rooms
        self.id = own_id
        self.owner = os.urandom(8).hex()
        self.joined: list[Room] = []

    @property
    def names(self) -> list[str]:
        return [room.channel.name for room in self.joined]

    def entered(self, room: Room, others: list[str]) -> None:
        """Send the client its id in a room, and those of the others."""

    def peer_changed(self, room: Room, member_id: str, data: str | None) -> None:
        """Notify the client that another member has joined, has new data, or has left, which is None."""

    def make_lease(self, data: str = "") -> Lease:
        return Lease(self.id, self.owner, self.owner, data)

    async def enter(self, name: str, context: RequestContext, data: str = "", max_members: int = 0) -> JoinResult:
        """Enter a room with a short text about the member, until the connection ends.

        Without `max_members`, a full room raises TooMany.
        """
        channel, joined = Channel(self.scope, name), JoinResult.FULL
        self.acquire_peer(channel)
        room = self._rooms[channel]
        room.users += 1
        try:
            lease, most = self.make_lease(data), max_members or MAX_MEMBERS
            joined = await self.until_available(lambda: room.enter(self, lease, most))
        finally:
            if joined in REFUSED:
                self._release(room)
            else:
                self.joined.append(room)
        if joined is JoinResult.FULL and not max_members:
            raise errors.TooMany("members of a room")
        if self.closed and room in self.joined:
            await self._exit(room)
        if units := units_of_receivers(len(room.members), NOTIFIED_BYTES):
            context.charge(units)
        return joined

    def _release(self, room: Room) -> None:
        self.release_peer(room.channel)
        room.users -= 1
        if not room.users:
            room.relay.unsubscribe(room.channel, room)
            self._rooms.pop(room.channel, None)

    async def _exit(self, room: Room) -> None:
        self.joined.remove(room)
        await room.exit(self.id, self.owner)
        self._release(room)

    async def leave(self) -> None:
        for room in list(self.joined):
            await self._exit(room)
