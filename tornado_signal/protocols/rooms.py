"""Rooms of protocols whose server gives ids, lists the members, and forwards messages to one of them."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import ClassVar, Final

from .. import errors
from ..relay import COUNTED, Channel, Deliveries, JoinResult, Lease, Relay, units_of_receivers
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from .connection import ProtocolConnection, confirm
from .endpoint import make_scope

MAX_MEMBERS: Final = 1000  # of a room
MAX_MEMBERS_PER_ADDRESS: Final = MAX_MEMBERS // 10
LISTED_BYTES: Final = 40  # of a member, in a list of members
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
        self._is_listed = False
        self._listing = asyncio.Lock()
        self._changed: set[str] = set()  # members that are newer than the listing in progress
        self._deliveries: Deliveries[MemberConnection] = Deliveries()

    async def enter(self, member: "MemberConnection", lease: Lease, max_members: int) -> JoinResult:
        """Join, and announce the member, which is notified of the others first."""
        if not self._is_listed:
            if (opening := self.relay.subscribe(self.channel, self)) is not None:
                await confirm([opening])
            await self._list(again=False)
        self._note_change(lease.member)
        joined = await self.relay.join(self.channel, lease, max_members)
        if joined not in REFUSED:
            self.own[lease.member] = member
            member.entered(self, list(self.members))
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
        if member_id in self.members:
            sent = SENT + member_id.encode() + b" " + message
            if member_id in self.own:
                self.relayed(sent)
            else:
                self.relay.publish(self.channel, sent)

    def relayed(self, message: bytes) -> None:
        kind, (name, _, content) = message[:1], message[1:].partition(b" ")
        member_id = name.decode()
        if kind == SENT and member_id in self.own:
            self._notify(lambda member: member.relayed(content), [self.own[member_id]], len(content))
        elif kind == JOINED:
            self._add(member_id, content.decode())
        elif kind == LEFT:
            self._remove(member_id)
        elif kind == COUNTED and int(name) != len(self.members) and self.users == len(self.own):
            for member in list(self.own.values())[:1]:
                member.client.service.start(self._list_again())

    def _add(self, member_id: str, data: str) -> None:
        self._note_change(member_id)
        if self.members.get(member_id) != data:
            self.members[member_id] = data
            others = [member for own_id, member in self.own.items() if own_id != member_id]
            self._notify(lambda member: member.peer_joined(self, member_id), others)

    def _remove(self, member_id: str) -> None:
        self._note_change(member_id)
        if self.members.pop(member_id, None) is not None:
            self._notify(lambda member: member.peer_left(self, member_id), list(self.own.values()))

    def _note_change(self, member_id: str) -> None:
        if self._listing.locked():
            self._changed.add(member_id)

    def _notify(
        self, notify: Callable[["MemberConnection"], object], members: "list[MemberConnection]", size: int = 0
    ) -> None:
        self._deliveries.deliver(lambda member: member.closed or notify(member), members, size)

    async def _list(self, *, again: bool) -> None:
        """List the members, and learn of those whose messages were lost, or whose server was."""
        async with self._listing:
            if self._is_listed and not again:
                return
            self._changed.clear()
            leases = {lease.member: lease.data for lease in (await self.relay.members(self.channel)).sample}
            unchanged = (self.members.keys() | leases.keys()) - self._changed
            for member_id in unchanged - leases.keys() - self.own.keys():
                self._remove(member_id)
            for member_id in unchanged & leases.keys():
                self._add(member_id, leases[member_id])
            self._is_listed = True

    async def _list_again(self) -> None:
        with contextlib.suppress(errors.Unavailable):
            await self._list(again=True)


class Rooms(dict[Channel, Room]):
    """The rooms that this process has connections in."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay

    def __missing__(self, channel: Channel) -> Room:
        room = self[channel] = Room(self.relay, channel)
        return room


class MemberConnection(ProtocolConnection):
    """A client of a protocol with rooms. Its origin is None if all origins share their rooms.

    `lists` says whether each change sends the ids of all members to all of them.
    """

    lists: ClassVar[bool] = False

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
        raise NotImplementedError

    def peer_joined(self, room: Room, member_id: str) -> None:
        """Notify the client of another member, or of its new data."""
        raise NotImplementedError

    def peer_left(self, room: Room, member_id: str) -> None:
        """Notify the client that a member has left."""
        raise NotImplementedError

    def make_lease(self, data: str = "") -> Lease:
        return Lease(self.id, self.owner, self.owner, data)

    async def enter(
        self, name: str, context: RequestContext, data: str = "", max_members: int | None = None
    ) -> JoinResult:
        """Enter a room with a short text about the member, until the connection ends.

        Without `max_members`, a full room raises TooMany.
        """
        channel, joined = Channel(self.scope, name), JoinResult.FULL
        self.acquire_peer(channel, MAX_MEMBERS_PER_ADDRESS)
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
        if joined is JoinResult.FULL and max_members is None:
            raise errors.TooMany("members of a room")
        count = 0 if joined in REFUSED else len(room.members)
        if count and self.closed:
            await self._exit(room)
        elif units := units_of_receivers(count, LISTED_BYTES * (count if self.lists else 1)):
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
