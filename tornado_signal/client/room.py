"""Rooms: the peers under a topic, each connected to all others, including pages with the browser module.

docs/room-protocol.md describes the messages between members.
"""

import asyncio
import contextlib
import itertools
import math
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from .api import SignalClient
from .errors import APIError
from .files import FileError, IncomingFile, OutgoingFile
from .inbox import Inbox
from .link import wait_for_first
from .messages import decode, send
from .names import Identity, is_proven, topic_of
from .offers import new_secret, publish_held
from .passwords import Cipher
from .room_peer import Event, FileOffered, Full, Joined, Left, Message, Peer, ServerUnreachable
from .servers import back_off_s
from .types import Closable, Fields, IceServer, Session, Token

__all__ = [
    "FileError",
    "FileOffered",
    "Full",
    "IncomingFile",
    "Joined",
    "Left",
    "Message",
    "NameTaken",
    "Peer",
    "Room",
    "ServerUnreachable",
]

MAX_MAILS = 250  # to one beacon. The server's default limit is four times as high
MAX_ATTEMPTS = 50  # concurrent attempts of this side, and as many of other members
PAIR_S = 5.0  # timeout of the first attempt. Later ones have a multiple of it
MAX_TRIES = 4  # the largest multiple of `PAIR_S` and `LATE_S`
LATE_S = 1.5  # after this time the first attempt may be replaced. Later ones have a multiple of it
REMOTE_ATTEMPT_S = 30.0  # timeout of an attempt of another member
PAUSE_S = 1.0  # between two attempts with a member


class NameTaken(ConnectionError):
    """Another member of the room has the name, or a newer member uses the same secret."""


@dataclass(frozen=True)
class Beacon:
    """A listed beacon of another member.

    Attributes:
        code: the code of its session.
        info: the member's description of itself.
        name: the member's name, or None for no name.
        since_ms: the time at which the member entered, by the server's clock, or 0 in a first beacon.
        made_ms: the time at which the member made the beacon, by its own clock.
        published_ms: the time at which the beacon was published, by the server's clock.
    """

    code: Token
    info: str
    name: str | None
    since_ms: int
    made_ms: int
    published_ms: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order of a member's beacons: the largest is used. The later one of equal ones is a stranger's copy."""
        return self.since_ms, self.made_ms, -self.published_ms


class Member:
    """The state of another member.

    Attributes:
        id: the member's id.
        info: the member's description of itself.
        name: the member's name, or None for no name.
        entry_ms: the time at which the member entered, by the server's clock. Infinity if only its mail is known.
        beacon: the beacon that is used, or None without a listed one.
        beacons: all listed beacons of the member by their codes.
        tries: the number of attempts since the last connection.
        attempt: the id of the current or last attempt.
        attempts: the ids of all attempts.
        connected: the id of the attempt that made the open connection.
        peer: the current attempt or connection, or None.
        backing_off: whether the next attempt has to wait.
        listed: set while the beacon is listed.
    """

    def __init__(self, id: str, info: str, name: str | None) -> None:
        self.id, self.info, self.name = id, info, name
        self.entry_ms = math.inf
        self.beacon: Beacon | None = None
        self.beacons: dict[str, Beacon] = {}
        self.tries = 0
        self.attempt = ""
        self.attempts: set[str] = set()
        self.connected = ""
        self.peer: Peer | None = None
        self.backing_off = False
        self.listed = asyncio.Event()
        self._code: Token | None = None

    @property
    def order(self) -> tuple[float, str]:
        """The order in which members get the places of a room."""
        return self.entry_ms, self.id

    @property
    def code(self) -> Token | None:
        """The code of the member's beacon, or None without a beacon."""
        return self._code

    @code.setter
    def code(self, code: Token | None) -> None:
        self._code = code
        if code is None:
            self.listed.clear()
        else:
            self.listed.set()


class WaitingMembers:
    """Members that wait for an attempt, the least tried first, in random order."""

    def __init__(self) -> None:
        self._by_tries: list[list[Member]] = [[] for _ in range(MAX_TRIES + 1)]
        self._positions: dict[str, tuple[list[Member], int]] = {}

    def add(self, member: Member) -> None:
        self.discard(member)
        members = self._by_tries[min(MAX_TRIES, member.tries)]
        self._positions[member.id] = members, len(members)
        members.append(member)

    def discard(self, member: Member) -> None:
        """Remove a member if it is waiting."""
        if member.id in self._positions:
            members, index = self._positions.pop(member.id)
            last = members.pop()
            if last is not member:
                members[index] = last
                self._positions[last.id] = members, index

    def choose(self) -> Member | None:
        """Return a random one of the least tried members, or None if no member is waiting."""
        members = next(filter(None, self._by_tries), None)
        return random.choice(members) if members else None


class Room(Closable):
    """A room of which this peer is a member until `leave`. Iterate over it for its events.

    The events are `Joined`, `Left`, `Message`, with `files` also `FileOffered`, with `max` also `Full`, and during an
    outage `ServerUnreachable`.

    Args:
        client: the client of the servers.
        ice_servers: returns the ICE servers for a new connection.
        topic: the topic of the room.
        info: this member's description of itself.
        me: this member's name, or None for no name.
        secret: protects the name.
        password: the password of the room, or None for a room without one.
        files: whether this member takes files. Otherwise it refuses them.
        places: the most members that are connected, this one included, or None for any number.
        timeout_s: how long entering may take, or None for any time.
        on_closed: called when this member leaves.

    Attributes:
        topic: the topic of the room.
        id: this member's id.
        peers: the connected members by id.
        full: whether this member waits for a place. It is then connected to nobody.
    """

    def __init__(
        self,
        client: SignalClient,
        ice_servers: Callable[[], Awaitable[list[IceServer]]],
        topic: str,
        info: str,
        me: str | None,
        secret: str | None,
        password: str | None,
        files: bool,
        places: int | None,
        timeout_s: float | None,
        on_closed: Callable[["Room"], None],
    ) -> None:
        self.topic = topic
        self._password = password
        self._cipher: Cipher | None = None  # of a room with a password
        if places is not None and places < 1:
            raise ValueError("max is the number of members, at least 1")
        self._files, self._places, self._timeout_s = files, places, timeout_s
        self.full = False
        self._settled = asyncio.Event()  # set when all members that entered before are known
        self._last: tuple[float, str] | None = None  # the order of the member with the last place, if all have members
        self.peers: dict[str, Peer] = {}
        self._topic = topic_of(topic)
        self._identity = Identity(self._topic, me, secret)
        self.id = self._identity.id
        self._client, self._get_ice_servers, self._info, self._on_closed = client, ice_servers, info, on_closed
        self._ice_servers: list[IceServer] = []
        self._members: dict[str, Member] = {}
        self._listed: dict[str, Member] = {}  # by the codes of their beacons
        self._named: dict[str | None, dict[str, Member]] = {}  # by name and id. The first member owns the name
        self._waiting = WaitingMembers()
        self._attempts: set[Peer] = set()  # until they are closed
        self._connecting: list[Peer] = []  # attempts that are neither connected nor closed, the oldest first
        self._secret = new_secret()
        self._failures = 0  # consecutive failures to publish a beacon
        self._code: Token | None = None  # of the beacon
        self._beacon_ms = 0  # when the beacon was made
        self._since_ms = 0  # when this member entered, by the server's clock, or 0 if it does not know that yet
        self._sent_since = False  # whether the beacon contains it
        self._rival_ms = -1  # when another member with the same secret entered: 0 if unknown, -1 without one
        self._beacons: set[str] = set()  # the texts of this member's beacons
        self._events: Inbox[Event | Full | ServerUnreachable | None] = Inbox()
        self._forget_outages = client.on_unreachable(lambda error: self._events.put_always(ServerUnreachable(error)))
        self._error: Exception | None = None
        self._left = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._entering: asyncio.Timeout
        self._start_task(self._run())

    async def __aiter__(self) -> AsyncIterator[Event | Full | ServerUnreachable]:
        """Yield the events of the room until this member leaves.

        Raises:
            NameTaken: another member has the name, or a newer member uses the same secret.
            APIError: the server refuses a request.
            TimeoutError: this member could not enter in time.
        """
        while (event := await self._events.get()) is not None:
            yield Message(event.peer, decode(event.data)) if isinstance(event, Message) else event
        self._events.put_always(None)  # for the next iteration
        if self._error is not None:
            raise self._error

    @property
    def dropped(self) -> int:
        """The number of messages and files that were dropped, because the program had too many events to read."""
        return self._events.dropped

    @property
    def ignored(self) -> int:
        """How many texts in a room with a password could not be decrypted, or were repeated."""
        return 0 if self._cipher is None else self._cipher.ignored

    def _recipients(self, to: Peer | str | None) -> list[Peer]:
        """Return the connected peers that `to` names."""
        id = to.id if isinstance(to, Peer) else to
        peers = list(self.peers.values()) if id is None else filter(None, [self.peers.get(id)])
        return [peer for peer in peers if peer.channel.readyState == "open"]

    def send(self, data: Any, to: Peer | str | None = None) -> Awaitable[object]:
        """Send text, bytes or a JSON value to one peer, given as `Peer` or id, or to all.

        A message has up to 64 MiB. Disconnected peers are skipped.

        Returns:
            An awaitable that is done when all of it is in the buffers of the channels or lost.

        Raises:
            ValueError: the message is too large for a connection, or contains NaN or an infinite number.
            TypeError: the data is neither text, nor bytes, nor a JSON value.
        """
        return send(data, [peer.messages for peer in self._recipients(to)])

    async def send_file(
        self,
        source: Path | bytes,
        to: Peer | str | None = None,
        *,
        name: str | None = None,
        on_progress: Callable[[Peer, int], None] = lambda peer, sent: None,
    ) -> None:
        """Send a file to one peer, given as `Peer` or id, or to all. Returns when they have all of it.

        Args:
            source: the path or the contents of the file.
            to: the recipient, or None for all connected peers.
            name: the name for the recipients, by default that of the path.
            on_progress: called with a peer and the number of bytes sent to it.

        Raises:
            ExceptionGroup: it failed for some peers. The others have the file. The errors are FileError or OSError.
        """
        if name is None:
            name = "" if isinstance(source, bytes) else source.name
        transfers = (
            OutgoingFile(peer.connection).send(source, name, partial(on_progress, peer))
            for peer in self._recipients(to)
        )
        results = await asyncio.gather(*transfers, return_exceptions=True)
        if errors := [result for result in results if isinstance(result, Exception)]:
            raise ExceptionGroup(f"{len(errors)} of {len(results)} peers did not receive the file", errors)

    async def close(self) -> None:
        """Leave the room after pending messages have been sent."""
        if self._left:
            return
        self._left = True
        self._forget_outages()
        self._on_closed(self)
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._withdraw(self._code), *(peer.close() for peer in self._attempts))
        self._events.put_always(None)

    async def leave(self) -> None:
        """Leave the room after pending messages have been sent."""
        await self.close()

    def _start_task(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            if self._password is not None:
                self._cipher = await asyncio.to_thread(Cipher, self._topic, self._password)
                self._topic = self._identity.topic = self._cipher.topic
            async with self._client.time_limit(self._timeout_s) as self._entering:
                while True:
                    try:
                        if not self._beacon_ms:
                            await self._check_name()
                        await self._publish_beacon()
                    except APIError as error:
                        if not error.is_transient:
                            raise
                    await asyncio.sleep(back_off_s(self._failures))
                    self._failures += 1
        except Exception as error:
            self._error = error
            await self.close()

    async def _check_name(self) -> None:
        """Raise NameTaken if another member has the name."""
        if self._identity.name is not None:
            for session in (await self._client.sessions(self._topic)).sessions:
                fields = self._unseal(session["offer"], "id")
                if fields is not None and fields["id"] != self.id and fields.get("me") == self._identity.name:
                    raise NameTaken(f"another member has the name {self._identity.name}")

    async def _publish_beacon(self) -> None:
        """Publish a beacon and process the room's events until a new beacon is needed."""
        self._ice_servers = await self._get_ice_servers()
        self._beacon_ms = max(time.time_ns() // 1_000_000, self._beacon_ms + 1)
        fields: Fields = {"id": self.id, "at": self._beacon_ms}
        self._sent_since = self._since_ms > 0
        if self._sent_since:
            fields["since"] = self._since_ms
        beacon = self._seal(fields if self._cipher is None else {**fields, "info": self._info})
        info = self._info if self._cipher is None else "-"
        self._beacons.add(beacon)
        previous = self._code
        self._code = await publish_held(self._client, self._topic, info, beacon, self._secret)
        self._failures = 0
        self._entering.reschedule(None)
        await self._withdraw(previous)
        # The new stream begins with the beacons of all current members.
        self._listed.clear()
        self._waiting = WaitingMembers()
        for member in self._members.values():
            member.code = member.beacon = None
            member.beacons.clear()
        for member in list(self._members.values()):
            if member.peer is None:
                self._remove(member)
        self._settled.clear()
        failback = self._client.wait_for_preferred_server(self._code.server)  # new members enter there
        await wait_for_first(self._watch(self._code), self._receive(self._code), failback)

    async def _withdraw(self, code: Token | None) -> None:
        if code is not None:
            with contextlib.suppress(APIError):
                await self._client.withdraw(code, "offerer", secret=self._secret)

    async def _watch(self, code: Token) -> None:
        """Follow the beacons of all members until this one's must be replaced.

        Raises:
            NameTaken: a newer member uses the same secret.
        """
        async with aclosing(self._client.topic_events(self._topic, at=code.server)) as events:
            async for name, data in events:
                if name == "gone":
                    self._on_unlisted(data["code"])
                else:
                    self._on_listed(cast(Session, data))
                self._assign_places()
                if self._rival_ms >= 0 and self._since_ms:
                    if self._rival_ms > self._since_ms:
                        raise NameTaken("another peer is in this room with the same secret")
                    if not self._sent_since:  # the next beacon says when this member entered
                        return

    async def _receive(self, code: Token) -> None:
        received = 0
        if self._places is not None:  # mail waits until it is known who has a place
            await self._settled.wait()
        try:
            async with aclosing(self._client.news(code, "offerer", secret=self._secret)) as updates:
                async for update in updates:
                    self._ice_servers = await self._get_ice_servers()
                    for text in update.candidates:
                        self._on_mail(text, code)
                    received += len(update.candidates)
                    if received >= MAX_MAILS or update.description is not None:  # nobody should answer a beacon
                        return
        except APIError as error:
            if error.status != 404:
                raise

    def _on_listed(self, session: Session) -> None:
        """Process a listed beacon."""
        fields = self._unseal(session["offer"], "id")
        if fields is None or not isinstance(made_ms := fields.get("at"), int):
            return
        info = session["info"] if self._cipher is None else str(fields.get("info"))
        id, since_ms = fields["id"], fields.get("since")
        if not isinstance(since_ms, int):
            since_ms = 0
        if session["code"] == self._code:
            self._since_ms = self._since_ms or session["createdAt"]
            self._settled.set()  # sessions are listed in the order of their creation
        elif id == self.id and session["offer"] not in self._beacons:
            self._rival_ms = max(self._rival_ms, since_ms)
        if id == self.id:
            return
        member = self._members.get(id) or Member(id, info, fields.get("me"))
        code = cast(Token, session["code"])
        beacon = Beacon(code, info, fields.get("me"), since_ms, made_ms, session["createdAt"])
        self._listed[code] = member
        member.beacons[code] = beacon
        if member.beacon is None or beacon.rank > member.beacon.rank:
            self._use(member, beacon)

    def _use(self, member: Member, beacon: Beacon) -> None:
        """Use a beacon for the mail to a member."""
        self._add(member, beacon.name)
        member.entry_ms = beacon.since_ms or beacon.published_ms
        member.beacon, member.code, member.info, member.backing_off = beacon, beacon.code, beacon.info, False
        if member.peer is None:
            self._start_attempts(member)
        else:
            member.peer.info = member.info

    def _assign_places(self) -> None:
        """Find out who has a place in a room with a maximum, and end connections of members without one."""
        if self._places is None or self._left or not self._settled.is_set():
            return
        own = (self._since_ms, self.id)
        members = list(self._members.values())
        self._last = next(iter(sorted([own, *(each.order for each in members)])[self._places - 1 :]), None)
        full = not self._has_place(own)
        for member in members:
            if full or not self._has_place(member.order):
                self._waiting.discard(member)
                for peer in {member.peer, self.peers.get(member.id)}:
                    if peer is not None:
                        peer.end()
        if full != self.full:
            self.full = full
            self._events.put_always(Full(full))
        for member in members:
            if self._members.get(member.id) is member:
                self._start_attempts(member)

    def _has_place(self, order: tuple[float, str]) -> bool:
        return self._last is None or order <= self._last

    def _may_connect(self, member: Member) -> bool:
        """Return whether a member and this one have places."""
        return self._places is None or (self._settled.is_set() and not self.full and self._has_place(member.order))

    def _has_claimed_name(self, member: Member) -> bool:
        """Return whether a member uses a name that another member owns."""
        if member.name is None:
            return False
        owner = next(iter(self._named.get(member.name, ())), member.id)
        return member.name == self._identity.name or owner != member.id

    def _on_unlisted(self, code: str) -> None:
        """Process the removal of a beacon from the listing."""
        member = self._listed.pop(code, None)
        if member is None:
            return
        member.beacons.pop(code, None)
        if member.beacons and member.beacon is not None and member.beacon.code == code:
            self._use(member, max(member.beacons.values(), key=lambda beacon: beacon.rank))
        elif member.beacon is None or member.beacon.code == code:
            member.code = member.beacon = None
            if member.peer is None:
                self._remove(member)
            else:
                for peer in {member.peer, self.peers.get(member.id, member.peer)}:
                    peer.check()

    def _add(self, member: Member, name: str | None) -> None:
        """Add a member, or change its name."""
        if self._members.get(member.id) is not member or member.name != name:
            self._remove(member)
            member.name = name
            self._members[member.id] = self._named.setdefault(name, {})[member.id] = member

    def _remove(self, member: Member) -> None:
        """Remove a member. The next member with the same name then owns it."""
        self._waiting.discard(member)
        if self._members.get(member.id) is member:
            del self._members[member.id]
            others = self._named[member.name]
            del others[member.id]
            if others:
                self._start_attempts(next(iter(others.values())))
            else:
                del self._named[member.name]

    def _on_mail(self, text: str, own_code: Token) -> None:
        """Process mail from another member to the beacon with `own_code`."""
        mail = self._unseal(text, "from", self.id, own_code)
        if mail is None or mail["from"] == self.id:
            return
        id = mail["from"]
        match mail:
            case {
                "of": 1,
                "description": {"type": "offer"},
                "connection": str(attempt),
                "info": str(info),
                "code": str(code),
            }:
                member = self._members.get(id) or Member(id, info, mail.get("me"))
                another = attempt not in member.attempts and (member.peer not in self._connecting or member.peer.late)
                # Anybody can send mail with an id that is not proven, so that an open connection stays.
                connected = self.peers[id].connection.connectionState == "connected" if id in self.peers else False
                stays = connected and not is_proven(id)
                allowed = self._may_connect(member) and not self._has_claimed_name(member)
                first = id < self.id and not stays and allowed
                if first and another and self._admit(leads=False):
                    self._add(member, member.name)
                    member.code = member.code or Token(code, own_code.server)
                    self._connect(member, attempt)
        sender = self._members.get(id)
        if sender is not None and sender.peer is not None and sender.attempt == mail.get("connection"):
            sender.peer.deliver(mail)
        elif sender is not None and id in self.peers and sender.connected == mail.get("connection"):
            self.peers[id].deliver(mail)

    def _needs_attempt(self, member: Member) -> bool:
        waits = member.code is not None and member.peer is None and not member.backing_off
        return self.id < member.id and waits and self._may_connect(member) and not self._has_claimed_name(member)

    def _start_attempts(self, member: Member | None = None) -> None:
        """Start attempts with the waiting members, and with `member` if it needs one."""
        if member is not None and self._needs_attempt(member):
            self._waiting.add(member)
        while not self._left and self._waiting.choose() is not None and self._admit(leads=True):
            chosen = self._waiting.choose()  # `_admit` may have ended an attempt, which can change who is waiting
            if chosen is not None:
                self._connect(chosen, secrets.token_urlsafe(12))

    def _admit(self, *, leads: bool) -> bool:
        """Return whether another attempt may start. If necessary, end a late one to make room.

        The number is limited because a stranger can list or send offers under any number of ids. A real member has
        connected before its attempt is late.
        """
        attempts = [peer for peer in self._connecting if peer.leads == leads]
        if len(attempts) < MAX_ATTEMPTS:
            return True
        late = next((peer for peer in attempts if peer.late), None)
        if late is None:
            return False
        late.end()
        return self._admit(leads=leads)

    def _connect(self, member: Member, attempt: str) -> None:
        """Start an attempt that replaces the current one. An open connection stays until the new one is open."""
        self._waiting.discard(member)
        previous = member.peer
        leads = self.id < member.id
        member.tries += 1
        times = min(MAX_TRIES, member.tries)
        member.attempt = attempt
        member.attempts.add(attempt)
        member.peer = Peer(
            member.id,
            member.info,
            member.name,
            self._ice_servers,
            leads,
            PAIR_S * times if leads else REMOTE_ATTEMPT_S,
            LATE_S * times,
            lambda mail: self._post(member, {"connection": attempt, **mail}),
            self._on_event,
            self._start_attempts,
            lambda peer: self._on_peer_end(member, peer),
        )
        self._attempts.add(member.peer)
        self._connecting.append(member.peer)
        if previous is not None and self.peers.get(member.id) is not previous:
            previous.end()

    def _on_event(self, event: Event) -> None:
        peer = event.peer
        if isinstance(event, FileOffered) and not self._files:
            return event.file.cancel()
        if isinstance(event, Joined):
            if peer.id in self.peers:
                self.peers[peer.id].end()
            member = self._members[peer.id]
            member.tries, member.connected = 0, member.attempt
            self.peers[peer.id] = peer
            self._connecting.remove(peer)
            self._start_attempts()
        elif isinstance(event, Left) and self.peers.get(peer.id) is peer:
            del self.peers[peer.id]
            if peer.connection.connectionState == "failed":  # so can have the connection to the server
                self._client.check()
        if isinstance(event, Message):
            self._events.put(event, event.data)
        elif not isinstance(event, FileOffered):
            self._events.put_always(event)
        elif not self._events.put(event, event.file.name + event.file.type):
            event.file.cancel()

    def _on_peer_end(self, member: Member, peer: Peer) -> None:
        self._start_task(self._close(peer))
        if peer in self._connecting:
            self._connecting.remove(peer)
        if member.peer is not peer:
            return
        member.peer = self.peers.get(member.id)
        if member.peer is not None:
            member.peer.info = member.info
            member.attempt, member.tries = member.connected, 0
            self._start_attempts()
        elif member.code is None or member.beacon is None:
            self._remove(member)
            self._assign_places()
            self._start_attempts()
        elif not self._left:
            member.backing_off = True
            self._start_task(self._retry_later(member))

    async def _close(self, peer: Peer) -> None:
        await peer.close()
        self._attempts.discard(peer)

    async def _retry_later(self, member: Member) -> None:
        await asyncio.sleep(back_off_s(0, PAUSE_S))
        with contextlib.suppress(APIError):  # continue with the previous ICE servers
            self._ice_servers = await self._get_ice_servers()
        member.backing_off = False
        self._start_attempts(member)

    def _seal(self, fields: Fields, recipient: str = "", code: str | None = None) -> str:
        """Return the text that is sent to a member, whose beacon has a code, or to all."""
        text = self._identity.seal(fields, recipient)
        return text if self._cipher is None else self._cipher.seal(text, code)

    def _unseal(self, text: str, sender: str, recipient: str = "", code: str | None = None) -> Fields | None:
        """Return the fields of a text to this member, whose beacon has a code, or to all. None is to be ignored."""
        text = text if self._cipher is None else self._cipher.unseal(text, code)
        return self._identity.unseal(text, sender, recipient)

    async def _post(self, member: Member, mail: Fields) -> None:
        """Send mail to a member as soon as its beacon is listed."""
        for attempt in itertools.count():
            await member.listed.wait()
            code = member.code
            assert code is not None
            fields = {"from": self.id, "info": self._info, "code": self._code, **mail}
            try:
                await self._client.candidates(code, "answerer", [self._seal(fields, member.id, code)])
                return
            except APIError as error:
                if error.lost_race:
                    if member.code == code:
                        member.code = None
                elif error.is_transient:
                    await asyncio.sleep(back_off_s(attempt))
                else:
                    return
