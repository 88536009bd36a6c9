"""Rooms: the peers under a topic, each connected to all others, including pages with the browser module.

docs/room-protocol.md describes the messages between members.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from .api import SignalClient
from .errors import Incomplete, SignalError, log_unheard
from .files import IncomingFile
from .inbox import Inbox
from .link import wait_for_first
from .messages import Messages, decode, encode
from .names import VERSION, Identity, T, is_proven, topic_of
from .offers import new_secret, publish_held, withdraw
from .pacing import back_off_s
from .passwords import Cipher
from .records import Beacon, Mail, decode_beacon, decode_mail
from .room_peer import (
    Event,
    FileOffered,
    Full,
    Joined,
    Left,
    Message,
    NamedMessage,
    Peer,
    ServerUnreachable,
    peer_left,
)
from .types import Closable, Fields, IceServer, Session, Token, check_type

__all__ = [
    "FileOffered",
    "Full",
    "IncomingFile",
    "Joined",
    "Left",
    "Message",
    "Peer",
    "Room",
    "ServerUnreachable",
]

log = logging.getLogger(__name__)

MAX_MAILS = 250  # of members to one beacon. The server's default limit is four times as high
MAX_TEXTS = 900  # to one beacon, with those of strangers. The server's default limit is 1000
MIN_TEXTS = 10  # to a beacon, before it is replaced because the server's limit may be lower
MAX_TEXT_BYTES = 900 * 1024  # of these. The server's default limit is 1 MiB
CLOCK_MS = 30_000  # difference to the server's clock after which this member corrects its own
ALIVE_S = 5.0  # for a sign of life, and how long a replaced beacon is read
ASKS = 2  # how often a beacon is asked for a sign of life
REPLY_S = 4.0  # between two signs of life for one beacon
MAX_CLAIMANTS = 10  # members with this one's name that are asked
MAX_REPLIES = 200  # within `REPLY_S`
BATCH = 16  # texts that are verified between other work
MAX_ATTEMPTS = 50  # concurrent attempts of this side, and as many of other members
PAIR_S = 5.0  # timeout of the first attempt. Later ones have a multiple of it
MAX_TRIES = 4  # the largest multiple of `PAIR_S` and `LATE_S`
LATE_S = 1.5  # after this time the first attempt may be replaced. Later ones have a multiple of it
REMOTE_ATTEMPT_S = 30.0  # timeout of an attempt of another member
PAUSE_S = 1.0  # between two attempts with a member


class Member:
    """The state of another member.

    Attributes:
        entry_ms: the time at which the member entered, by the server's clock. Infinity if only its mail is known.
        named_ms: the time at which the member was first seen with its name, by the server's clock.
        beacon: the beacon that is used, or None without a listed one.
        beacons: all listed beacons of the member by their codes.
        tries: the number of attempts since the last connection.
        later_offer: the mail, attempt and own code of an offer that waits until the current attempt is late, or None.
        connected: the id of the attempt that made the open connection.
        backing_off: whether the next attempt has to wait.
        listed: set while the beacon is listed.
    """

    def __init__(self, id: str, info: str, name: str | None) -> None:
        self.id, self.info, self.name = id, info, name
        self.entry_ms = self.named_ms = math.inf
        self.beacon: Beacon | None = None
        self.beacons: dict[str, Beacon] = {}
        self.tries = 0
        self.attempt = ""
        self.attempts: set[str] = set()
        self.later_offer: tuple[Mail, str, Token] | None = None
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
    def is_silent(self) -> bool:
        """Whether the member was asked for a sign of life in vain."""
        return self.beacon is not None and self.beacon.life == "silent"

    @property
    def claim(self) -> tuple[bool, float, str]:
        """The order in which members own a name."""
        return self.is_silent, self.named_ms, self.id

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


class Mailbox:
    """The mail to one beacon of this member.

    Attributes:
        full: set when another beacon must replace this one.
        checked: the number of texts when the server last took one of this member, and that one.
        largest: the length of the longest text.
        reading: the task that processes the mail. It ends with the beacon.
    """

    def __init__(self, code: Token, read: Callable[["Mailbox"], Coroutine[None, None, None]]) -> None:
        self.code = code
        self.full = asyncio.Event()
        self.texts = self.checked = self.largest = 0
        self.reading = asyncio.create_task(read(self))


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
        self.topic = topic
        self._password = password
        self._cipher: Cipher | None = None  # of a room with a password
        if places is not None and places < 1:
            raise ValueError("max is the number of members, at least 1")
        self._files, self._places, self._timeout_s = files, places, timeout_s
        self.full = False
        self._settled = asyncio.Event()  # set when all members that entered before are known
        self._established = False  # whether this member has a place
        self._seats: set[str] = set()  # the ids of the members with places
        self._spare = False  # whether there are more places than members
        self.peers: dict[str, Peer] = {}
        self._topic = topic_of(topic)
        self._identity = Identity(client.origin, self._topic, me, secret)
        self.id = self._identity.id
        self._client, self._get_ice_servers, self._info, self._on_closed = client, ice_servers, info, on_closed
        self._ice_servers: list[IceServer] = []
        self._members: dict[str, Member] = {}
        self._unchecked: OrderedDict[str, Session] = OrderedDict()  # listed sessions that are not verified yet
        self._changed = asyncio.Event()  # set when something of the listing has changed
        self._listed: dict[str, Beacon] = {}  # by code
        self._known: dict[str, Beacon] = {}  # the beacons that were listed before this member's current one
        self._rivals: dict[str, Beacon] = {}  # listed beacons that another member with the same secret has made
        self._asking: set[Beacon] = set()  # whose members are asked for a sign of life
        self._says_closed = False
        self._replied: set[Beacon] = set()  # the beacons that were sent a sign of life within `REPLY_S`
        self._named: dict[str, dict[str, Member]] = {}  # by name and id
        self._owners: dict[str, Member] = {}  # by name
        self._name_is_free = me is None  # whether no other member had this one's name before
        self._claimants: set[Beacon] = set()  # of members that may have had it
        self._waiting = WaitingMembers()
        self._attempts: set[Peer] = set()  # until they are closed
        self._connecting: list[Peer] = []  # attempts that are neither connected nor closed, the oldest first
        self._secret = new_secret()
        self._failures = 0  # consecutive failures to publish a beacon
        self._renewals = 0  # consecutive beacons that were soon replaced
        self._corrections = 0  # consecutive beacons whose `now` was wrong
        self._mailbox: Mailbox | None = None
        self._published_s = -math.inf  # when the beacon was published
        self._beacon_ms = 0  # when the beacon was made
        self._now_ms = 0.0  # when the beacon was made, by the server's clock
        self._offset_ms = 0.0  # of the server's clock
        self._since_ms = 0.0  # when this member entered, by the server's clock, or 0 if it does not know that yet
        self._sent_since_ms = 0.0  # what the beacon says of it, or 0
        self._entry_ms = math.inf  # what the others see of it. Infinity before the beacon is listed
        self._beacons: set[str] = set()  # the texts of this member's beacons
        self._events: Inbox[Event | Full | ServerUnreachable | None] = Inbox()
        self._forget_outages = client.on_unreachable(lambda error: self._events.put_always(ServerUnreachable(error)))
        self._channels: dict[str, Channel] = {}  # by name
        self._error: Exception | None = None
        self._settled_once, self._over = asyncio.Event(), asyncio.Event()
        self._listeners = 0  # iterations and calls that get the error
        self._max_texts = MAX_TEXTS  # or less, if the server takes less
        self._warned = False  # that the server refuses mail
        self._left = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._entering: asyncio.Timeout
        self._start_task(self._run())

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
        self._events.put_always(None)  # for the next iteration
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
        return 0 if self._cipher is None else self._cipher.ignored

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
        """Send something to each recipient. An error concerns only its recipient."""
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
        own = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            await self._retire(mailbox, 0.0)
        await asyncio.gather(*(peer._finish() for peer in self._attempts))
        self._over.set()
        self._events.put_always(None)
        for channel in self._channels.values():
            channel._inbox.put_always(None)

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
                self._cipher = await asyncio.to_thread(Cipher, self._client.origin, self._topic, self._password)
                self._topic = self._identity.topic = self._cipher.topic
            async with self._client._time_limit(self._timeout_s) as self._entering:
                while True:
                    try:
                        await self._publish_beacon()
                    except SignalError as error:
                        if not error.retryable:
                            raise
                    soon = time.monotonic() - self._published_s < ALIVE_S
                    self._renewals = min(self._renewals + 1, 3) if soon else 0
                    await asyncio.sleep(back_off_s(max(self._failures, self._renewals, self._corrections)))
                    self._failures += 1
        except Exception as error:
            self._error = error
            if not self._listeners:
                log_unheard(log, f"the room {self.topic!r}", error)
            await self.close()

    async def _publish_beacon(self) -> None:
        """Publish a beacon and process the room's events until a new beacon is needed."""
        self._ice_servers = await self._get_ice_servers()
        clock_ms = time.time_ns() // 1_000_000
        self._beacon_ms = max(clock_ms, self._beacon_ms + 1)
        self._now_ms = clock_ms + self._offset_ms
        self._sent_since_ms = min(self._since_ms, self._now_ms)
        fields: Fields = {"v": VERSION, "id": self.id, "at": self._beacon_ms, "now": self._now_ms}
        if self._sent_since_ms:
            fields["since"] = self._sent_since_ms
        beacon = self._seal(fields if self._cipher is None else {**fields, "info": self._info})
        info = self._info if self._cipher is None else "-"
        self._beacons.add(beacon)
        code = await publish_held(self._client, self._topic, info, beacon, self._secret)
        self._failures, self._published_s = 0, time.monotonic()
        self._entering.reschedule(None)
        # The new stream begins with the beacons of all current members.
        self._settled.clear()
        self._entry_ms = math.inf
        self._known, self._listed = self._listed, {}
        for codes in (self._unchecked, self._rivals, self._asking, self._claimants):
            codes.clear()
        self._waiting = WaitingMembers()
        for member in self._members.values():
            member.code = member.beacon = None
            member.beacons.clear()
        for member in list(self._members.values()):
            if member.peer is None:
                self._remove(member)
        previous, self._mailbox = self._mailbox, Mailbox(code, self._read)
        if previous is not None:
            self._start_task(self._retire(previous, ALIVE_S))
        failback = self._client.wait_for_preferred_server(code.server)  # new members enter there
        full = self._mailbox.full.wait()
        test = self._test(self._mailbox)
        await wait_for_first(
            self._check(), self._watch(code), full, test, asyncio.shield(self._mailbox.reading), failback
        )

    async def _renew_ice_servers(self) -> None:
        """Get new ICE servers for later connections if the previous ones expire soon."""
        with contextlib.suppress(SignalError):  # continue with the previous ones
            self._ice_servers = await self._get_ice_servers()

    async def _retire(self, mailbox: Mailbox, delay_s: float) -> None:
        """Read the mail to a replaced beacon a little longer. Then withdraw the beacon."""
        try:
            await asyncio.sleep(delay_s)
        finally:
            mailbox.reading.cancel()
            await asyncio.gather(mailbox.reading, return_exceptions=True)
            await withdraw(self._client, mailbox.code, self._secret)
            if self._cipher is not None:
                self._cipher.forget(mailbox.code)

    async def _watch(self, code: Token) -> None:
        """Follow the listing, which `_check` processes."""
        async with aclosing(self._client.topic_events(self._topic, at=code.server)) as events:
            async for name, data in events:
                if name == "gone":
                    self._unchecked.pop(data["code"], None)
                    self._process(self._on_unlisted, data["code"])
                else:
                    self._unchecked[data["code"]] = cast(Session, data)
                self._changed.set()

    async def _check(self) -> None:
        """Process listed beacons until this member's must be replaced.

        Anybody can list wrongly signed beacons, and their verification takes time. So the newest and the oldest one
        are taken in turn: those of members that have just entered, and of members that entered long ago.
        """
        while True:
            await self._changed.wait()
            await self._renew_ice_servers()
            self._changed.clear()
            while self._unchecked:
                for number in range(min(BATCH, len(self._unchecked))):
                    self._process(self._on_listed, self._unchecked.popitem(last=number % 2 == 0)[1])
                await asyncio.sleep(0)
            if self._entry_ms == math.inf:
                continue
            if not self._settled.is_set():
                self._settled.set()
                self._settled_once.set()
                self._find_claimants()
            self._check_claimants()
            self._assign_places()
            if self._rivals and not self._sent_since_ms:  # the next beacon says when this member entered
                return
            for rival in sorted(self._rivals.values(), key=lambda beacon: beacon.published_ms):
                if rival.entry_ms > self._entry_ms:
                    if rival.life == "alive":
                        raise SignalError("replaced", "another peer is in this room with the same secret")
                    self._start_asking(rival)

    def _process(self, handle: Callable[[T], object], item: T) -> object:
        """Handle an event or text of others. An error concerns only that one."""
        try:
            return handle(item)
        except Exception as error:
            log.error("an event of the room is ignored, because of an internal error: %s", type(error).__name__)
            return None

    async def _read(self, mailbox: Mailbox) -> None:
        """Process the mail to a beacon. Only that of members counts, but strangers can fill the beacon's session."""
        mails = size = 0
        if self._places is not None:  # mail waits until it is known who has a place
            await self._settled.wait()
        try:
            async with aclosing(self._client.news(mailbox.code, "offerer", secret=self._secret)) as updates:
                async for update in updates:
                    await self._renew_ice_servers()
                    for text in update.candidates:
                        mails += bool(self._process(partial(self._on_mail, own_code=mailbox.code), text))
                        mailbox.texts += 1
                        mailbox.largest = max(mailbox.largest, len(text))
                        size += len(text.encode(errors="replace"))
                        if mailbox.texts % BATCH == 0:
                            await asyncio.sleep(0)
                    is_answered = update.description is not None  # nobody should answer a beacon
                    if is_answered or mails >= MAX_MAILS or mailbox.texts >= self._max_texts or size >= MAX_TEXT_BYTES:
                        mailbox.full.set()
        except SignalError as error:
            if error.status != 404:
                raise

    async def _test(self, mailbox: Mailbox) -> None:
        """Replace the beacon if the server takes no more mail to it.

        Its limits can be lower than the default ones. So while members are not connected and mail has arrived, this
        member sends mail to itself.
        """
        while True:
            await asyncio.sleep(ALIVE_S)
            if len(self._members) > len(self.peers) and mailbox.texts > mailbox.checked:
                mail = {"pad": "." * mailbox.largest}
                mailbox.checked = mailbox.texts + 1
                if 400 <= await self._post_once(mail, self.id, mailbox.code) < 500:
                    self._max_texts = max(MIN_TEXTS, mailbox.texts)
                    mailbox.full.set()

    def _on_listed(self, session: Session) -> None:
        """Process a listed beacon."""
        code, published_ms = cast(Token, session["code"]), session["createdAt"]
        if self._mailbox is not None and code == self._mailbox.code:
            self._on_own_listed(published_ms)
        elif code not in self._listed and session["offer"] not in self._beacons:
            info = session["info"] if self._cipher is None else None
            decode = partial(decode_beacon, code=code, info=info, published_ms=published_ms)
            beacon = self._known.get(code) or self._unseal(session["offer"], "id", decode)
            if beacon is not None:
                self._listed[code] = beacon
                if beacon.id == self.id:
                    self._rivals[code] = beacon
                    return
                member = self._members.get(beacon.id) or Member(beacon.id, beacon.info, beacon.name)
                member.beacons[code] = beacon
                if member.beacon is None or beacon.rank > member.beacon.rank:
                    self._use(member, beacon)

    def _on_own_listed(self, published_ms: float) -> None:
        self._since_ms = self._since_ms or published_ms
        self._entry_ms = min(self._sent_since_ms or published_ms, published_ms)
        if abs(published_ms - self._now_ms) <= CLOCK_MS:
            self._corrections = 0
        elif self._mailbox is not None:
            self._offset_ms += published_ms - self._now_ms
            self._corrections += 1
            self._mailbox.full.set()

    def _use(self, member: Member, beacon: Beacon) -> None:
        """Use a beacon for the mail to a member."""
        if member.name != beacon.name:
            member.named_ms = math.inf
        member.named_ms = min(member.named_ms, beacon.published_ms)
        self._add(member, beacon.name)
        member.entry_ms = beacon.entry_ms
        member.beacon, member.code, member.info, member.backing_off = beacon, beacon.code, beacon.info, False
        if member.peer is None:
            self._start_attempts(member)
        else:
            member.peer.info = member.info

    def _assign_places(self) -> None:
        """Find out who has a place in a room with a maximum, and end connections of members without one.

        A copy of a beacon has no member that gives a sign of life. So members that have not given one take no places
        of members that have, and those that were asked in vain take none at all.
        """
        if self._places is None or self._left or not self._settled.is_set():
            return
        members = list(self._members.values())
        known = [each for each in members if each.id in self.peers or not each.is_silent]
        order = sorted([(self._entry_ms, self.id), *(each.order for each in known)])
        established = {self.id, *self.peers} if self._established else set(self.peers)
        unknown = {each.id: each.beacon for each in known if each.beacon is not None and each.beacon.life == "unknown"}
        for id in established:
            unknown.pop(id, None)
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
                self._waiting.discard(member)
                self._disconnect(member)
        if full != self.full:
            self.full = full
            self._events.put_always(Full(full))
        for id in ids[: self._places + len(members) - len(known)]:
            if beacon := unknown.get(id):
                self._start_asking(beacon, ALIVE_S if id in self._seats and not full else 0.0)
        for member in members:
            if self._members.get(member.id) is member:
                self._start_attempts(member)

    def _may_connect(self, member: Member) -> bool:
        """Return whether this member may use its name, and a member and this one have places."""
        if self._places is None:
            return self._name_is_free
        has_place = member.id in self._seats if member.id in self._members else self._spare
        return self._name_is_free and self._settled.is_set() and not self.full and has_place

    def _has_claimed_name(self, member: Member) -> bool:
        """Return whether a member uses a name that another member owns."""
        if member.name is None:
            return False
        return member.name == self._identity.name or self._owners.get(member.name, member) is not member

    def _find_claimants(self) -> None:
        """Find the first members that may have had this one's name before."""
        if not self._name_is_free:
            own = self._entry_ms, self.id
            others = sorted(self._named.get(self._identity.name or "", {}).values(), key=lambda member: member.order)
            earlier = [each.beacon for each in others[:MAX_CLAIMANTS] if each.beacon is not None and each.order < own]
            self._claimants.update(earlier)

    def _check_claimants(self) -> None:
        """Ask the members that may have had this one's name for a sign of life. Find out whether it is free."""
        if not self._name_is_free:
            if any(beacon.life == "alive" for beacon in self._claimants):
                raise SignalError("name-taken", f"another member has the name {self._identity.name}")
            unknown = [each for each in self._claimants if each.life == "unknown" and each.code in self._listed]
            for beacon in unknown:
                self._start_asking(beacon)
            if not unknown:
                self._name_is_free = True
                for member in list(self._members.values()):
                    self._start_attempts(member)

    def _start_asking(self, beacon: Beacon, delay_s: float = 0.0) -> None:
        """Ask the member of a beacon for a sign of life, unless its state is known."""
        if beacon.life == "unknown" and beacon not in self._asking and len(self._asking) < MAX_ATTEMPTS:
            self._asking.add(beacon)
            self._start_task(self._ask(beacon, delay_s))

    async def _ask(self, beacon: Beacon, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        asked = 0
        while beacon in self._asking and beacon.id not in self.peers:
            if asked == ASKS:
                self._set_life(beacon, "silent")
                return
            asked += 0 < await self._post_once({"alive": "ask"}, beacon.id, beacon.code) < 500
            await asyncio.sleep(ALIVE_S)
        self._asking.discard(beacon)

    def _set_life(self, beacon: Beacon, life: Literal["alive", "silent"]) -> None:
        beacon.life = life
        self._asking.discard(beacon)
        self._changed.set()
        if beacon.name is not None and beacon.name in self._owners:
            self._find_owner(beacon.name)

    async def _reply(self, beacon: Beacon) -> None:
        """Send a sign of life, unless the beacon has just got one."""
        if beacon not in self._replied and len(self._replied) < MAX_REPLIES:
            self._replied.add(beacon)
            await self._post_once({"alive": "yes"}, beacon.id, beacon.code)
            await asyncio.sleep(REPLY_S)
            self._replied.discard(beacon)

    async def _say_closed(self, attempt: str, id: str, code: Token) -> None:
        """Send mail that a connection is closed, unless such mail is on its way."""
        if not self._says_closed:
            self._says_closed = True
            await self._post_once({"connection": attempt, "closed": True}, id, code)
            self._says_closed = False

    async def _post_once(self, mail: Fields, id: str, code: Token) -> int:
        """Send mail to a beacon of a member. Return the status of the response, or 0 without one."""
        try:
            await self._client.candidates(code, "answerer", [self._seal_mail(mail, id, code)])
        except SignalError as error:
            return error.status
        return 200

    def _on_unlisted(self, code: str) -> None:
        """Process the removal of a beacon from the listing."""
        beacon = self._listed.pop(code, None)
        self._rivals.pop(code, None)
        if beacon is None:
            return
        self._asking.discard(beacon)
        member = self._members.get(beacon.id)
        if member is None:
            return
        member.beacons.pop(code, None)
        if member.beacons and member.beacon is beacon:
            self._use(member, max(member.beacons.values(), key=lambda beacon: beacon.rank))
        elif member.beacon is None or member.beacon is beacon:
            member.code = member.beacon = None
            if member.peer is None:
                self._remove(member)
            else:
                for peer in {member.peer, self.peers.get(member.id, member.peer)}:
                    peer._check()

    def _add(self, member: Member, name: str | None) -> None:
        """Add a member, or change its name."""
        if self._members.get(member.id) is not member or member.name != name:
            self._remove(member)
            member.name = name
            self._members[member.id] = member
            if name is not None:
                self._named.setdefault(name, {})[member.id] = member
        owner = None if name is None else self._owners.setdefault(name, member)
        if name is not None and owner is not None and owner is not member:
            if member.claim < owner.claim:
                self._find_owner(name)
            elif owner.beacon is not None and owner.id not in self.peers:
                self._start_asking(owner.beacon)  # a stranger's copy owns no name

    def _remove(self, member: Member) -> None:
        """Remove a member. The next member with the same name then owns it."""
        self._waiting.discard(member)
        if self._members.get(member.id) is member:
            del self._members[member.id]
            if member.name is not None:
                del self._named[member.name][member.id]
                if self._owners[member.name] is member:
                    self._find_owner(member.name)

    def _find_owner(self, name: str) -> None:
        """Find the member that owns a name, and end the connection with the one that owned it before."""
        if others := self._named[name]:
            previous, owner = self._owners[name], min(others.values(), key=lambda member: member.claim)
            self._owners[name] = owner
            if owner is not previous:
                self._disconnect(previous)
                self._start_attempts(owner)
        else:
            del self._named[name], self._owners[name]

    def _disconnect(self, member: Member) -> None:
        """End the attempt and the connection with a member."""
        for peer in {member.peer, self.peers.get(member.id)} - {None}:
            cast(Peer, peer)._end()

    def _on_mail(self, text: str, own_code: Token) -> bool:
        """Process mail to this member's beacon with `own_code`. Return whether a member has sent it."""
        mail = self._unseal(text, "from", decode_mail, self.id, own_code)
        if mail is None:
            return False
        beacon = self._listed.get(mail.code)
        if beacon is not None and beacon.id == mail.sender:
            if beacon.life != "alive":
                self._set_life(beacon, "alive")
                self._assign_places()
            if mail.alive == "ask":
                self._start_task(self._reply(beacon))
        if mail.sender != self.id and mail.connection is not None:
            self._on_signal(mail, mail.connection, own_code)
        return True

    def _on_signal(self, mail: Mail, attempt: str, own_code: Token) -> None:
        """Process mail for an attempt or connection."""
        id, offer = mail.sender, mail.signal.description
        if mail.signal.offer_number == 1 and offer is not None and offer.type == "offer" and id < self.id:
            member = self._members.get(id) or Member(id, mail.info, mail.name)
            another = attempt not in member.attempts and (member.peer not in self._connecting or member.peer._is_late)
            # Anybody can send mail with an id that is not proven, so that an open connection stays.
            connected = self.peers[id].connection.connectionState == "connected" if id in self.peers else False
            stays = connected and not is_proven(id)
            allowed = self._may_connect(member) and not self._has_claimed_name(member)
            if not another and attempt not in member.attempts:  # the current one may have ended on the other side
                member.later_offer = mail, attempt, own_code
            elif another and not stays and allowed and self._admit(leads=False):
                self._add(member, member.name)
                member.code = member.code or Token(mail.code, own_code.server)
                self._connect(member, attempt)
        sender = self._members.get(id)
        if sender is not None and sender.peer is not None and sender.attempt == attempt:
            sender.peer._deliver(mail.signal)
        elif sender is not None and id in self.peers and sender.connected == attempt:
            self.peers[id]._deliver(mail.signal)
        elif mail.signal.offer_number > 1:  # the connection has been closed here
            self._start_task(self._say_closed(attempt, id, Token(mail.code, own_code.server)))

    def _on_late(self, member: Member) -> None:
        """Start what a late attempt with a member may make room for, first a later attempt of the same member."""
        if member.later_offer is not None:
            later, member.later_offer = member.later_offer, None
            self._on_signal(*later)
        self._start_attempts()

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
        usually connected before its attempt is late. An attempt that has just connected may be open on the other side,
        which would report that this member leaves, and does not end.
        """
        attempts = [peer for peer in self._connecting if peer._leads == leads]
        if len(attempts) < MAX_ATTEMPTS:
            return True
        earliest_s = asyncio.get_running_loop().time() - PAIR_S
        late = next((peer for peer in attempts if peer._is_late and (peer._connected_s or -PAIR_S) <= earliest_s), None)
        if late is None:
            return False
        late._end()
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
            lambda: self._on_late(member),
            lambda peer: self._on_peer_end(member, peer),
            self._client._report,
            self._identity,
        )
        self._attempts.add(member.peer)
        self._connecting.append(member.peer)
        if previous is not None and self.peers.get(member.id) is not previous:
            previous._fail()

    def _on_event(self, event: Event) -> None:
        peer = event.peer
        if isinstance(event, NamedMessage):
            if event.name in self._channels:
                self._channels[event.name]._inbox.put((peer, event.data), event.data)
            return
        if isinstance(event, FileOffered) and not self._files:
            return event.file.cancel()
        if isinstance(event, Joined):
            if peer.id in self.peers:
                self.peers[peer.id]._end()
            member = self._members[peer.id]
            member.tries, member.connected = 0, member.attempt
            self.peers[peer.id] = peer
            self._connecting.remove(peer)
            self._start_attempts()
        elif isinstance(event, Left) and self.peers.get(peer.id) is peer:
            del self.peers[peer.id]
            self._changed.set()
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
        await peer._finish()
        self._attempts.discard(peer)

    async def _retry_later(self, member: Member) -> None:
        await asyncio.sleep(back_off_s(0, PAUSE_S))
        await self._renew_ice_servers()
        member.backing_off = False
        self._start_attempts(member)

    def _seal(self, fields: Fields, recipient: str = "", code: str | None = None) -> str:
        """Return the text that is sent to a member, whose beacon has a code, or to all."""
        text = self._identity.seal(fields, recipient, code or "")
        return text if self._cipher is None else self._cipher.seal(text, code)

    def _seal_mail(self, mail: Fields, recipient: str, code: Token) -> str:
        """Return mail to a beacon of a member."""
        own_code = None if self._mailbox is None else self._mailbox.code
        return self._seal({"from": self.id, "info": self._info, "code": own_code, **mail}, recipient, code)

    def _unseal(
        self,
        text: str,
        sender: str,
        decode: Callable[[Fields], T | None],
        recipient: str = "",
        code: str | None = None,
    ) -> T | None:
        """Return the record of a text to this member, whose beacon has a code, or to all. None is to be ignored."""
        text = text if self._cipher is None else self._cipher.unseal(text, code)
        return self._identity.unseal(text, sender, decode, recipient, code or "")

    async def _post(self, member: Member, mail: Fields) -> None:
        """Send mail to a member as soon as its beacon is listed."""
        for attempt in itertools.count():
            await member.listed.wait()
            code = member.code
            assert code is not None
            try:
                await self._client.candidates(code, "answerer", [self._seal_mail(mail, member.id, code)])
                return
            except SignalError as error:
                if error.lost_race:
                    if member.code == code:
                        member.code = None
                elif error.retryable:
                    await asyncio.sleep(back_off_s(attempt))
                else:
                    if not self._warned:
                        log.warning("the server refuses mail to members of the room %r: %s", self.topic, error)
                    self._warned = True
                    return


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
        await self._room._send(data, to, lambda peer: peer._named(self._name, self._options))

    async def messages(self) -> AsyncIterator[tuple[Peer, Any]]:
        """Yield each message with its sender until the room is closed."""
        while (item := await self._inbox.get()) is not None:
            yield item[0], decode(item[1])
        self._inbox.put_always(None)  # for the next iteration
