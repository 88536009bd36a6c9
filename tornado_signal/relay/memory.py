"""Channels and groups within one process."""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from . import FULL, NEW, RENEWED, TAKEN, Channel, JoinResult, Lease, Members, Receiver

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE: Final = 64  # receivers that get a message per event-loop iteration
MAX_BACKLOG_BYTES: Final = 1 << 20  # of a channel with more receivers; messages beyond it are dropped
FAILED: Final = "a receiver failed; please report this bug"
RECEIVER_BYTES: Final = 8  # of the backlog, for each receiver of a message


class Deliveries(Generic[T]):
    """Calls for many receivers, which are made in slices, so that other clients are served in between.

    Later calls wait meanwhile, because each receiver gets all of them in the same order.
    """

    __slots__ = ("_backlog", "_backlog_bytes")

    def __init__(self) -> None:
        self._backlog: deque[tuple[Callable[[T], object], int, list[T]]] = deque()  # calls, their cost in bytes
        self._backlog_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether a caller that can do without a call should not make it."""
        return self._backlog_bytes > MAX_BACKLOG_BYTES

    def deliver(self, call: Callable[[T], object], receivers: list[T], size: int = 0) -> bool:
        """Call a function for each receiver. Return False if the call, for a message of a size, is dropped."""
        cost = size + RECEIVER_BYTES * len(receivers)
        if len(receivers) <= SLICE and not self._backlog:
            call_each(call, receivers)
        elif size and self._backlog_bytes + cost > MAX_BACKLOG_BYTES and self._backlog:
            return False
        else:
            if not self._backlog:
                asyncio.get_running_loop().call_soon(self._deliver_slice)
            receivers.reverse()
            self._backlog.append((call, cost, receivers))
            self._backlog_bytes += cost
        return True

    def _deliver_slice(self) -> None:
        call, cost, receivers = self._backlog[0]
        call_each(call, receivers[: -SLICE - 1 : -1])
        del receivers[-SLICE:]
        if not receivers:
            self._backlog.popleft()
            self._backlog_bytes -= cost
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._deliver_slice)


def call_each(call: Callable[[T], object], receivers: Iterable[T]) -> None:
    """Call a function for each receiver. One that raises keeps nothing from the others."""
    for receiver in receivers:
        try:
            call(receiver)
        except Exception:  # not by `guarded`: another call for each receiver costs 5 % of a message
            log.exception(FAILED)


class Subscribers(Deliveries[Receiver]):
    """The receivers of one channel, in the order of their subscriptions."""

    __slots__ = ("receivers",)

    def __init__(self) -> None:
        super().__init__()
        self.receivers: dict[Receiver, None] = {}

    def publish(self, message: bytes) -> int:
        """Send a message to all current receivers, and return their number. Return 0 if the message is dropped."""
        receivers = list(self.receivers)
        if len(receivers) <= SLICE and not self._backlog:  # the usual case, without a call for each
            for receiver in receivers:
                try:
                    receiver.relayed(message)
                except Exception:
                    log.exception(FAILED)
            return len(self.receivers)

        def relay(receiver: Receiver) -> None:
            if receiver in self.receivers:
                receiver.relayed(message)

        return len(self.receivers) if self.deliver(relay, receivers, len(message)) else 0


class MemoryRelay:
    """A relay within one process. `RedisRelay` has the same operations, for all servers that share a Redis.

    `shared` says whether other processes can have receivers of the same channels.
    """

    shared = False

    def __init__(self) -> None:
        self._channels: dict[Channel, Subscribers] = {}
        self._groups: dict[Channel, dict[str, Lease]] = {}

    def subscribe(self, channel: Channel, receiver: Receiver) -> Awaitable[None] | None:
        """Subscribe a receiver to a channel. A second subscription changes nothing.

        Return None if the subscription is effective, otherwise an awaitable that completes when it is. The awaitable
        raises Unavailable if Redis did not confirm in time. The subscription then becomes effective later.
        """
        subscribers = self._channels.get(channel)
        if subscribers is None:
            subscribers = self._channels[channel] = Subscribers()
        subscribers.receivers[receiver] = None
        return None

    def unsubscribe(self, channel: Channel, receiver: Receiver) -> None:
        """Unsubscribe a receiver. Do nothing if it is not subscribed."""
        subscribers = self._channels.get(channel)
        if subscribers is not None:
            subscribers.receivers.pop(receiver, None)
            if not subscribers.receivers:
                del self._channels[channel]

    def receivers(self, channel: Channel) -> int:
        """Return the number of receivers on this server."""
        subscribers = self._channels.get(channel)
        return 0 if subscribers is None else len(subscribers.receivers)

    def publish(self, channel: Channel, message: bytes, publisher: str = "") -> int:
        """Send a message, which does not begin with a space or a tab, to all receivers of a channel.

        Return the number of receivers on this server if there are any. Otherwise return the number of other servers
        reached, a future which needs a response of Redis. It can be ignored. `publisher` is the address that other
        processes charge for their receivers. If its rate is used up there, they drop the message. It is empty for a
        message that costs nothing.
        """
        subscribers = self._channels.get(channel)
        return 0 if subscribers is None else subscribers.publish(message)

    async def join(
        self, group: Channel, lease: Lease, max_members: int, on_lost: Callable[[], object] | None = None
    ) -> JoinResult:
        """Add a member to a group, or replace its lease. End it by `leave`.

        `on_lost` is called if the lease expired, because Redis was unreachable, and has another owner now. Raise
        Unavailable if Redis did not respond in time. An earlier lease of the owner stays. A new member is not in the
        group, or is removed soon.

        If other servers can have members, the receivers of the group's channel get its size from time to time. Such a
        message begins with `COUNTED`.
        """
        members = self._groups.setdefault(group, {})
        earlier = members.get(lease.member)
        if earlier is None and len(members) >= max_members:
            return FULL
        # A takeover needs one of the earlier tokens.
        if earlier and earlier.token and set(earlier.token.split(",")).isdisjoint(lease.token.split(",")):
            return TAKEN
        members[lease.member] = lease
        return NEW if earlier is None else RENEWED

    async def leave(self, group: Channel, member: str, owner: str) -> None:
        """Remove a member from a group, if its lease still has this owner."""
        members = self._groups.get(group, {})
        lease = members.get(member)
        if lease is not None and lease.owner == owner:
            del members[member]
            if not members:
                del self._groups[group]

    async def find(self, group: Channel, member: str) -> Lease | None:
        return self._groups.get(group, {}).get(member)

    async def members(self, group: Channel, max_items: int | None = None) -> Members:
        """Return the counts of a group and at most `max_items` of its members. None returns all members."""
        leases = list(self._groups.get(group, {}).values())
        size = len(leases) if max_items is None else min(max_items, len(leases))
        return Members(Counter(lease.data for lease in leases), random.sample(leases, size))

    async def close(self) -> None:
        """Release the leases and disconnect."""
        self._channels.clear()
        self._groups.clear()
