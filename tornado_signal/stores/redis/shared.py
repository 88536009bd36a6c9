"""The connections to Redis that the relay uses as well."""

from dataclasses import dataclass

from .client import Client
from .connections import Credentials
from .metrics import RedisMetrics
from .topology import Topology


@dataclass(frozen=True)
class SharedRedis:
    """The nodes of a store.

    Attributes:
        topology: the primaries and their slots.
        client: calls to the nodes.
        access: the credentials.
        metrics: metrics of the engine.
        prefix: the prefix of all keys and channels.
        process_id: the identifier of this process.
        grace_ms: the time for which a client that has lost its connection keeps what it held.
    """

    topology: Topology
    client: Client
    access: Credentials
    metrics: RedisMetrics
    prefix: str
    process_id: bytes
    grace_ms: int
