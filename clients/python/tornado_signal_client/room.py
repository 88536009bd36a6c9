"""Rooms: the peers under a topic, each connected to all others, including pages with the browser module.

docs/room-protocol.md describes the messages between members.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from .api import SignalClient, topic_of
from .attempts import MAX_ATTEMPTS, Attempts
from .errors import Incomplete, SignalError, log_unheard
from .link import wait_for_first
from .mailbox import ALIVE_S, BATCH, Mailbox, Mailboxes
from .messages import Inbox, Messages, decode, encode
from .names import Identity
from .records import Beacon
from .room_peer import Event, FileOffered, Full, Member, Message, Peer, ServerUnreachable, peer_left
from .tasks import Tasks, back_off_s
from .types import Closable, Fields, IceServer, Session, T, Token, check_type

log = logging.getLogger(__name__)

ASKS = 2  # how often a beacon is asked for a sign of life
REPLY_S = 4.0  # between two signs of life for one beacon
MAX_CLAIMANTS = 10  # members with this one's name that are asked
MAX_REPLIES = 200  # within `REPLY_S`
MAX_PAUSES = 3  # after more beacons that were soon replaced, the pauses stay the same


class Room(Closable):
    """A room of which this peer is a member until `leave`. Iterate over it for its events.

    The events are `Joined`, `Left`, `Message`, with `files` also `FileOffered`, with `max` also `Full`, and during an
    outage `ServerUnreachable`.

    Attributes:
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
        if places is not None and places < 1:
            raise ValueError("max is the number of members, at least 1")
        identity = Identity(client.origin, topic_of(topic), me, secret)
        self.topic, self.id = topic, identity.id
        self._client, self._on_closed = client, on_closed
        self._name, self._password, self._files = me, password, files
        self._places, self._timeout_s = places, timeout_s
        self.full = False
        self._settled = asyncio.Event()  # set when all members that entered before are known
        self._established = False  # whether this member has a place
        self._seats: set[str] = set()  # the ids of the members with places
        self._spare = False  # whether there are more places than members
        self._tasks = Tasks()
        # In a room with places, mail waits until it is known who has one.
        self._mail = Mailboxes(client, identity, topic, info, self._take, self._settled if places else None)
        calls = self._may_connect, self._on_event, self._assign_places
        self._attempts = Attempts(client, ice_servers, self._mail, self._tasks, *calls)
        self._roster = self._attempts.roster
        self.peers: dict[str, Peer] = self._attempts.peers
        self._unchecked: OrderedDict[str, Session] = OrderedDict()  # listed sessions that are not verified yet
        self._changed = asyncio.Event()  # set when the listing, a connection or a sign of life has changed
        self._listed: dict[str, Beacon] = {}  # by code
        self._known: dict[str, Beacon] = {}  # the beacons that were listed before this member's current one
        self._asks, self._replies = Tasks(), Tasks()  # for and of signs of life, by beacon
        self._name_is_free = me is None  # whether no other member had this one's name before
        self._claimants: list[Beacon] | None = None  # of members that may have had it
        self._events: Inbox[Event | Full | ServerUnreachable | None] = Inbox()
        self._forget_outages = client.on_unreachable(lambda error: self._events.put_always(ServerUnreachable(error)))
        self._channels: dict[str, Channel] = {}  # by name
        self._error: Exception | None = None
        self._settled_once, self._over = asyncio.Event(), asyncio.Event()
        self._listeners = 0  # iterations and calls that get the error
        self._left = False
        self._tasks.start(self._run())

    async def __aiter__(self) -> AsyncIterator[Event | Full | ServerUnreachable]:
        """Yield the events of the room until this member leaves.

        Raises:
            SignalError: what has closed the room. Another member has the name (`name-taken`), or a newer member uses
                the same secret (`replaced`). This member could not enter in time (`timeout`), or the server has refused
                it.
        """
        self._listeners += 1
        while (event := await self._events.get()) is not None:
            yield Message(event.peer, decode(event.data)) if isinstance(event, Message) else event
        if self._error is not None:
            raise self._error

    async def messages(self) -> AsyncIterator[tuple[Peer, Any]]:
        """Yield each message with its sender, in place of an iteration over all events. Offered files are refused."""
        async for event in self:
            if isinstance(event, Message):
                yield event.peer, event.data
            elif isinstance(event, FileOffered):
                event.file.cancel()

    async def ready(self) -> None:
        """Wait until this member is listed. It then knows all members that have entered before.

        Raises:
            SignalError: what has closed the room before, or `room-left` if the program has left it.
        """
        with self._listen():
            await wait_for_first(self._settled_once.wait(), self._over.wait())
        if not self._settled_once.is_set():
            raise self._error or SignalError("room-left", "the program has left the room")

    async def closed(self) -> Exception | None:
        """Wait until the room is closed. Return the error that has closed it, or None if the program has left it."""
        with self._listen():
            await self._over.wait()
        return self._error

    @contextlib.contextmanager
    def _listen(self) -> Iterator[None]:
        """Count a call that gets the error of the room."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    @property
    def dropped(self) -> int:
        """The number of messages and files that were dropped, because the program had too many events to read."""
        return self._events.dropped

    @property
    def ignored(self) -> int:
        """How many texts in a room with a password could not be decrypted, or were repeated."""
        return 0 if self._mail.cipher is None else self._mail.cipher.ignored

    def _recipients(self, to: Peer | str | None) -> list[Peer]:
        """Return the connected peers that `to` names."""
        id = to.id if isinstance(to, Peer) else check_type("to", to, str, None)
        peers = self.peers.values() if id is None else filter(None, [self.peers.get(id)])
        recipients = [peer for peer in peers if peer.channel.readyState == "open"]
        if isinstance(to, str) and not recipients:
            raise peer_left(to)
        return recipients

    async def _send_each(
        self, recipients: list[Peer], to: Peer | str | None, what: str, start: Callable[[Peer], Awaitable[None]]
    ) -> None:
        """Send something to each recipient. An error with one does not stop the others, and is raised at the end."""
        results = await asyncio.gather(*map(start, recipients), return_exceptions=True)
        errors = [result for result in results if isinstance(result, Exception)]
        for peer, result in zip(recipients, results, strict=True):
            if isinstance(result, SignalError):
                result.peer = peer
        if errors and to is not None:
            raise errors[0]
        if errors:
            text = f"{len(errors)} of {len(results)} peers did not receive the {what}"
            raise Incomplete(f"{what}-incomplete", text, errors)

    async def send(self, data: Any, to: Peer | str | None = None) -> None:
        """Send text, bytes or a JSON value to one peer, given as `Peer` or id, or to all.

        It has at most 64 MiB. Return when it is in the buffers of the channels, or lost with its connection. If more
        than 1 MiB is in a buffer, it waits behind earlier messages to the same peer. Other peers get it at once.

        Raises:
            SignalError: JSON cannot represent it (`invalid-message`), or it is too large (`message-too-large`). The id
                is not connected (`peer-left`), or 64 MiB wait for the recipient (`peer-slow`). If it failed for some of
                all peers, the error is an ExceptionGroup (`message-incomplete`). Its errors have a `peer`.
        """
        await self._send(data, to, lambda peer: peer._messages)

    async def _send(self, data: Any, to: Peer | str | None, channel_of: Callable[[Peer], Messages]) -> None:
        message, size = encode(data)
        channels = {peer: channel_of(peer) for peer in self._recipients(to)}
        for channel in channels.values():
            channel.check(size)
        await self._send_each([*channels], to, "message", lambda peer: channels[peer].send(message, size))

    def channel(self, name: str, *, ordered: bool = True, max_retransmits: int | None = None) -> "Channel":
        """Return the channel with a name, whose messages do not wait for others.

        Without `ordered` a message does not wait for earlier ones. With `max_retransmits` it can be lost. Each member
        that receives its messages calls this with the same name. Others ignore them.
        """
        check_type("name", name, str)
        if name not in self._channels:
            self._channels[name] = Channel(self, name, {"ordered": ordered, "maxRetransmits": max_retransmits})
        return self._channels[name]

    async def send_file(
        self,
        source: Path | bytes,
        to: Peer | str | None = None,
        *,
        name: str | None = None,
        on_progress: Callable[[Peer, int], None] = lambda peer, sent: None,
    ) -> None:
        """Send a file to one peer, given as `Peer` or id, or to all. Return when they have all of it.

        Args:
            name: the name for the recipients, by default that of the path.
            on_progress: called with a peer and the number of bytes sent to it.

        Raises:
            SignalError: as for `Peer.send_file`. If it failed for some of all peers, the error is an ExceptionGroup
                with the code `file-incomplete`. The other peers have the file.
            OSError: the file cannot be read, if it is for one peer.
        """
        check_type("source", source, Path, bytes)

        def start(peer: Peer) -> Awaitable[None]:
            return peer.send_file(source, name=name, on_progress=partial(on_progress, peer))

        recipients = self._recipients(to) or ([to] if isinstance(to, Peer) else [])  # of that one it is an error
        await self._send_each(recipients, to, "file", start)

    async def close(self) -> None:
        """Leave the room after pending messages have been sent."""
        if self._left:
            return
        self._left = True
        self._forget_outages()
        self._on_closed(self)
        self._attempts.ended = True  # no more are started
        for tasks in (self._tasks, self._asks, self._replies):
            await tasks.cancel()  # except the current task, which can be `_run`
        mailbox, self._mail.current = self._mail.current, None
        if mailbox is not None:
            await self._mail.retire(mailbox, 0.0)
        await self._attempts.finish()
        self._over.set()
        self._events.put_always(None)
        for channel in self._channels.values():
            channel._inbox.put_always(None)

    leave = close

    async def _run(self) -> None:
        pauses = 0  # after failures, and after beacons that were soon replaced
        try:
            if self._password is not None:
                await self._mail.encrypt(self._password)
            async with self._client._time_limit(self._timeout_s) as entering:
                while True:
                    mailbox = None
                    try:
                        await self._attempts.get_ice_servers()
                        previous, mailbox = await self._mail.publish()
                        entering.reschedule(None)
                        await self._attend(mailbox, previous)
                    except SignalError as error:
                        if not error.retryable:
                            raise
                    if mailbox is None:
                        pauses += 1
                    else:
                        soon = time.monotonic() - mailbox.published_s < ALIVE_S
                        pauses = min(pauses + 1, MAX_PAUSES) if soon else 0
                    await asyncio.sleep(back_off_s(pauses))
        except Exception as error:
            self._error = error
            if not self._listeners:
                log_unheard(log, f"the room {self.topic!r}", error)
            await self.close()

    async def _attend(self, mailbox: Mailbox, previous: Mailbox | None) -> None:
        """Process the room's events until a new beacon is needed."""
        # The new stream begins with the beacons of all current members.
        self._settled.clear()
        self._known, self._listed = self._listed, {}
        self._unchecked.clear()
        self._claimants = None
        for beacon in list(self._asks):
            self._asks.end(beacon)
        self._roster.clear()
        if previous is not None:
            self._tasks.start(self._mail.retire(previous, ALIVE_S))
        await wait_for_first(
            self._check(mailbox),
            self._watch(mailbox.code),
            mailbox.full.wait(),
            self._mail.test(mailbox, lambda: len(self._roster.members) <= len(self.peers)),
            asyncio.shield(mailbox.reading),
            self._client._wait_for_preferred_server(mailbox.code.server),  # new members enter there
        )

    async def _watch(self, code: Token) -> None:
        """Follow the listing, which `_check` processes."""
        async with aclosing(self._client.topic_events(self._mail.identity.topic, at=code.server)) as events:
            async for name, data in events:
                if name == "gone":
                    self._unchecked.pop(data["code"], None)
                    self._process(self._on_unlisted, data["code"])
                else:
                    self._unchecked[data["code"]] = cast(Session, data)
                self._changed.set()

    async def _check(self, mailbox: Mailbox) -> None:
        """Process listed beacons until this member's must be replaced.

        Anybody can list wrongly signed beacons, and their verification takes time. So the newest and the oldest one
        are taken in turn: those of members that have just entered, and of members that entered long ago.
        """
        while True:
            await self._changed.wait()
            await self._attempts.renew_ice_servers()
            self._changed.clear()
            while self._unchecked:
                for number in range(min(BATCH, len(self._unchecked))):
                    self._process(self._on_listed, self._unchecked.popitem(last=number % 2 == 0)[1])
                await asyncio.sleep(0)
            if mailbox.entry_ms == math.inf:
                continue
            if not self._settled.is_set():
                self._settled.set()
                self._settled_once.set()
            self._check_name(mailbox)
            self._assign_places()
            # Beacons that another member with the same secret has made.
            rivals = [beacon for beacon in self._listed.values() if beacon.id == self.id]
            if rivals and not mailbox.since_ms:  # the next beacon says when this member entered
                return
            for rival in sorted(rivals, key=lambda beacon: beacon.published_ms):
                if rival.entry_ms > mailbox.entry_ms:
                    if rival.life == "alive":
                        raise SignalError("replaced", "another peer is in this room with the same secret")
                    self._start_asking(rival)

    def _process(self, handle: Callable[[T], object], item: T) -> object:
        """Handle one event or text of others. An exception is logged, and the room continues."""
        try:
            return handle(item)
        except Exception as error:
            log.error("an event of the room is ignored, because of an internal error: %s", type(error).__name__)
            return None

    def _on_listed(self, session: Session) -> None:
        """Process a listed beacon, the session by which a member is found. That of the highest rank is used."""
        code = session["code"]
        if not self._mail.is_own(session) and code not in self._listed:
            beacon = self._known.get(code) or self._mail.read_beacon(session)
            if beacon is not None:
                self._listed[code] = beacon
                if beacon.id != self.id:
                    member = self._roster.member(beacon.id, beacon.info, beacon.name)
                    member.beacons[code] = beacon
                    if member.beacon is None or beacon.rank > member.beacon.rank:
                        self._use(member, beacon)

    def _on_unlisted(self, code: str) -> None:
        """Process the removal of a beacon. Without another one, its member keeps only an open connection."""
        beacon = self._listed.pop(code, None)
        if beacon is None:
            return
        self._asks.end(beacon)
        member = self._roster.members.get(beacon.id)
        if member is None:
            return
        member.beacons.pop(code, None)
        if member.beacons and member.beacon is beacon:
            self._use(member, max(member.beacons.values(), key=lambda beacon: beacon.rank))
        elif member.beacon is None or member.beacon is beacon:
            member.code = member.beacon = None
            if member.peer is None:
                self._roster.remove(member)
            else:
                # An attempt can run in parallel with an open connection. Without a beacon it gets no more mail.
                for peer in (member.peer, self.peers.get(member.id, member.peer)):
                    if peer.connection.connectionState != "connected":
                        peer._end()

    def _use(self, member: Member, beacon: Beacon) -> None:
        """Use a beacon for the mail to a member."""
        if member.name != beacon.name:
            member.named_ms = math.inf
        member.named_ms = min(member.named_ms, beacon.published_ms)
        owner = self._roster.add(member, beacon.name)
        if owner is not member and owner.beacon is not None and owner.id not in self.peers:
            self._start_asking(owner.beacon)  # a stranger's copy owns no name
        member.entry_ms = beacon.entry_ms
        member.beacon, member.code, member.info, member.backing_off = beacon, beacon.code, beacon.info, False
        if member.peer is None:
            self._attempts.start(member)

    async def _take(self, text: str, own_code: Token) -> bool:
        """Process mail to this member's beacon with `own_code`. Return whether a member has sent it."""
        await self._attempts.renew_ice_servers()
        return bool(self._process(partial(self._on_mail, own_code=own_code), text))

    def _on_mail(self, text: str, own_code: Token) -> bool:
        mail = self._mail.read_mail(text, own_code)
        if mail is None:
            return False
        beacon = self._listed.get(mail["code"])
        if beacon is not None and beacon.id == mail["from"]:
            if beacon.life != "alive":
                self._set_life(beacon, "alive")
                self._assign_places()
            is_due = beacon not in self._replies and len(self._replies) < MAX_REPLIES
            if mail.get("alive") == "ask" and is_due:
                self._replies.start(self._reply(beacon), beacon)
        attempt = mail.get("connection")
        if mail["from"] != self.id and attempt is not None:
            self._attempts.take(mail, attempt, own_code)
        return True

    def _assign_places(self) -> None:
        """Find out who has a place in a room with a maximum, and end connections of members without one.

        A copy of a beacon has no member that gives a sign of life. So members that have not given one take no places
        of members that have, and those that were asked in vain take none at all.
        """
        mailbox = self._mail.current
        if self._places is None or self._left or mailbox is None or not self._settled.is_set():
            return
        members = list(self._roster.members.values())
        known = [each for each in members if each.id in self.peers or not each.is_silent]
        order = sorted([(mailbox.entry_ms, self.id), *(each.order for each in known)])
        established = {self.id, *self.peers} if self._established else set(self.peers)
        unknown = {each.id: each.beacon for each in known if each.beacon is not None and each.beacon.life == "unknown"}
        for id in established:
            unknown.pop(id, None)
        # Members of unknown life displace no connected one. Until they are asked, they keep newer members out.
        ids = [id for _, id in order]
        certain = [id for id in ids if id not in unknown][: self._places]
        first = ids[: self._places]
        self._seats = {id for id in certain if id in established} | {id for id in first if id not in unknown}
        free = self._places - len(self._seats)
        self._seats |= {*[id for id in first if id in unknown][:free]}
        self._spare = len(ids) < self._places
        full = self.id not in self._seats
        self._established = not full
        for member in members:
            if full or member.id not in self._seats:
                self._roster.discard(member)
                self._attempts.disconnect(member)
        if full != self.full:
            self.full = full
            self._events.put_always(Full(full))
        for id in ids[: self._places + len(members) - len(known)]:
            if beacon := unknown.get(id):
                self._start_asking(beacon, ALIVE_S if id in self._seats and not full else 0.0)
        for member in members:
            if self._roster.members.get(member.id) is member:
                self._attempts.start(member)

    def _may_connect(self, member: Member) -> bool:
        """Return whether a member and this one may use their names, and have places."""
        if not self._name_is_free or (member.name is not None and member.name == self._name):
            return False
        if self._roster.owner(member) is not member:
            return False
        if self._places is None:
            return True
        has_place = member.id in self._seats if member.id in self._roster.members else self._spare
        return self._settled.is_set() and not self.full and has_place

    def _check_name(self, mailbox: Mailbox) -> None:
        """Find out whether this member's name is free.

        The first members that may have had it before are asked for a sign of life.
        """
        if self._name_is_free:
            return
        if self._claimants is None:
            own, others = (mailbox.entry_ms, self.id), self._roster.named(self._name)[:MAX_CLAIMANTS]
            self._claimants = [each.beacon for each in others if each.beacon is not None and each.order < own]
        if any(beacon.life == "alive" for beacon in self._claimants):
            raise SignalError("name-taken", f"another member has the name {self._name}")
        unknown = [each for each in self._claimants if each.life == "unknown" and each.code in self._listed]
        for beacon in unknown:
            self._start_asking(beacon)
        if not unknown:
            self._name_is_free = True
            for member in list(self._roster.members.values()):
                self._attempts.start(member)

    def _start_asking(self, beacon: Beacon, delay_s: float = 0.0) -> None:
        """Ask the member of a beacon for a sign of life, unless its state is known."""
        if beacon.life == "unknown" and beacon not in self._asks and len(self._asks) < MAX_ATTEMPTS:
            self._asks.start(self._ask(beacon, delay_s), beacon)

    async def _ask(self, beacon: Beacon, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        asked = 0
        while asked < ASKS and beacon.id not in self.peers:
            asked += 0 < await self._mail.send_once({"alive": "ask"}, beacon.id, beacon.code) < 500
            await asyncio.sleep(ALIVE_S)
        if beacon.id not in self.peers:
            self._set_life(beacon, "silent")

    def _set_life(self, beacon: Beacon, life: Literal["alive", "silent"]) -> None:
        beacon.life = life
        self._asks.end(beacon)
        self._changed.set()
        self._roster.find_owner(beacon.name)

    async def _reply(self, beacon: Beacon) -> None:
        """Send a sign of life, and no other one to this beacon for a while."""
        await self._mail.send_once({"alive": "yes"}, beacon.id, beacon.code)
        await asyncio.sleep(REPLY_S)

    def _on_event(self, event: Event) -> None:
        """Keep an event of a peer for the program. The second argument of `put` is the data whose size is limited."""
        if isinstance(event, Message) and event.channel is None:
            self._events.put(event, event.data)
        elif isinstance(event, Message):
            if event.channel in self._channels:
                self._channels[event.channel]._inbox.put((event.peer, event.data), event.data)
        elif isinstance(event, FileOffered):
            if not self._files or not self._events.put(event, event.file.name + event.file.type):
                event.file.cancel()
        else:
            self._events.put_always(event)
            self._changed.set()  # the places depend on who is connected


class Channel:
    """A channel of a room, with its own messages. `Room.channel` returns it."""

    def __init__(self, room: Room, name: str, options: Fields) -> None:
        self._room, self._name, self._options = room, name, options
        self._inbox: Inbox[tuple[Peer, str | bytes] | None] = Inbox()

    @property
    def dropped(self) -> int:
        """The number of messages that were dropped, because the program had too many to read."""
        return self._inbox.dropped

    async def send(self, data: Any, to: Peer | str | None = None) -> None:
        """Send as `Room.send` does. A message is not split if it can be lost or overtaken."""
        await self._room._send(data, to, lambda peer: peer._own_channel(self._name, self._options))

    async def messages(self) -> AsyncIterator[tuple[Peer, Any]]:
        """Yield each message with its sender until the room is closed."""
        while (item := await self._inbox.get()) is not None:
            yield item[0], decode(item[1])
