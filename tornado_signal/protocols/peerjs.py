"""The signaling of PeerJS: ids, which are leases, and messages from one id to another."""

import asyncio
import contextlib
import hashlib
import uuid
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import Any, Final

from .. import errors
from ..http.fields import decode_segment
from ..http.request import Request
from ..relay import RENEWED, TAKEN, Channel, JoinResult, Lease
from ..relay.opening import Relay
from ..service import wire
from ..service.request_context import RequestContext
from ..service.statuses import STATUS
from ..transport.frames import CloseCode
from ..transport.websocket import WebSocket
from .connection import MAX_NAME, ProtocolConnection, confirm, encode, hash_owner, is_utf8
from .endpoint import ProtocolHandler, ProtocolUpgrade, find_scope

PATH: Final = "/peerjs"
GROUPS: Final = 16  # of the ids of a scope, so that several nodes of Redis share them
MAX_LISTED: Final = 10_000  # ids in a response
LISTED_PER_UNIT: Final = 100  # a response counts as one more request for this many ids
EXPIRE_S: Final = 5.0  # how long messages to an absent id are kept
MAX_KEPT: Final = 100  # such messages of a connection
MAX_KEPT_BYTES: Final = 64 * 1024
RETRY_S: Final = 0.3  # a message without a receiver is repeated after this time: its channel can be moving
MAX_RECENT: Final = 64  # received messages whose repetitions are recognised
UNLIMITED: Final = 2**31
TAKEN_OVER: Final = b"taken over by "  # begins a message to the earlier owner of an id, before the new owner
ARRIVED: Final = b"arrived"  # a message to connections that keep messages for an id
REPEATED: Final = b"\n"  # begins a message that can have arrived before. JSON may begin with it, for earlier versions

OPEN: Final = b'{"type":"OPEN"}'
KEPT_TYPES: Final = ("OFFER", "ANSWER", "CANDIDATE")
FORWARDED_TYPES: Final = (*KEPT_TYPES, "LEAVE", "EXPIRE")


def id_group(scope: str, number: int) -> Channel:
    """Return one of the `GROUPS` groups that contain the ids of a scope."""
    return Channel(scope, f"ids {number}")


@lru_cache(256)
def inbox(scope: str, peer_id: str) -> Channel:
    return Channel(scope, f"id {peer_id}")


class Absent:
    """Messages to an absent id, until it arrives on `channel` or they expire. Both set `changed`."""

    def __init__(self, sender: "PeerJsConnection", peer_id: str) -> None:
        self.channel = Channel(sender.scope, f"arrival {peer_id}")
        self.messages: list[bytes] = []
        self.changed = asyncio.Event()
        self.timer = asyncio.get_running_loop().call_later(EXPIRE_S, sender.expire, peer_id)

    def relayed(self, message: bytes) -> None:
        self.changed.set()


class PeerJsConnection(ProtocolConnection):
    """A PeerJS client."""

    pattern, protocol = PATH, "peerjs"
    overlapping = True  # a message waits only for the earlier ones to its id

    __slots__ = (
        "_absent",
        "_before_open",
        "_kept_bytes",
        "_member",
        "_peer_id",
        "_query_error",
        "_recent",
        "_token",
        "_unconfirmed",
    )

    def __init__(self, relay: Relay, handshake: Request, socket: WebSocket) -> None:
        query = handshake.query_arguments
        peer_id, token, key = [query.get(name, [b""])[0].decode("utf-8", "replace") for name in ("id", "token", "key")]
        super().__init__(relay, handshake, socket, key)
        self._query_error = ""  # why the query is refused, or empty
        if not (peer_id and token and key):
            self._query_error = "No id, token, or key supplied to websocket server"
        elif max(len(peer_id), len(key)) > MAX_NAME:
            self._query_error = f"Id and key may have at most {MAX_NAME} characters"
        self._peer_id = "" if self._query_error else peer_id
        # A token can be a JSON Web Token, of which only a hash is kept. A renewed one has the same subject.
        subject = self.grant.subject if self.grant is not None else ""
        self._token = hash_owner("subject", subject) if subject else hashlib.sha256(token.encode()).hexdigest()[:32]
        self._member = False
        self._before_open: list[bytes] | None = []  # messages for the client, until OPEN has been sent
        self._absent: dict[str, Absent] = {}
        self._kept_bytes = 0
        self._unconfirmed: dict[str, asyncio.Future[None]] = {}  # the latest message to each id
        self._recent: deque[int] | None = None  # hashes of the latest messages for the client, if servers share ids

    # The id

    @property
    def names(self) -> list[str]:
        return [self._peer_id] if self._member else []

    def do(self, work: Coroutine[None, None, None]) -> None:
        """Do work for the id. It waits only for other servers."""
        service = self.service
        (service.start if self.relay.shared else service.finish)(work)

    def opened(self) -> Awaitable[None]:
        return self.complete_opening(self._claim)

    def _admit_id(self, context: RequestContext) -> None:
        """Check that the token covers the id, which is also the `info` of the token if it has that claim."""
        context.authorize("offer")
        context.require_topic(self._peer_id)
        if context.grant is not None:
            context.grant.require_info(self._peer_id)

    async def _claim(self, context: RequestContext) -> None:
        """Claim the id. Notify its earlier owner, send OPEN and what arrived before it, and report the arrival."""
        if self._query_error:
            self._reject("ERROR", self._query_error)
            return
        try:
            self._admit_id(context)
        except (errors.Unauthorized, errors.NotAllowed) as error:
            context.count_error(error)
            context.status = STATUS[type(error)]
            self._reject("ERROR", str(error))
            return
        joined = await self.until_available(self._join)
        if not self._member:
            self.unsubscribe(inbox(self.scope, self._peer_id))
            self._reject("ID-TAKEN", "ID is taken")
            return
        if self.closed:
            await self._leave()
            return
        # On Redis a lease is also new if an earlier one expired while its connection stayed open.
        if joined is RENEWED or self.relay.shared:
            await self._publish(inbox(self.scope, self._peer_id), TAKEN_OVER + self.owner.encode())
        self.socket.send(OPEN)
        early, self._before_open = self._before_open or [], None
        for message in early:
            self.relayed(message)
        await self._publish(Channel(self.scope, f"arrival {self._peer_id}"), ARRIVED)

    async def _join(self) -> JoinResult:
        # Subscribe first. Otherwise two connections that claim the id at once would not notice each other.
        if (opening := self.subscribe(inbox(self.scope, self._peer_id))) is not None:
            await opening
        self.acquire()
        try:
            lease = Lease(self._peer_id, self.owner, self._token)
            joined = await self.relay.join(self._group, lease, UNLIMITED, self._lose)
            self._member = joined is not TAKEN
        finally:
            if not self._member:
                self.release()
        return joined

    def _reject(self, kind: str, text: str) -> None:
        self.send({"type": kind, "payload": {"msg": text}})
        self.socket.close(None)

    @property
    def _group(self) -> Channel:
        return id_group(self.scope, zlib.crc32(self._peer_id.encode()) % GROUPS)

    async def _publish(self, channel: Channel, message: bytes) -> int:
        reached = self.relay.publish(channel, message)
        return reached if isinstance(reached, int) else await reached

    def _leave(self) -> Coroutine[None, None, None]:
        """Stop owning the id, once, and return the work that makes it free. Kept messages are still delivered."""
        self._member = False
        self.unsubscribe(inbox(self.scope, self._peer_id))
        self.release()
        return self.relay.leave(self._group, self._peer_id, self.owner)

    def leave(self) -> Coroutine[None, None, None] | None:
        for peer_id in list(self._absent):
            self._stop_keeping(peer_id)
        if not self._member:
            return None
        grace_s = self.service.settings.hold_grace_ms / 1000
        return self._leave() if self.socket.closed_by_client else self._leave_later(grace_s)

    async def _leave_later(self, grace_s: float) -> None:
        """Keep the id for a reconnection with the same token. The task ends at once, because a drain waits for it."""
        service = self.service
        asyncio.get_running_loop().call_later(grace_s, lambda: service.start(self._leave()))

    # Messages

    def relayed(self, message: bytes) -> None:
        if self._before_open is None and message.startswith(b"{") and not self.relay.shared:
            self.socket.send(message)
        elif self._before_open is not None:
            early_bytes = sum(map(len, self._before_open)) + len(message)
            if (len(self._before_open) < MAX_KEPT and early_bytes <= MAX_KEPT_BYTES) or message.startswith(TAKEN_OVER):
                self._before_open.append(message)
        elif not message.startswith(TAKEN_OVER):
            self._receive(message)
        elif message != TAKEN_OVER + self.owner.encode():
            self.service.start(self._check_owner())

    def _receive(self, message: bytes) -> None:
        """Send a message to the client, unless it is a repetition."""
        repeated = message.startswith(REPEATED)
        content = message.removeprefix(REPEATED)
        if self.relay.shared:
            recent = self._recent = self._recent or deque(maxlen=MAX_RECENT)
            if repeated and hash(content) in recent:
                return
            recent.append(hash(content))
        self.socket.send(content)

    async def _check_owner(self) -> None:
        """Close the connection if another one owns the id. The latest message can be of an earlier owner.

        While Redis does not respond, the connection stays open. The task ends, because a drain waits for it.
        """
        if not self._member or self.closed:
            return
        try:
            lease = await self.relay.find(self._group, self._peer_id)
        except errors.Unavailable:
            service = self.service
            asyncio.get_running_loop().call_later(RETRY_S, lambda: service.start(self._check_owner()))
            return
        if lease is None or lease.owner != self.owner:
            self._lose()

    def _lose(self) -> None:
        self.socket.close(CloseCode.NORMAL_CLOSURE, "taken over")

    def received(self, message: Any, context: RequestContext) -> Awaitable[None] | None:
        kind = message.get("type") if type(message) is dict else None
        if kind not in FORWARDED_TYPES:
            self.refuse_other_protocol(message)
            return None
        if not self._member:
            return None
        peer_id = message.get("dst")
        if not peer_id:
            return self._leave() if kind == "LEAVE" else None
        if type(peer_id) is not str or len(peer_id) > MAX_NAME:
            return None
        if self._bearer is not None:  # otherwise no token is needed
            context.authorize("offer" if kind == "OFFER" else "answer")
            context.require_topic(peer_id)
        if not (peer_id.isascii() or is_utf8(peer_id)):  # ids come in URLs, so no client can have it
            if kind in KEPT_TYPES:
                self.expire(peer_id)
            return None
        forwarded = {"type": kind, "src": self._peer_id, "dst": peer_id}
        if "payload" in message:
            forwarded["payload"] = message["payload"]
        encoded, earlier = encode(forwarded), self._unconfirmed.get(peer_id)
        if earlier is None:
            work = self._forward(kind, peer_id, encoded, context)
        else:
            work = _after(earlier, partial(self._forward, kind, peer_id, encoded, context))
        if work is None:
            return None
        confirmed = self._unconfirmed[peer_id] = asyncio.get_running_loop().create_future()
        return self._confirm(work, confirmed, peer_id)

    def _forward(self, kind: str, peer_id: str, message: bytes, context: RequestContext) -> Awaitable[None] | None:
        """Send a message to an id, or keep it if the id is absent."""
        is_kept = kind in KEPT_TYPES and not self.closed
        if absent := self._absent.get(peer_id):
            if is_kept and self._may_keep(message):
                self._keep(absent, message)
            return None
        reached = self.publish(inbox(self.scope, peer_id), message, context)
        if not is_kept:
            return None
        if isinstance(reached, int):
            if not reached:
                self._keep_first(peer_id, message)
            return None
        return self._keep_unless_reached(reached, peer_id, message)

    async def _keep_unless_reached(self, reached: Awaitable[int], peer_id: str, message: bytes) -> None:
        if not await reached and not self.closed:
            self._keep_first(peer_id, message)

    async def _confirm(self, work: Awaitable[None], confirmed: asyncio.Future[None], peer_id: str) -> None:
        """Do the work of a message. Then the next message to its id is sent."""
        try:
            await work
        finally:
            if self._unconfirmed[peer_id] is confirmed:
                del self._unconfirmed[peer_id]
            if not confirmed.done():  # a cancelled wait for it cancels it
                confirmed.set_result(None)

    # Messages to absent ids

    def _keep_first(self, peer_id: str, message: bytes) -> None:
        """Keep a message that reached nobody."""
        if not self._may_keep(message):
            self.expire(peer_id)
            return
        absent = self._absent[peer_id] = Absent(self, peer_id)
        self._keep(absent, message)
        self.service.start(self._deliver(absent, peer_id))

    def _may_keep(self, message: bytes) -> bool:
        kept = sum(len(absent.messages) for absent in self._absent.values())
        return kept < MAX_KEPT and self._kept_bytes + len(message) <= MAX_KEPT_BYTES

    def _keep(self, absent: Absent, message: bytes) -> None:
        absent.messages.append(message)
        self._count_kept(len(message))

    def _count_kept(self, size: int) -> None:
        self._kept_bytes += size
        self.socket.add_kept(size)

    async def _deliver(self, absent: Absent, peer_id: str) -> None:
        """Publish the kept messages in order, each until it is received, when the id arrives and from time to time."""
        opening = self.relay.subscribe(absent.channel, absent)
        if opening is not None:
            await confirm([opening])
        prefix = REPEATED
        while self._absent.get(peer_id) is absent:
            absent.changed.clear()
            reached = await self._publish(inbox(self.scope, peer_id), prefix + absent.messages[0])
            prefix = b"" if reached else REPEATED
            if self._absent.get(peer_id) is not absent:
                return
            if not reached:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_S if self.relay.shared else None):
                        await absent.changed.wait()
            elif len(absent.messages) == 1:
                self._stop_keeping(peer_id)
            else:
                self._count_kept(-len(absent.messages.pop(0)))

    def _stop_keeping(self, peer_id: str) -> None:
        absent = self._absent.pop(peer_id, None)
        if absent is not None:
            absent.timer.cancel()
            absent.changed.set()
            self.relay.unsubscribe(absent.channel, absent)
            self._count_kept(-sum(map(len, absent.messages)))

    def expire(self, peer_id: str) -> None:
        """Drop the kept messages to an id, and notify the client."""
        self._stop_keeping(peer_id)
        self.send({"type": "EXPIRE", "src": peer_id, "dst": self._peer_id})


async def _after(earlier: Awaitable[None], send: Callable[[], Awaitable[None] | None]) -> None:
    await earlier
    if (work := send()) is not None:
        await work


class PeerJsUpgrade(ProtocolUpgrade):
    """The handshake of PeerJS. Its `token` is a JSON Web Token if it has the form of one."""

    def find_token(self) -> str:
        token = super().find_token()
        return token if token.count(".") == 2 else ""


class PeerIdHandler(ProtocolHandler):
    """GET /{key}/id: a new id as text."""

    protocol = PeerJsConnection.protocol

    def get(self, key: str) -> None:
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.write(str(uuid.uuid4()).encode())

    head = get


class PeersHandler(ProtocolHandler):
    """GET /{key}/peers: at most `MAX_LISTED` connected ids, if the operator allows it.

    They are an equal share of each of the groups over which ids are distributed.
    """

    protocol = PeerJsConnection.protocol
    action = "list"

    def initialize(self, relay: Relay) -> None:
        self.relay = relay

    async def get(self, key: str) -> None:
        if not self.request.service.settings.peerjs_discovery:
            self.set_status(401)
            self.set_header("Content-Type", "text/plain; charset=utf-8")
            self.write(b"Unauthorized")
            return
        name = decode_segment(key)
        if name is None:
            raise errors.InvalidParameter("key")
        scope = find_scope(self.request.service, PeerJsConnection.protocol, self.request.origin, name)
        groups = await asyncio.gather(
            *(self.relay.members(id_group(scope, number), MAX_LISTED // GROUPS) for number in range(GROUPS))
        )
        grant = self.request.grant
        ids = [lease.member for group in groups for lease in group.sample]
        self.request.charge(len(ids) // LISTED_PER_UNIT)
        self.write(wire.encode([peer_id for peer_id in ids if grant is None or grant.covers(peer_id)]))

    head = get
