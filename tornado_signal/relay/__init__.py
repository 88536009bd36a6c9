"""Ephemeral messages and leases between clients, which are stored nowhere.

A message reaches the receivers of its channel at most once, in the order of each publisher. A lease makes a client a
member of a group for as long as its connection exists. With `--store redis` all servers share channels and groups.
"""

from asyncio import Future
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

RECEIVERS_PER_UNIT: Final = 100  # a publication counts as one more request for this many receivers
SENT_BYTES_PER_UNIT: Final = 64 * 1024  # and as one more for this many bytes that are sent to them
COUNTED: Final = b"="  # begins a message to the receivers of a group's channel, before the number of members

Charge = Callable[[str, int], bool]
"""Charges a client, given by its address, for a number of requests. Returns whether its rate allows them."""


class Channel(NamedTuple):
    """A channel of messages, or a group of leases."""

    scope: str  # the isolation scope. Clients of different scopes never share a channel or a group
    name: str  # the name within the scope


class Lease(NamedTuple):
    """A member of a group."""

    member: str  # the name of the member
    owner: str  # an id of the connection that owns the lease, without spaces
    # Hashes without spaces, separated by commas. A takeover needs one of them. Empty if everybody may take over.
    token: str = ""
    data: str = ""  # a short text about the member, without spaces


class JoinResult(Enum):
    """The result of joining a group.

    NEW: the member was not in the group.
    RENEWED: the lease replaces an earlier one of the same member.
    TAKEN: refused, because the earlier lease has other tokens.
    FULL: refused, because the group is full.
    """

    NEW = "new"
    RENEWED = "renewed"
    TAKEN = "taken"
    FULL = "full"


NEW, RENEWED, TAKEN, FULL = JoinResult  # an enumeration finds its members slowly


class Members(NamedTuple):
    """The members of a group."""

    counts: Mapping[str, int]  # the number of members by `Lease.data`
    sample: Sequence[Lease]  # random members, without duplicates


class Receiver(Protocol):
    """A subscriber of channels."""

    def relayed(self, message: bytes) -> None:
        """Process a message. It must not raise an exception."""


class Relay(Protocol):
    """Channels and groups of one server, or of all servers that share a Redis.

    `shared` says whether other processes can have receivers of the same channels.
    """

    shared: bool

    def subscribe(self, channel: Channel, receiver: Receiver) -> Awaitable[None] | None:
        """Subscribe a receiver to a channel. A second subscription changes nothing.

        Return None if the subscription is effective, otherwise an awaitable that completes when it is. The awaitable
        raises Unavailable if Redis did not confirm in time. The subscription then becomes effective later.
        """

    def unsubscribe(self, channel: Channel, receiver: Receiver) -> None:
        """Unsubscribe a receiver. Do nothing if it is not subscribed."""

    def receivers(self, channel: Channel) -> int:
        """Return the number of receivers on this server."""

    def publish(self, channel: Channel, message: bytes, publisher: str = "") -> "int | Future[int]":
        """Send a message, which does not begin with a space or a tab, to all receivers of a channel.

        Return the number of receivers on this server if there are any. Otherwise return the number of other servers
        reached, which needs a response of Redis. It can be ignored. `publisher` is the address that other processes
        charge for their receivers. If its rate is used up there, they drop the message. It is empty for a message that
        costs nothing.
        """

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

    async def leave(self, group: Channel, member: str, owner: str) -> None:
        """Remove a member from a group, if its lease still has this owner."""

    async def find(self, group: Channel, member: str) -> Lease | None:
        """Return the lease of a member, or None if the group has no such member."""

    async def members(self, group: Channel, max_items: int | None = None) -> Members:
        """Return the counts of a group and at most `max_items` of its members. None returns all members."""

    async def close(self) -> None:
        """Release the leases and disconnect."""


def units_of_receivers(receivers: int, size: int) -> int:
    """Return as how many further requests a message of a size counts, because of its receivers."""
    return receivers // RECEIVERS_PER_UNIT + receivers * size // SENT_BYTES_PER_UNIT
