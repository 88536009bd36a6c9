"""Channels and groups shared by all servers of one Redis or Valkey.

A channel is a sharded channel of Redis. The leases of a group are a hash, and a sorted set with the expiries of the
processes that own them. A process renews its entry of each of its groups.
"""

import asyncio
import contextlib
import functools
import hashlib
import ipaddress
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from ..errors import Unavailable
from ..redis.channels import ChangeFeed
from ..redis.client import RedisClient
from ..redis.connections import ErrorReply, Failure
from ..redis.scripts import Script, make_script
from ..redis.slots import key_slot
from ..system.loop import Repeating, guarded
from . import COUNTED, Channel, Charge, JoinResult, Lease, Members, Receiver, units_of_receivers
from .memory import MemoryRelay

LIFETIME_MS: Final = 25_000  # of a process in a group; the leases of a lost process end within 30 s
RENEW_S: Final = 8.0
RENEWED_AT_ONCE: Final = 500  # groups
MAX_UNCONFIRMED_BYTES: Final = 16 << 20  # messages that Redis has not received yet; further ones are dropped
MESSAGE_BYTES: Final = 1024  # approximate memory of such a message, in addition to its content
MAX_UNRELEASED: Final = 10_000  # leases to release when Redis responds again; others expire with their process
PROCESS_BYTES: Final = 8  # the process id before each message
PUBLISHERS_KEPT: Final = 4096  # whose addresses are not encoded or decoded again

# The bits of a publisher's address precede its message as spaces and tabs. Processes of an earlier version pass them on
# to their clients, and JSON may begin with them.
_PUBLISHER: Final = re.compile(b"[ \t]{0,%d}" % ipaddress.IPV6LENGTH)
_FROM_BITS: Final = bytes.maketrans(b"01", b" \t")
_TO_BITS: Final = bytes.maketrans(b" \t", b"01")


def _load(name: str) -> Script:
    folder = Path(__file__).parent / "scripts"
    return make_script((folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text())


SCRIPTS: Final = {name: _load(name) for name in ("join", "leave", "members", "renew")}


def make_key(prefix: str, channel: Channel) -> bytes:
    digest = hashlib.sha256("\0".join(channel).encode()).hexdigest()[:32]
    return f"{prefix}{{relay.{digest}}}".encode()


class Registered(NamedTuple):
    """A lease of this process."""

    lease: Lease
    max_members: int  # the largest number of members of its group
    on_lost: Callable[[], object] | None  # called if the lease has another owner


class RedisRelay:
    """A relay through Redis. `MemoryRelay` describes its operations.

    Receivers on this server get messages directly, without Redis.
    """

    shared = True

    def __init__(self, client: RedisClient, charge: Charge, grace_ms: int) -> None:
        self._client = client
        self._charge = charge
        self._grace_ms = grace_ms
        self._topology = client.topology
        self._process = client.process_id.hex()
        self._local = MemoryRelay()
        self.receivers = self._local.receivers
        self._channels: dict[bytes, Channel] = {}
        self._feed = ChangeFeed(client, self._channels.__contains__, lambda channel: None, self._on_message)
        self._unconfirmed_bytes = 0
        self._leases: dict[Channel, dict[str, Registered]] = {}
        self._maybe_incomplete: set[Channel] = set()  # groups whose latest leases a new primary can lack
        self._unreleased: dict[tuple[Channel, str, str], float] = {}  # when to stop trying to release these leases
        self._failovers = 0
        self._loop = asyncio.get_running_loop()
        self._repeated = [Repeating(self._renew_all, RENEW_S), Repeating(self._release_again, RENEW_S)]

    # Channels

    def _key(self, channel: Channel) -> bytes:
        return make_key(self._client.prefix, channel)

    def subscribe(self, channel: Channel, receiver: Receiver) -> Awaitable[None] | None:
        self._local.subscribe(channel, receiver)
        key = self._key(channel)
        if key not in self._channels:
            self._channels[key] = channel
            self._feed.keep_subscribed(key, key_slot(key))
        return self._feed.subscribed(key) if key in self._feed.pending else None

    def unsubscribe(self, channel: Channel, receiver: Receiver) -> None:
        self._local.unsubscribe(channel, receiver)
        key = self._key(channel)
        if key in self._channels and not self._local.receivers(channel):
            del self._channels[key]
            self._feed.drop(key)

    def publish(self, channel: Channel, message: bytes, publisher: str = "") -> "int | asyncio.Future[int]":
        local_receivers = self._local.publish(channel, message)
        if self._unconfirmed_bytes + len(message) + MESSAGE_BYTES > MAX_UNCONFIRMED_BYTES:
            return local_receivers  # Redis has too much to confirm: other servers miss the message
        key = self._key(channel)
        servers: asyncio.Future[int] = self._loop.create_future()
        self._send(key, self._client.process_id + _encode_publisher(publisher) + message, servers, moved=False)
        return local_receivers or servers

    def _send(self, key: bytes, message: bytes, servers: "asyncio.Future[int]", *, moved: bool) -> None:
        """Publish a message on Redis, and set the number of servers that it reached."""
        node = self._topology.node(key_slot(key))

        def on_reply(sent: "asyncio.Future[Any]") -> None:
            self._unconfirmed_bytes -= len(message) + MESSAGE_BYTES
            reply = sent.result()
            if isinstance(reply, ErrorReply) and reply.kind == "MOVED" and not moved:
                self._topology.moved(*reply.elsewhere(node.address))
                self._send(key, message, servers, moved=True)
                return
            if isinstance(reply, Failure):
                self._topology.refresh_soon()
            if not servers.done():
                servers.set_result(reply if isinstance(reply, int) else 0)

        self._unconfirmed_bytes += len(message) + MESSAGE_BYTES
        node.messages.submit((b"SPUBLISH", key, message)).add_done_callback(on_reply)

    def _on_message(self, key: bytes, message: bytes) -> None:
        channel = self._channels.get(key)
        if channel is None or message.startswith(self._client.process_id):
            return
        publisher = cast("re.Match[bytes]", _PUBLISHER.match(message, PROCESS_BYTES))
        message = message[publisher.end() :]
        units = units_of_receivers(self._local.receivers(channel), len(message))
        if not (units and publisher[0]) or self._charge(_decode_publisher(publisher[0]), units):
            guarded(self._local.publish, channel, message)  # anybody who may publish on Redis can have sent it

    # Groups

    async def _call(self, name: str, group: Channel, *arguments: str | int) -> Any:
        key = self._key(group)
        call = (SCRIPTS[name], arguments)
        return await self._client.run(key_slot(key), (key + b":l", key + b":p", key + b":c"), call, write=False)

    async def join(
        self, group: Channel, lease: Lease, max_members: int, on_lost: Callable[[], object] | None = None
    ) -> JoinResult:
        registered = Registered(lease, max_members, on_lost)
        try:
            joined = await self._join(group, registered)
        except Unavailable:  # Redis can have executed the call
            if not self._owns(group, lease.member, lease.owner):
                self._leave_later(group, lease.member, lease.owner)
            raise
        if joined in (JoinResult.NEW, JoinResult.RENEWED):
            self._leases.setdefault(group, {})[lease.member] = registered
            self._unreleased.pop((group, lease.member, lease.owner), None)
        return joined

    async def _join(self, group: Channel, registered: Registered, *, again: bool = False) -> JoinResult:
        arguments = (*registered.lease, registered.max_members, int(again))
        return JoinResult((await self._call("join", group, self._process, LIFETIME_MS, *arguments)).decode())

    async def leave(self, group: Channel, member: str, owner: str) -> None:
        if self._owns(group, member, owner):
            self._remove(group, member)
        try:
            await self._call("leave", group, member, owner)
            self._unreleased.pop((group, member, owner), None)
        except Unavailable:
            self._leave_later(group, member, owner)

    def _owns(self, group: Channel, member: str, owner: str) -> bool:
        registered = self._leases.get(group, {}).get(member)
        return registered is not None and registered.lease.owner == owner

    def _remove(self, group: Channel, member: str) -> None:
        leases = self._leases[group]
        del leases[member]
        if not leases:
            del self._leases[group]

    def _leave_later(self, group: Channel, member: str, owner: str) -> None:
        """Release a lease when Redis responds again. If that takes longer, all leases of the process expire."""
        if len(self._unreleased) < MAX_UNRELEASED:
            self._unreleased.setdefault((group, member, owner), self._loop.time() + 2 * LIFETIME_MS / 1000)

    async def find(self, group: Channel, member: str) -> Lease | None:
        reply = await self._client.call_key(b"HGET", self._key(group) + b":l", member)
        return None if reply is None else _parse(member, reply)

    async def members(self, group: Channel, max_items: int | None = None) -> Members:
        leases, counts = await self._call("members", group, -1 if max_items is None else max_items)
        sample = [_parse(member.decode(), lease) for member, lease in zip(leases[::2], leases[1::2], strict=True)]
        return Members(
            {data.decode(): int(count) for data, count in zip(counts[::2], counts[1::2], strict=True)}, sample
        )

    async def _renew_all(self) -> None:
        """Renew the leases of all groups. Those of a node that does not respond delay no others."""
        failovers, self._failovers = self._failovers, self._client.metrics.failovers
        if failovers != self._failovers:
            self._maybe_incomplete.update(self._leases)
        self._maybe_incomplete &= self._leases.keys()
        groups = list(self._leases)
        renewals: set[asyncio.Task[None]] = set()
        try:
            for at in range(0, len(groups), RENEWED_AT_ONCE):
                renewals |= {self._loop.create_task(self._renew(group)) for group in groups[at : at + RENEWED_AT_ONCE]}
                _, renewals = await asyncio.wait(renewals, timeout=RENEW_S / 2 * RENEWED_AT_ONCE / len(groups))
            if renewals:
                _, renewals = await asyncio.wait(renewals, timeout=RENEW_S / 2)
        finally:
            for renewal in renewals:
                renewal.cancel()

    async def _release_again(self) -> None:
        """Release the leases that Redis did not release when it was asked to."""
        now_s = self._loop.time()
        self._unreleased = {left: until_s for left, until_s in self._unreleased.items() if until_s > now_s}
        await asyncio.gather(*(self.leave(*left) for left in self._unreleased))

    async def _renew(self, group: Channel) -> None:
        """Renew a group's leases. If Redis may have lost some of them, register all again."""
        with contextlib.suppress(Unavailable):
            if group not in self._maybe_incomplete:
                if members := await self._call("renew", group, self._process, LIFETIME_MS):
                    self._local.publish(group, COUNTED + b"%d" % members)  # receivers compare it with theirs
                    return
                self._maybe_incomplete.add(group)
            for registered in list(self._leases.get(group, {}).values()):
                await self._register_again(group, registered)
            self._maybe_incomplete.discard(group)

    async def _register_again(self, group: Channel, registered: Registered) -> None:
        """Register a lease that Redis can have lost, unless it was released meanwhile or has another owner."""
        lease = registered.lease
        if self._leases.get(group, {}).get(lease.member) is not registered:
            return
        joined = await self._join(group, registered, again=True)
        if self._leases.get(group, {}).get(lease.member) is not registered:
            self._leave_later(group, lease.member, lease.owner)
        elif joined is JoinResult.TAKEN:
            self._remove(group, lease.member)
            if registered.on_lost is not None:
                registered.on_lost()

    async def close(self) -> None:
        for each in self._repeated:
            await each.stop()
        calls = [self._call("renew", group, self._process, self._grace_ms) for group in self._leases]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._client.access.timeout_s):
                await asyncio.gather(*calls, return_exceptions=True)
        await self._feed.close()


def _parse(member: str, lease: bytes) -> Lease:
    _, owner, token, data = lease.decode().split(" ")
    return Lease(member, owner, token, data)


@functools.lru_cache(PUBLISHERS_KEPT)
def _encode_publisher(address: str) -> bytes:
    if not address:
        return b""
    parsed = ipaddress.ip_address(address)
    return f"{int(parsed):0{parsed.max_prefixlen}b}".encode().translate(_FROM_BITS)


@functools.lru_cache(PUBLISHERS_KEPT)
def _decode_publisher(publisher: bytes) -> str:
    make = ipaddress.IPv4Address if len(publisher) == ipaddress.IPV4LENGTH else ipaddress.IPv6Address
    return str(make(int(publisher.translate(_TO_BITS), 2)))
