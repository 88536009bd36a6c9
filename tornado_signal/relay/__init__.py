"""Ephemeral messages and leases between clients, which are stored nowhere.

A message reaches the receivers of its channel at most once, in the order of each publisher. A lease makes a client a
member of a group for as long as its connection exists. With `--store redis` all servers share channels and groups.
"""

from collections.abc import Callable, Mapping, Sequence
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


def units_of_receivers(receivers: int, size: int) -> int:
    """Return as how many further requests a message of a size counts, because of its receivers."""
    return receivers // RECEIVERS_PER_UNIT + receivers * size // SENT_BYTES_PER_UNIT
