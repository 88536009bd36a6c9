"""Ephemeral messages and leases between clients, which are stored nowhere.

A message reaches the receivers of its channel at most once, in the order of each publisher. A lease makes a client a
member of a group for as long as its connection exists. With `--store redis` all servers share channels and groups.
"""

from ..stores import Store
from .memory import MemoryRelay
from .types import Channel, Charge, JoinResult, Lease, Members, Receiver, Relay, units_of_receivers

__all__ = [
    "Channel",
    "Charge",
    "JoinResult",
    "Lease",
    "Members",
    "Receiver",
    "Relay",
    "open_relay",
    "units_of_receivers",
]


def open_relay(store: Store, charge: Charge, grace_ms: int = 5000) -> Relay:
    """Return the relay of a server: through the Redis of its store, if it has one, otherwise in memory.

    `charge` charges the publishers at other servers for the receivers at this one. `grace_ms` is the time for which a
    client that has lost its connection keeps its leases.
    """
    if store.shared_redis is None:
        return MemoryRelay()
    from .redis import RedisRelay

    return RedisRelay(store.shared_redis, charge, grace_ms)
