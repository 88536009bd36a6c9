"""Ephemeral messages and leases between clients, which are stored nowhere.

A message reaches the receivers of its channel at most once, in the order of each publisher. A lease makes a client a
member of a group for as long as its connection exists. With `--store redis` all servers share channels and groups.
"""

from typing import TYPE_CHECKING

from .memory import Deliveries, MemoryRelay
from .types import COUNTED, Channel, Charge, JoinResult, Lease, Members, Receiver, Relay, units_of_receivers

if TYPE_CHECKING:  # hiredis can be missing
    from ..redis.client import RedisClient

__all__ = [
    "COUNTED",
    "Channel",
    "Charge",
    "Deliveries",
    "JoinResult",
    "Lease",
    "Members",
    "Receiver",
    "Relay",
    "open_relay",
    "units_of_receivers",
]


def open_relay(redis: "RedisClient | None", charge: Charge, grace_ms: int = 5000) -> Relay:
    """Return the relay of a server: through Redis, if its store has that, otherwise in memory.

    `charge` charges the publishers at other servers for the receivers at this one. `grace_ms` is the time for which a
    client that has lost its connection keeps its leases.
    """
    if redis is None:
        return MemoryRelay()
    from .redis import RedisRelay

    return RedisRelay(redis, charge, grace_ms)
