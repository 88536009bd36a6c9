"""What clients have not taken yet, bounded for all connections together: it is memory, and costs a client nothing."""

from collections import defaultdict
from typing import Protocol


class SlowConnection(Protocol):
    """A connection whose client reads too slowly.

    Attributes:
        remote_ip: the other end's address; empty on a Unix socket.
    """

    remote_ip: str

    @property
    def unsent_bytes(self) -> int:
        """What its client has not taken yet."""

    def abort(self) -> None:
        """End it at once."""


class Unsent:
    """The connections whose clients read too slowly.

    When all of them together have too much unsent, the address with the most loses connections, the largest first:
    an address with many slow connections cannot end those of others.

    Args:
        most_bytes: the most that they may have.

    Attributes:
        bytes: how much they have, as it was when each was last written to.
        ended: how many connections have been ended for it.
    """

    def __init__(self, most_bytes: int) -> None:
        self.bytes = 0
        self.ended = 0
        self._most_bytes = most_bytes
        self._sizes: dict[SlowConnection, int] = {}

    def grown(self, connection: SlowConnection, size: int) -> None:
        """A connection has so many bytes unsent now."""
        self.bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        if self.bytes > self._most_bytes:
            self._shrink()

    def forget(self, connection: SlowConnection) -> None:
        """A connection has caught up, or is over."""
        self.bytes -= self._sizes.pop(connection, 0)

    def _shrink(self) -> None:
        # Sizes are those of the last write: meanwhile clients may have read.
        self._sizes = {connection: connection.unsent_bytes for connection in self._sizes}
        self.bytes = sum(self._sizes.values())
        by_address: defaultdict[str, list[SlowConnection]] = defaultdict(list)
        for connection in self._sizes:
            by_address[connection.remote_ip].append(connection)
        while self.bytes > self._most_bytes * 3 // 4:
            most = max(by_address.values(), key=lambda some: sum(map(self._sizes.__getitem__, some)))
            largest = max(most, key=self._sizes.__getitem__)
            most.remove(largest)
            self.forget(largest)
            self.ended += 1
            largest.abort()
