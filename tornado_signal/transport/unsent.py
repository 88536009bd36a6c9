"""What clients have not taken yet, bounded for all connections together: it is memory, and costs a client nothing."""

from collections import defaultdict
from typing import Final, Protocol

MAX_UNSENT_BYTES: Final = 64 * 1024 * 1024


class Slow(Protocol):
    """A connection whose client reads too slowly."""

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
    """

    def __init__(self, most_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._sizes: dict[Slow, int] = {}

    def grown(self, connection: Slow, size: int) -> None:
        """A connection has so many bytes unsent now."""
        self._bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size
        if self._bytes > self._most_bytes:
            self._shrink()

    def forget(self, connection: Slow) -> None:
        """A connection has caught up, or is over."""
        self._bytes -= self._sizes.pop(connection, 0)

    def _shrink(self) -> None:
        # Sizes are those of the last write: meanwhile clients may have read.
        self._sizes = {connection: connection.unsent_bytes for connection in self._sizes}
        self._bytes = sum(self._sizes.values())
        by_address: defaultdict[str, list[Slow]] = defaultdict(list)
        for connection in self._sizes:
            by_address[connection.remote_ip].append(connection)
        while self._bytes > self._most_bytes * 3 // 4:
            most = max(by_address.values(), key=lambda some: sum(map(self._sizes.__getitem__, some)))
            largest = max(most, key=self._sizes.__getitem__)
            most.remove(largest)
            self.forget(largest)
            largest.abort()
