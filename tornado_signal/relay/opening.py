"""The choice of a relay."""

from typing import TYPE_CHECKING, TypeAlias

from . import Charge
from .memory import MemoryRelay

if TYPE_CHECKING:  # hiredis can be missing
    from ..redis.client import RedisClient
    from .redis import RedisRelay

Relay: TypeAlias = "MemoryRelay | RedisRelay"
"""Channels and groups of one server, or of all servers that share a Redis. `MemoryRelay` describes the operations."""


def open_relay(redis: "RedisClient | None", charge: Charge, grace_ms: int = 5000) -> Relay:
    """Return the relay of a server: through Redis, if its store has that, otherwise in memory.

    `charge` charges the publishers at other servers for the receivers at this one. `grace_ms` is the time for which a
    client that has lost its connection keeps its leases.
    """
    if redis is None:
        return MemoryRelay()
    from .redis import RedisRelay

    return RedisRelay(redis, charge, grace_ms)
