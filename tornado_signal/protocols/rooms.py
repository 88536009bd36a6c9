"""Rooms of protocols whose server gives ids, lists the members, and forwards messages to one of them."""

import asyncio
import contextlib
import os
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import islice
from typing import ClassVar, Final

from .. import errors
from ..relay import Channel, JoinResult, Lease, Relay, units_of_receivers
from ..service.client_connection import Client
from ..service.request_context import RequestContext
from .connection import ProtocolConnection, confirm
from .endpoint import make_scope

MAX_MEMBERS: Final = 1000  # of a room
MAX_MEMBERS_PER_ADDRESS: Final = MAX_MEMBERS // 10
LISTED_BYTES: Final = 40  # of a member, in a list of members
NOTIFIED_AT_ONCE: Final = 64  # members, in one event-loop iteration
MAX_BACKLOG: Final = 1000  # messages of a room that wait for that; further ones are dropped
CHECK_S: Final = 4.0  # after which a room is looked for members of lost servers, whose leases expire
LONE_CHECKS: Final = 5  # times as long without members at other servers, for messages that were lost
REFUSED: Final = (JoinResult.FULL, JoinResult.TAKEN)
JOINED, LEFT, SENT, ANNOUNCED = b"+", b"-", b">", b"*"  # begin what is published in a room


class Room:
    """A room as this process knows it: the data of all members by id, and its own connections.

    Everything about a room goes through one channel, so that a member is known before its messages arrive. A member
    subscribes before it lists the others, and is announced after that: each learns of every other one once.
    """

    def __init__(self, relay: Relay, channel: Channel) -> None:
        self.relay, self.channel = relay, channel
        self.members: dict[str, str] = {}
        self.own: dict[str, MemberConnection] = {}
        self.users = 0  # connections that are in the room or enter it
        self._listings = 0  # in progress, and whether one has succeeded
        self._is_listed = False
        self._changed: set[str] = set()  # members whose messages have arrived during a listing
        self._untold: deque[tuple[Callable[[MemberConnection], None], Iterator[MemberConnection]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, member: "MemberConnection", lease: Lease, max_members: int) -> JoinResult:
        """Join, list the others, and let them know of the member, which is notified of them first."""
        if (opening := self.relay.subscribe(self.channel, self)) is not None:
            await confirm([opening])
        joined = await self.relay.join(self.channel, lease, max_members)
        if joined in REFUSED:
            return joined
        if not self._is_listed:
            await self.check(lease.member)
        self.own[lease.member] = member
        member.entered(self, lease.member, [each for each in self.members if each != lease.member])
        self.relay.publish(self.channel, JOINED + f"{lease.member} {lease.data}".encode())
        self._check_later(member)
        return joined

    async def exit(self, member_id: str, owner: str) -> None:
        """Leave, and let the others know."""
        self.own.pop(member_id, None)
        await self.relay.leave(self.channel, member_id, owner)
        self.relay.publish(self.channel, LEFT + member_id.encode())

    def send(self, member_id: str, message: bytes) -> None:
        """Send a message to a member, unless it has left."""
        if member_id in self.own or member_id in self.members:
            sent = SENT + member_id.encode() + b" " + message
            if member_id in self.own:
                self.relayed(sent)
            else:
                self.relay.publish(self.channel, sent)

    def announce(self, message: bytes) -> None:
        """Send a message to all members."""
        self.relay.publish(self.channel, ANNOUNCED + b" " + message)

    def relayed(self, message: bytes) -> None:
        name, _, content = message[1:].partition(b" ")
        member_id = name.decode()
        if message.startswith(SENT):
            if (receiver := self.own.get(member_id)) is not None and len(self._untold) < MAX_BACKLOG:
                self._notify([receiver], lambda member: member.relayed(content))
        elif message.startswith(JOINED):
            self._add(member_id, content.decode())
        elif message.startswith(LEFT):
            self._remove(member_id)
        elif message.startswith(ANNOUNCED):
            self._notify(list(self.own.values()), lambda member: member.announced(content))

    def _add(self, member_id: str, data: str) -> None:
        if self._listings:
            self._changed.add(member_id)
        if member_id not in self.members:
            self.members[member_id] = data
            others = [member for own_id, member in self.own.items() if own_id != member_id]
            self._notify(others, lambda member: member.peer_joined(self, member_id))

    def _remove(self, member_id: str) -> None:
        if self._listings:
            self._changed.add(member_id)
        if self.members.pop(member_id, None) is not None:
            self._notify(list(self.own.values()), lambda member: member.peer_left(self, member_id))

    def _notify(self, members: Iterable["MemberConnection"], notify: Callable[["MemberConnection"], None]) -> None:
        """Call a function for each member, for some in each event-loop iteration. The calls stay in order."""
        self._untold.append((notify, iter(members)))
        if len(self._untold) == 1:
            self._notify_some()

    def _notify_some(self) -> None:
        left = NOTIFIED_AT_ONCE
        while self._untold:
            notify, members = self._untold[0]
            for member in islice(members, left):
                left -= 1
                if not member.closed:
                    notify(member)
            if not left:
                asyncio.get_running_loop().call_soon(self._notify_some)
                return
            self._untold.popleft()

    async def check(self, entering: str = "") -> None:
        """List the members, and learn of those whose messages were lost, or whose server was."""
        self._listings += 1
        try:
            leases = {lease.member: lease for lease in (await self.relay.members(self.channel)).sample}
        finally:
            self._listings -= 1
            changed = self._changed | self.own.keys() | {entering}
            if not self._listings:
                self._changed = set()
        for member_id in self.members.keys() - leases.keys() - changed:
            self._remove(member_id)
        for member_id in leases.keys() - self.members.keys() - changed:
            self._add(member_id, leases[member_id].data)
        self._is_listed = True

    def _check_later(self, member: "MemberConnection") -> None:
        if self._timer is None and self.relay.shared:
            service, delay_s = member.client.service, CHECK_S * random.uniform(0.75, 1.25)
            if len(self.members) == len(self.own):
                delay_s *= LONE_CHECKS
            self._timer = asyncio.get_running_loop().call_later(delay_s, lambda: service.start(self._check_again()))

    async def _check_again(self) -> None:
        self._timer = None
        with contextlib.suppress(errors.Unavailable):
            await self.check()
        for member in islice(self.own.values(), 1):
            self._check_later(member)

    def close(self) -> None:
        self.relay.unsubscribe(self.channel, self)
        if self._timer is not None:
            self._timer.cancel()


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

    __slots__ = ("_rooms", "joined", "owner")

    def __init__(self, client: Client, rooms: Rooms, protocol: str, origin: str | None) -> None:
        super().__init__(client, rooms.relay, make_scope(protocol, origin))
        self._rooms = rooms
        self.owner = os.urandom(8).hex()
        self.joined: dict[Room, str] = {}  # the own id in each room

    @property
    def names(self) -> list[str]:
        return [room.channel.name for room in self.joined]

    def entered(self, room: Room, member_id: str, others: list[str]) -> None:
        """Send the client its id in a room, and those of the others."""
        raise NotImplementedError

    def peer_joined(self, room: Room, member_id: str) -> None:
        """Notify the client of another member."""
        raise NotImplementedError

    def peer_left(self, room: Room, member_id: str) -> None:
        """Notify the client that a member has left."""
        raise NotImplementedError

    def announced(self, message: bytes) -> None:
        """Process a message to all members."""

    async def enter(
        self, name: str, member_id: str, context: RequestContext, data: str = "", max_members: int = MAX_MEMBERS
    ) -> JoinResult:
        """Enter a room with an id and a short text about the member. It is left when the connection ends."""
        room = self._rooms[Channel(self.scope, name)]
        self._acquire(room)
        try:
            lease = Lease(member_id, self.owner, self.owner, data)
            joined = await self.until_available(lambda: room.enter(self, lease, max_members))
        except BaseException:
            self._release(room)
            raise
        if joined in REFUSED:
            self._release(room)
            return joined
        self.joined[room] = member_id
        if self.closed:
            await self._exit(room)
            return joined
        count = len(room.members)
        if units := units_of_receivers(count, LISTED_BYTES * (count if self.lists else 1)):
            context.charge(units)
        return joined

    def _acquire(self, room: Room) -> None:
        self.acquire()
        try:
            self.client.service.limits.acquire_peer(self.counts, room.channel, MAX_MEMBERS_PER_ADDRESS)
        except errors.TooMany:
            self.release()
            raise
        room.users += 1

    def _release(self, room: Room) -> None:
        self.release()
        self.client.service.limits.release_peer(self.counts, room.channel)
        room.users -= 1
        if not room.users:
            room.close()
            self._rooms.pop(room.channel, None)

    async def _exit(self, room: Room) -> None:
        await room.exit(self.joined.pop(room), self.owner)
        self._release(room)

    def leave(self) -> Coroutine[None, None, None] | None:
        return self._leave_all() if self.joined else None

    async def _leave_all(self) -> None:
        for room in list(self.joined):
            await self._exit(room)
