"""The connections to Redis that the relay uses as well."""

from dataclasses import dataclass

from .client import RedisClient
from .connections import Credentials
from .metrics import RedisMetrics
from .topology import Topology


@dataclass(frozen=True)
class SharedRedis:
    """The nodes of a store."""

    topology: Topology  # the primaries and their slots
    client: RedisClient  # calls to the nodes
    access: Credentials
    metrics: RedisMetrics  # metrics of the engine
    prefix: str  # the prefix of all keys and channels
    process_id: bytes  # the identifier of this process
    grace_ms: int  # the time for which a client that has lost its connection keeps what it held
