"""The signaling of matchbox: rooms of peers that each connect to all others, or to a host."""

import asyncio
import os
import random
import time
import uuid
from collections.abc import Coroutine
from typing import Any, Final

from .. import errors
from ..http.fields import topic_of
from ..relay import Channel, JoinResult, Lease
from ..service.client_connection import Client, MessageContext
from ..service.request_context import RequestContext
from .connection import MAX_MEMBERS, MAX_NAME, RETRY_S, encode
from .endpoint import ProtocolUpgrade
from .rooms import REFUSED, MemberConnection, Room, Rooms

PATH: Final = "/matchbox/{room}"
PREFIX: Final = "/matchbox/"
ROOM: Final = "room"  # the name of the room among the fields of the query
MAX_DIGITS: Final = 9
LATEST: Final = "latest"  # the only member of a group, whose token and data are what the clients of a room share


class MatchboxConnection(MemberConnection):
    """A client of matchbox, in one room. Its id is a UUID, by which the older one of two members is known.

    With `?next=N`, each N clients are together, in the order of their arrival. With `?host=1`, the first one is the
    host, and the others know only the host.
    """

    pattern = PATH

    __slots__ = ("_batch", "_host", "_latest", "_name", "_next")

    def __init__(self, client: Client, rooms: Rooms, origin: str | None) -> None:
        query = client.query  # before it is dropped
        own_id = uuid.UUID(int=time.time_ns() << 64 | random.getrandbits(64))
        super().__init__(client, rooms, "matchbox", origin, str(own_id))
        count, self._name = query.get("next", [b""])[0], query[ROOM][0].decode()
        self._next = min(int(count), MAX_MEMBERS) if count.isdigit() and len(count) < MAX_DIGITS else 0
        self._host = "" if query.get("host") == [b"1"] else None
        self._latest = Channel(self.scope, f"next {self._next} {self._name}" if self._next else f"host {self._name}")
        self._batch = ""  # the batch of the client, until it is complete

    @property
    def names(self) -> list[str]:
        return [self._name]

    def opened(self) -> Coroutine[None, None, None]:
        context = MessageContext(self, self.pattern)
        return self.complete(self._start(context), context)

    async def _start(self, context: RequestContext) -> None:
        context.authorize("list")
        context.require_topic(self._name)
        while True:
            kind = "all"
            if self._next:
                kind = self._batch = await self.until_available(lambda: self._share(os.urandom(8).hex()))
            elif self._host is not None:
                kind = self._host = await self.until_available(lambda: self._share(self.id))
            joined = await self.enter(f"{kind} {self._name}", context, max_members=self._next)
            if joined is not JoinResult.FULL or self.closed:
                return
            await asyncio.sleep(RETRY_S)  # the batch is complete, and its members have not released it yet

    async def _share(self, proposed: str) -> str:
        """Return the host, or the batch that is not complete. Without one it is the proposed value.

        All members of a batch own its lease. So it stays until the last one leaves.
        """
        while True:
            found = await self.relay.find(self._latest, LATEST)
            if found is not None and self._host is not None:
                return found.data
            value = proposed if found is None else found.data
            if await self.relay.join(self._latest, Lease(LATEST, self.owner, value, value), 1) not in REFUSED:
                return value

    def _release_latest(self) -> None:
        self.client.service.start(self.relay.leave(self._latest, LATEST, self.owner))

    async def _keep_batch(self, batch: str) -> None:
        """Own the lease of a batch. The member that has left can have been its owner."""
        await self.until_available(lambda: self._share(batch))
        if not self._batch:  # it is complete by now
            self._release_latest()

    def entered(self, room: Room, others: list[str]) -> None:
        self.send({"IdAssigned": self.id})
        for each in others if self._host is None else ():
            self._greet(each)
        self._release_full_batch(len(others) + 1)

    def peer_changed(self, room: Room, member_id: str, data: str | None) -> None:
        if data is not None:
            self._greet(member_id)
            self._release_full_batch(len(room.members))
            return
        if self._host in (None, self.id, member_id):
            self.send({"PeerLeft": member_id})
        if self._batch:
            self.client.service.start(self._keep_batch(self._batch))

    def _greet(self, member_id: str) -> None:
        """Notify the older of two members of the other, or the host."""
        if self.id < member_id if self._host is None else self.id == self._host:
            self.send({"NewPeer": member_id})

    def _release_full_batch(self, count: int) -> None:
        if self._batch and count >= self._next:
            self._batch = ""
            self._release_latest()

    def received(self, message: Any, context: RequestContext) -> None:
        signal = message.get("Signal") if type(message) is dict and len(message) == 1 else None
        if type(signal) is not dict:
            if message != "KeepAlive":
                self.refuse_other_protocol(message)
            return
        self.authorize_signal(context)
        to = signal.get("receiver") if self._host in (None, self.id) else self._host
        for room in self.joined:
            if type(to) is str and "data" in signal:
                room.send(to, encode({"Signal": {"sender": self.id, "data": signal["data"]}}))

    async def leave(self) -> None:
        await super().leave()
        if self._batch or self._host == self.id:
            # The others keep the batch first.
            asyncio.get_running_loop().call_later(RETRY_S, self._release_latest)


class MatchboxUpgrade(ProtocolUpgrade):
    """GET /matchbox/ROOM."""

    def get(self) -> None:
        name = topic_of(self.request.path[len(PREFIX) :])
        if not name or len(name) > MAX_NAME:
            raise errors.PathNotFound()
        self.request.query_arguments |= {ROOM: [name.encode()]}
        super().get()
