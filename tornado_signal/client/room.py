"""Rooms: everybody under a topic, connected to everybody; browsers by the browser module are among them.

What members of a room say to each other is described in the browser module, at its class `Room`.
"""

import asyncio
import contextlib
import itertools
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from typing import cast

from .api import SignalClient
from .errors import APIError
from .link import until_first
from .names import Identity
from .offers import new_secret, publish_held
from .room_peer import Joined, Left, Message, Peer
from .servers import back_off_s
from .types import Closable, Fields, IceServer, Session, Token

__all__ = ["Joined", "Left", "Message", "NameTaken", "Peer", "Room"]

TOPIC = "room/"  # what the topic of a room begins with on the server: no offers are there that `join` could take
MAX_MAILS = 250  # to one beacon: the server's limits allow twice as many
MAX_ATTEMPTS = 50  # at once that a room begins, and as many that others do
PAIR_S = 5.0  # for two members to connect, longer with each try
MAX_TRIES = 4  # after which it does not get longer
LATE_S = 1.5  # after which an attempt ends for another one; longer with each try, too
ANSWER_S = 30.0  # for an attempt of the other side
PAUSE_S = 1.0  # between two tries


class NameTaken(ConnectionError):
    """Another member of the room has the name, or this one's secret is used elsewhere, too, by a newer member."""


class Member:
    """What is known of another member.

    Attributes:
        id: under which it is known.
        info: its own words.
        name: its name; None if it has none.
        at: when its beacon was made, by its own clock; 0 while it is not known.
        created_at: when that was published.
        tries: attempts to connect since it was last connected.
        attempt: the name of the attempt that there is, or was last.
        attempts: all of them.
        peer: the attempt, or connection, that there is.
        resting: whether the next attempt has to wait.
        listed: whether its beacon is known.
    """

    def __init__(self, id: str, info: str, name: str | None) -> None:
        self.id, self.info, self.name = id, info, name
        self.at = self.created_at = 0
        self.tries = 0
        self.attempt = ""
        self.attempts: set[str] = set()
        self.peer: Peer | None = None
        self.resting = False
        self.listed = asyncio.Event()
        self._code: Token | None = None

    @property
    def code(self) -> Token | None:
        """Its beacon."""
        return self._code

    @code.setter
    def code(self, code: Token | None) -> None:
        self._code = code
        if code is None:
            self.at = 0
            self.listed.clear()
        else:
            self.listed.set()


class WaitingMembers:
    """Members that wait for an attempt: the least tried first, in random order."""

    def __init__(self) -> None:
        self._by_tries: list[list[Member]] = [[] for _ in range(MAX_TRIES + 1)]
        self._places: dict[str, tuple[list[Member], int]] = {}

    def add(self, member: Member) -> None:
        """Add a member."""
        self.discard(member)
        members = self._by_tries[min(MAX_TRIES, member.tries)]
        self._places[member.id] = members, len(members)
        members.append(member)

    def discard(self, member: Member) -> None:
        """Remove a member if it waits."""
        if member.id in self._places:
            members, place = self._places.pop(member.id)
            last = members.pop()
            if last is not member:
                members[place] = last
                self._places[last.id] = members, place

    def choose(self) -> Member | None:
        """Return a member; None if no member waits."""
        members = next(filter(None, self._by_tries), None)
        return random.choice(members) if members else None


class Room(Closable):
    """A room that this peer is in until it leaves. Iterate over it for what happens: `Joined`, `Left` and `Message`.

    Args:
        client: the servers.
        ice_servers: a function that gives the ICE servers for a new connection.
        topic: which room.
        info: this member's own words.
        me: its name.
        secret: what protects that.
        closed: a function that is told when the room was left.

    Attributes:
        topic: see above.
        id: of this member.
        peers: those that this one is connected to, by their ids.
    """

    def __init__(
        self,
        client: SignalClient,
        ice_servers: Callable[[], Awaitable[list[IceServer]]],
        topic: str,
        info: str,
        me: str | None,
        secret: str | None,
        closed: Callable[["Room"], None],
    ) -> None:
        self.topic = topic
        self.peers: dict[str, Peer] = {}
        self._identity = Identity(TOPIC + topic, me, secret)
        self.id = self._identity.id
        self._client, self._ask_ice_servers, self._info, self._closed = client, ice_servers, info, closed
        self._ice_servers: list[IceServer] = []
        self._members: dict[str, Member] = {}
        self._listed: dict[str, Member] = {}  # by the codes of their beacons
        self._named: dict[str | None, dict[str, Member]] = {}  # by name and id; a name belongs to the first one
        self._waiting = WaitingMembers()
        self._attempts: set[Peer] = set()  # until they are closed
        self._joining: list[Peer] = []  # those that are neither connected nor over, the oldest first
        self._secret = new_secret()
        self._failures = 0  # to have a beacon
        self._code: Token | None = None  # of the beacon
        self._at = 0  # when that was made, in milliseconds
        self._events: asyncio.Queue[Joined | Left | Message | None] = asyncio.Queue()
        self._failure: Exception | None = None
        self._left = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._begin(self._run())

    async def __aiter__(self) -> AsyncIterator[Joined | Left | Message]:
        """What happens, until the room is left.

        Raises:
            NameTaken: another member has the name, or this one's secret is used elsewhere, too.
            APIError: the server refuses.
        """
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)  # for the next one
        if self._failure is not None:
            raise self._failure

    def send(self, data: str | bytes, to: Peer | str | None = None) -> None:
        """Send a message to one peer (or its id), or to all; those that are gone get none."""
        id = to.id if isinstance(to, Peer) else to
        for peer in list(self.peers.values()) if id is None else filter(None, [self.peers.get(id)]):
            if peer.channel.readyState == "open":
                peer.channel.send(data)

    async def close(self) -> None:
        """Leave the room, after what was sent is through."""
        if self._left:
            return
        self._left = True
        self._closed(self)
        own = asyncio.current_task()
        tasks = [each for each in self._tasks if each is not own]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._withdraw(self._code), *(each.close() for each in self._attempts))
        self._events.put_nowait(None)

    leave = close

    def _begin(self, task: Coroutine[None, None, None]) -> None:
        begun = asyncio.create_task(task)
        self._tasks.add(begun)
        begun.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        try:
            while True:
                try:
                    if not self._at:
                        await self._claim()
                    await self._attend()
                except APIError as error:
                    if not error.is_transient:
                        raise
                await asyncio.sleep(back_off_s(self._failures))
                self._failures += 1
        except Exception as error:
            self._failure = error
            await self.close()

    async def _claim(self) -> None:
        """Look whether another member has the name."""
        if self._identity.name is not None:
            for session in (await self._client.sessions(TOPIC + self.topic)).sessions:
                fields = self._identity.unseal(session["offer"], "id")
                if fields is not None and fields["id"] != self.id and fields.get("me") == self._identity.name:
                    raise NameTaken(f"another member has the name {self._identity.name}")

    async def _attend(self) -> None:
        """Be there, by one beacon, until another is needed."""
        self._ice_servers = await self._ask_ice_servers()
        self._at = max(time.time_ns() // 1_000_000, self._at + 1)
        beacon = self._identity.seal({"id": self.id, "at": self._at})
        before = self._code
        self._code = await publish_held(self._client, TOPIC + self.topic, self._info, beacon, self._secret)
        self._failures = 0
        await self._withdraw(before)
        # Those that are there are told now.
        self._listed.clear()
        self._waiting = WaitingMembers()
        for member in self._members.values():
            member.code = None
        for member in list(self._members.values()):
            if member.peer is None:
                self._remove(member)
        better = self._client.wait_for_preferred_server(self._code.server)  # where those that come now are
        await until_first(self._watch(self._code), self._receive(self._code), better)

    async def _withdraw(self, code: Token | None) -> None:
        if code is not None:
            with contextlib.suppress(APIError):
                await self._client.withdraw(code, "offerer", secret=self._secret)

    async def _watch(self, code: Token) -> None:
        async with aclosing(self._client.topic_events(TOPIC + self.topic, at=code.server)) as events:
            async for name, told in events:
                if name == "gone":
                    self._gone(told["code"])
                else:
                    self._see(cast(Session, told))

    async def _receive(self, code: Token) -> None:
        got = 0
        try:
            async with aclosing(self._client.news(code, "offerer", secret=self._secret)) as all_news:
                async for news in all_news:
                    self._ice_servers = await self._ask_ice_servers()
                    for text in news.candidates:
                        self._take(text, code.server)
                    got += len(news.candidates)
                    if got >= MAX_MAILS or news.description is not None:  # nothing should have answered
                        return
        except APIError as error:
            if error.status != 404:
                raise

    def _see(self, session: Session) -> None:
        """A beacon is listed."""
        fields = self._identity.unseal(session["offer"], "id")
        if fields is None or not isinstance(at := fields.get("at"), int):
            return
        id, name = fields["id"], fields.get("me")
        if id == self.id:
            if self._identity.signed and at > self._at:
                raise NameTaken("another peer is in this room with the same secret")
            return
        member = self._members.get(id) or Member(id, session["info"], name)
        # It has another one now, or this is a copy of it.
        if at < member.at or (at == member.at and session["createdAt"] > member.created_at):
            return
        self._add(member, name)
        member.code, member.info = cast(Token, session["code"]), session["info"]
        member.at, member.created_at, member.resting = at, session["createdAt"], False
        self._listed[session["code"]] = member
        if member.peer is None:
            self._lead(member)
        else:
            member.peer.info = member.info

    def _usurps(self, member: Member) -> bool:
        """Whether a member uses the name of another one, which had it before."""
        if member.name is None:
            return False
        owner = next(iter(self._named.get(member.name, ())), member.id)
        return member.name == self._identity.name or owner != member.id

    def _gone(self, code: str) -> None:
        """A beacon is listed no more."""
        member = self._listed.pop(code, None)
        if member is not None and member.code == code:
            member.code = None
            if member.peer is None:
                self._remove(member)
            else:
                member.peer.check()

    def _add(self, member: Member, name: str | None) -> None:
        """Add a member, or give it another name."""
        if self._members.get(member.id) is not member or member.name != name:
            self._remove(member)
            member.name = name
            self._members[member.id] = self._named.setdefault(name, {})[member.id] = member

    def _remove(self, member: Member) -> None:
        """Remove a member; the next one that uses its name has it now."""
        self._waiting.discard(member)
        if self._members.get(member.id) is member:
            del self._members[member.id]
            others = self._named[member.name]
            del others[member.id]
            if others:
                self._lead(next(iter(others.values())))
            else:
                del self._named[member.name]

    def _take(self, text: str, server: str) -> None:
        """There is mail."""
        mail = self._identity.unseal(text, "from", self.id)
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
                another = attempt not in member.attempts and (member.peer not in self._joining or member.peer.late)
                first = id < self.id and not self._usurps(member)
                if first and another and self._admits(leads=False):
                    self._add(member, member.name)
                    member.code = member.code or Token(code, server)
                    self._connect(member, attempt)
        known = self._members.get(id)
        if known is not None and known.peer is not None and known.attempt == mail.get("connection"):
            known.peer.take(mail)

    def _needs_attempt(self, member: Member) -> bool:
        waits = member.code is not None and member.peer is None and not member.resting
        return self.id < member.id and waits and not self._usurps(member)

    def _lead(self, member: Member | None = None) -> None:
        """Begin attempts with the members that wait, and with this one if it needs one."""
        if member is not None and self._needs_attempt(member):
            self._waiting.add(member)
        while not self._left and self._waiting.choose() is not None and self._admits(leads=True):
            chosen = self._waiting.choose()  # an attempt that has ended for this one may have begun another
            if chosen is not None:
                self._connect(chosen, secrets.token_urlsafe(12))

    def _admits(self, *, leads: bool) -> bool:
        """Whether one more attempt may begin: anything can be listed, or offer, in any number of names.

        One that has had its time ends for it: what is really there has joined by then.
        """
        alike = [each for each in self._joining if each.leads == leads]
        if len(alike) < MAX_ATTEMPTS:
            return True
        late = next((each for each in alike if each.late), None)
        if late is None:
            return False
        late.end()
        return self._admits(leads=leads)

    def _connect(self, member: Member, attempt: str) -> None:
        """Begin an attempt, in the place of what there is."""
        self._waiting.discard(member)
        before = member.peer
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
            PAIR_S * times if leads else ANSWER_S,
            LATE_S * times,
            lambda mail: self._post(member, {"connection": attempt, **mail}),
            self._tell,
            self._lead,
            lambda peer: self._ended(member, peer),
        )
        self._attempts.add(member.peer)
        self._joining.append(member.peer)
        if before is not None:
            before.end()

    def _tell(self, event: Joined | Left | Message) -> None:
        peer = event.peer
        if isinstance(event, Joined):
            self._members[peer.id].tries = 0
            self.peers[peer.id] = peer
            self._joining.remove(peer)
            self._lead()
        elif isinstance(event, Left) and self.peers.get(peer.id) is peer:
            del self.peers[peer.id]
        self._events.put_nowait(event)

    def _ended(self, member: Member, peer: Peer) -> None:
        self._begin(self._close(peer))
        if peer in self._joining:
            self._joining.remove(peer)
        if member.peer is not peer:
            return
        member.peer = None
        if member.code is None or member.at == 0:
            self._remove(member)
            self._lead()
        elif not self._left:
            member.resting = True
            self._begin(self._lead_again(member))

    async def _close(self, peer: Peer) -> None:
        await peer.close()
        self._attempts.discard(peer)

    async def _lead_again(self, member: Member) -> None:
        await asyncio.sleep(back_off_s(0, PAUSE_S))
        with contextlib.suppress(APIError):  # then with the servers that there were
            self._ice_servers = await self._ask_ice_servers()
        member.resting = False
        self._lead(member)

    async def _post(self, member: Member, mail: Fields) -> None:
        """Send mail to a member, as soon as its beacon is known."""
        for attempt in itertools.count():
            await member.listed.wait()
            code = member.code
            assert code is not None
            letter = {"from": self.id, "info": self._info, "code": self._code, **mail}
            try:
                await self._client.candidates(code, "answerer", [self._identity.seal(letter, member.id)])
                return
            except APIError as error:
                if error.lost_race:
                    if member.code == code:
                        member.code = None
                elif error.is_transient:
                    await asyncio.sleep(back_off_s(attempt))
                else:
                    return
