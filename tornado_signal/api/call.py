"""A call of an operation, as the operations see it: over HTTP or any other protocol."""

from dataclasses import dataclass, field
from typing import Protocol

from ..settings.settings import Settings
from ..stores import Store
from ..stores.watches import Watch
from ..system.clock import Clock
from .ice import IceServers
from .topic_steps import TopicSteps


@dataclass
class Service:
    """What all calls share.

    Attributes:
        store: the sessions.
        settings: as configured.
        clock: tells the time of a call.
        ice: the servers that peers are told of.
        version: the commit that the server was built from.
        leaving: whether whoever asks for the server's health is to send its clients elsewhere.
        topic_steps: the latest events of topics.
    """

    store: Store
    settings: Settings
    clock: Clock
    ice: IceServers
    version: str
    leaving: bool = False
    topic_steps: TopicSteps = field(default_factory=TopicSteps)


class Call(Protocol):
    """One call.

    Attributes:
        service: what all calls share.
        origin: the isolation scope.
        now_ms: the time of the call, Unix milliseconds; after a wait that of its end.
    """

    service: Service
    origin: str
    now_ms: int

    def admit_session(self) -> None:
        """Count a session that is to be published.

        Raises:
            TooMany: the client has published as many as it may.
        """

    def admit_bytes(self, size: int) -> None:
        """Charge `size` bytes that are about to be stored to the client's quota.

        Raises:
            TooMany: the client has stored as many as it may.
        """

    def waiting(self, watch: Watch) -> Watch:
        """Tie a watch to the call, which ends it when its client is gone; to be used as a context manager.

        Raises:
            TooMany, Unavailable: too many wait already.
        """

    async def turn(self) -> None:
        """Let other clients be served first; then the time of the call is a new one."""
