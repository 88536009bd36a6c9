"""The WebTorrent tracker over WebSockets: swarms of peers that send each other offers through the server."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from .. import errors
from ..http.fields import query_token
from ..http.request import Request
from ..relay import Channel, JoinResult, Lease
from ..relay.opening import Relay
from ..service.request_context import RequestContext
from ..service.statuses import STATUS
from ..transport.websocket import WebSocket
from .connection import MAX_MEMBERS, ProtocolConnection, encode, hash_owner

PATH: Final = "/tracker"
ANNOUNCE_PATH: Final = "/announce"
HASH_LENGTH: Final = 20  # characters up to U+00FF, one for each byte
INTERVAL_S: Final = 120  # between two announcements of a client
MIN_SCRAPE_INTERVAL_S: Final = 600
MAX_OFFERS: Final = 10  # of an announcement
MAX_PEERS: Final = 10  # of a connection in a swarm: clients of one page share a connection
MAX_HASHES: Final = 255  # of a scrape
MAX_ECHOED: Final = 256  # characters of an invalid info_hash in the response
EVENTS: Final = ("started", "stopped", "completed", "update", "paused", "empty", "")
COMPLETE: Final = "complete"
INCOMPLETE: Final = "incomplete"


class Failed(Exception):
    """A request is invalid. The text is the `failure reason`."""


def parse_id(value: object, failure: str) -> str:
    """Return a hash or an id of a peer: 20 characters, each up to U+00FF. Otherwise raise Failed."""
    if type(value) is not str or len(value) != HASH_LENGTH or max(value) > "\xff":
        raise Failed(failure)
    return value


def topic_of_hash(info_hash: str) -> str:
    """Return the topic of a swarm in the claims of a token: the hash in hexadecimal digits."""
    return info_hash.encode("latin-1").hex()


class TrackerConnection(ProtocolConnection):
    """A client of a tracker."""

    pattern, protocol = PATH, "tracker"

    __slots__ = ("_swarms", "_token")

    def __init__(self, relay: Relay, handshake: Request, socket: WebSocket) -> None:
        token = query_token(handshake.query_arguments)
        super().__init__(relay, handshake, socket)
        # The subject of a token binds its peers. Without it a client that comes back is known by address or token.
        if self.grant is not None and self.grant.subject:
            self._token = hash_owner("subject", self.grant.subject)
        else:
            address = hash_owner("address", self.counts.name)
            self._token = f"{address},{hash_owner('token', token)}" if token else address
        self._swarms: dict[str, dict[str, Lease]] = {}  # by info_hash, the own peers by id

    @property
    def names(self) -> list[str]:
        return [topic_of_hash(info_hash) for info_hash in self._swarms]

    def received(self, message: Any, context: RequestContext) -> Coroutine[None, None, None]:
        return self._respond(message, context)

    async def _respond(self, message: Any, context: RequestContext) -> None:
        fields = message if type(message) is dict else {}
        action, info_hash = fields.get("action"), fields.get("info_hash")
        try:
            if action == "announce":
                await self._announce(fields, context)
            elif action == "scrape":
                await self._scrape(info_hash, context)
            elif not self.refuse_other_protocol(message):
                named = f"action in WS request: {action[:MAX_ECHOED] if type(action) is str else ''}"
                raise Failed(f"invalid {'JSON' if message is None else named}")
        except (Failed, errors.Unauthorized, errors.NotAllowed, errors.Unavailable) as failed:
            reason = str(failed)
            if isinstance(failed, errors.Unavailable):
                context.count_error(failed)
                context.status = STATUS[type(failed)]
                reason = "the server is temporarily unavailable"
            echoed = info_hash if type(info_hash) is str and len(info_hash) <= MAX_ECHOED else ""
            action = "scrape" if action == "scrape" else "announce"
            self.send({"action": action, "failure reason": reason, "info_hash": echoed})

    def _swarm(self, info_hash: str) -> Channel:
        return Channel(self.scope, f"swarm {info_hash}")

    def _inbox(self, owner: str) -> Channel:
        return Channel(self.scope, f"connection {owner}")

    # Announcements

    async def _announce(self, message: dict[str, Any], context: RequestContext) -> None:
        info_hash = parse_id(message.get("info_hash"), "invalid info_hash")
        peer_id = parse_id(message.get("peer_id"), "invalid peer_id")
        answer = message.get("answer")
        if answer is not None:
            to_peer_id = parse_id(message.get("to_peer_id"), "invalid `to_peer_id` (required with `answer`)")
        event = message.get("event") or ""
        if event not in EVENTS:
            raise Failed("invalid event")
        context.authorize("offer" if answer is None else "answer")
        context.require_topic(topic_of_hash(info_hash))
        offers = message.get("offers")
        offers = offers if type(offers) is list and answer is None and event != "stopped" else []
        if len(offers) > MAX_OFFERS:
            raise errors.TooMany("offers of an announcement")
        context.charge(len(offers))
        if event == "stopped":
            await self._leave(info_hash, peer_id)
        else:
            await self._join(info_hash, peer_id, event, message.get("left"))
        owns = peer_id in self._swarms.get(info_hash, {})
        if answer is not None:
            if owns:
                await self._answer(info_hash, peer_id, to_peer_id, message)
            return
        if not owns:
            offers = []
        swarm = await self.relay.members(self._swarm(info_hash), len(offers) + 1 if offers else 0)
        counts = {kind: swarm.counts.get(kind, 0) for kind in (COMPLETE, INCOMPLETE)}
        self.send({**counts, "action": "announce", "interval": INTERVAL_S, "info_hash": info_hash})
        others = [lease for lease in swarm.sample if lease.member != peer_id]
        for offer, lease in zip(offers, others, strict=False):
            fields = offer if type(offer) is dict else {}
            self._send_to(lease.owner, info_hash, peer_id, _select(fields, "offer", "offer_id"))

    async def _join(self, info_hash: str, peer_id: str, event: str, left: object) -> None:
        peers = self._swarms.get(info_hash, {})
        earlier = peers.get(peer_id)
        complete = left == 0
        if earlier is None:
            if len(peers) >= MAX_PEERS:
                raise errors.TooMany("peers of a connection in a swarm")
            if not self._swarms and (opening := self.subscribe(self._inbox(self.owner))) is not None:
                await opening
            if self.closed:
                return
            self.acquire_peer(self._swarm(info_hash))
        else:  # as in the original, a complete peer stays complete
            complete = complete or event == "completed" or earlier.data == COMPLETE
        lease = Lease(peer_id, self.owner, self._token, COMPLETE if complete else INCOMPLETE)
        self._swarms.setdefault(info_hash, {})[peer_id] = lease
        try:
            joined = await self.relay.join(self._swarm(info_hash), lease, MAX_MEMBERS)
        except errors.Unavailable:
            if earlier is None:
                self._forget(info_hash, peer_id)
            raise
        if joined is JoinResult.FULL:
            raise errors.TooMany("members of a swarm")
        if joined is JoinResult.TAKEN:
            self._forget(info_hash, peer_id)
        if self.closed:  # its release can have overtaken the call
            await self.relay.leave(self._swarm(info_hash), peer_id, self.owner)

    async def _leave(self, info_hash: str, peer_id: str) -> None:
        if self._forget(info_hash, peer_id):
            await self.relay.leave(self._swarm(info_hash), peer_id, self.owner)

    def _forget(self, info_hash: str, peer_id: str) -> bool:
        """Stop counting an own peer. Return whether it was one."""
        peers = self._swarms.get(info_hash, {})
        if peers.pop(peer_id, None) is None:
            return False
        if not peers:
            del self._swarms[info_hash]
        self.release_peer(self._swarm(info_hash))
        return True

    async def _answer(self, info_hash: str, peer_id: str, to_peer_id: str, message: dict[str, Any]) -> None:
        lease = await self.relay.find(self._swarm(info_hash), to_peer_id)
        if lease is not None:
            self._send_to(lease.owner, info_hash, peer_id, _select(message, "answer", "offer_id"))

    def _send_to(self, owner: str, info_hash: str, peer_id: str, fields: dict[str, Any]) -> None:
        message = {"action": "announce", **fields, "peer_id": peer_id, "info_hash": info_hash}
        self.relay.publish(self._inbox(owner), encode(message))

    # Scrapes

    async def _scrape(self, info_hash: object, context: RequestContext) -> None:
        given = info_hash if type(info_hash) is list else [] if info_hash is None else [info_hash]
        if len(given) > MAX_HASHES:
            raise Failed("too many info_hash")
        hashes = [parse_id(value, "invalid info_hash") for value in given]
        context.authorize("list")
        for value in hashes:
            context.require_topic(topic_of_hash(value))
        context.charge(len(hashes) - 1)
        hashes = list(dict.fromkeys(hashes))
        swarms = await asyncio.gather(*(self.relay.members(self._swarm(name), 0) for name in hashes))
        files = {
            name: {
                "complete": swarm.counts.get(COMPLETE, 0),
                "incomplete": swarm.counts.get(INCOMPLETE, 0),
                "downloaded": swarm.counts.get(COMPLETE, 0),
            }
            for name, swarm in zip(hashes, swarms, strict=True)
        }
        flags = {"min_request_interval": MIN_SCRAPE_INTERVAL_S}
        self.send({"action": "scrape", "files": files, "flags": flags})

    def leave(self) -> Coroutine[None, None, None] | None:
        return self._leave_all() if self._swarms else None

    async def _leave_all(self) -> None:
        for info_hash, peers in list(self._swarms.items()):
            for peer_id in list(peers):
                await self._leave(info_hash, peer_id)


def _select(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields[name] for name in names if name in fields}
