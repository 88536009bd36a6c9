"""The attempts to connect to the members of a room, and the open connections."""

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable

from .api import SignalClient
from .errors import SignalError
from .link import report
from .mailbox import Mailboxes
from .names import is_proven
from .records import Mail
from .room_peer import PAIR_S, Event, Joined, Left, Member, Peer
from .roster import Roster
from .tasks import Tasks, back_off_s
from .types import IceServer, Token

MAX_ATTEMPTS = 50  # concurrent attempts of this side, and as many of other members
PAUSE_S = 1.0  # between two attempts with a member
CLOSED = "closed"  # the key of the task that sends mail that a connection is closed


class Attempts:
    """The attempts and connections of a room.

    Args:
        tasks: run the attempts' work until the room is left.
        may_connect: returns whether a member and this one have places and may use their names.
        on_event: called with the events of each peer.
        on_left: called when a member is removed because it has neither a beacon nor a connection.

    Attributes:
        peers: the connected members by id.
    """

    def __init__(
        self,
        client: SignalClient,
        ice_servers: Callable[[], Awaitable[list[IceServer]]],
        mail: Mailboxes,
        tasks: Tasks,
        may_connect: Callable[[Member], bool],
        on_event: Callable[[Event], None],
        on_left: Callable[[], None],
    ) -> None:
        self.peers: dict[str, Peer] = {}
        self._client, self._get_ice_servers = client, ice_servers
        self._mail, self._tasks = mail, tasks
        self._may_connect, self._emit, self._on_left = may_connect, on_event, on_left
        self.roster = Roster(self._on_owner)
        self._ice_servers: list[IceServer] = []
        self._peers: list[Peer] = []  # all attempts and connections until they are closed, the oldest first
        self.ended = False

    async def get_ice_servers(self) -> None:
        """Get new ICE servers for later connections if the previous ones expire soon."""
        self._ice_servers = await self._get_ice_servers()

    async def renew_ice_servers(self) -> None:
        """Do the same, but continue with the previous ones after an error."""
        with contextlib.suppress(SignalError):
            await self.get_ice_servers()

    async def finish(self) -> None:
        """Close all connections after pending messages."""
        await asyncio.gather(*(peer._finish() for peer in self._peers))

    def _on_owner(self, previous: Member, owner: Member) -> None:
        self.roster.discard(previous)
        self.disconnect(previous)
        self.start(owner)

    def disconnect(self, member: Member) -> None:
        for peer in (member.peer, self.peers.get(member.id)):
            if peer is not None:
                peer._end()

    def take(self, mail: Mail, attempt: str, own_code: Token) -> None:
        id, offer, number = mail["from"], mail.get("description"), mail.get("of") or 0
        if number == 1 and offer is not None and offer["type"] == "offer" and id < self._mail.identity.id:
            member = self.roster.member(id, mail["info"], mail.get("me"))
            if attempt not in member.attempts:
                # Anybody can send mail with an id that is not proven, so that an open connection stays.
                connected = id in self.peers and self.peers[id].connection.connectionState == "connected"
                if member.peer is not None and member.peer._is_connecting and not member.peer._is_late:
                    member.later_offer = mail, attempt, own_code  # the current one may have ended on the other side
                elif (is_proven(id) or not connected) and self._may_connect(member) and self._admit(leads=False):
                    self.roster.add(member, member.name)
                    member.code = member.code or Token(mail["code"], own_code.server)
                    self._connect(member, attempt)
        current = self.roster.members[id].peer if id in self.roster.members else None
        for peer in (current, self.peers.get(id)):
            if peer is not None and peer._attempt == attempt:
                peer._deliver(mail)
                return
        if number > 1 and CLOSED not in self._tasks:  # the connection has been closed here
            code = Token(mail["code"], own_code.server)
            self._tasks.start(self._mail.send_once({"connection": attempt, "closed": True}, id, code), CLOSED)

    def start(self, member: Member | None = None) -> None:
        """Start attempts with the waiting members, and with `member` if it needs one."""
        if member and member.is_waiting and self._mail.identity.id < member.id and self._may_connect(member):
            self.roster.enqueue(member)
        while self.roster.next() is not None and self._admit(leads=True):
            chosen = self.roster.next()  # `_admit` may have ended an attempt, which can change who is waiting
            if chosen is not None:
                self._connect(chosen, secrets.token_urlsafe(12))

    def _admit(self, *, leads: bool) -> bool:
        """Return whether another attempt may start. If necessary, end a late one to make room.

        The number is limited because a stranger can list or send offers under any number of ids. A real member has
        usually connected before its attempt is late. An attempt that has just connected may be open on the other side,
        which would report that this member leaves, and does not end. After the end of the room none starts.
        """
        if self.ended:
            return False
        attempts = [peer for peer in self._peers if peer._is_connecting and peer._leads == leads]
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
        self.roster.discard(member)
        previous = member.peer
        member.tries += 1
        member.attempts.add(attempt)
        events = self._on_event, self._on_late, self._on_end
        member.peer = Peer(member, attempt, self._ice_servers, self._mail.identity, self._mail.send, *events)
        self._peers.append(member.peer)
        if previous is not None and self.peers.get(member.id) is not previous:
            previous._end(failed=True)

    def _on_event(self, event: Event) -> None:
        peer = event.peer
        if isinstance(event, Joined):
            if peer.id in self.peers:
                self.peers[peer.id]._end()
            peer._member.tries = 0
            self.peers[peer.id] = peer
            self._client._report(report(peer.connection, peer._start_s, connected=True))
            self.start()
        elif isinstance(event, Left) and self.peers.get(peer.id) is peer:
            del self.peers[peer.id]
            if peer.connection.connectionState == "failed":  # so can have the connection to the server
                self._client.check()
        self._emit(event)

    def _on_late(self, peer: Peer) -> None:
        """Start what a late attempt with a member may make room for, first a later attempt of the same member."""
        member = peer._member
        if member.later_offer is not None:
            later, member.later_offer = member.later_offer, None
            self.take(*later)
        self.start()

    def _on_end(self, peer: Peer, failed: bool) -> None:
        member = peer._member
        if failed and peer.connection.remoteDescription is not None:
            self._client._report(report(peer.connection, peer._start_s, connected=False))
        self._tasks.start(self._close(peer))
        if member.peer is not peer:
            return
        member.peer = self.peers.get(member.id)
        if member.peer is not None:
            member.tries = 0
            self.start()
        elif member.code is None or member.beacon is None:
            self.roster.remove(member)
            self._on_left()
            self.start()
        elif not self.ended:
            member.backing_off = True
            self._tasks.start(self._retry_later(member))

    async def _close(self, peer: Peer) -> None:
        await peer._finish()
        self._peers.remove(peer)

    async def _retry_later(self, member: Member) -> None:
        await asyncio.sleep(back_off_s(0, PAUSE_S))
        await self.renew_ice_servers()
        member.backing_off = False
        self.start(member)
