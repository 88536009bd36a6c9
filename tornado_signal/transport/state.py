"""The shared state of a server's connections."""

import asyncio
import heapq
import ssl
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from operator import attrgetter, methodcaller
from typing import Any, Final, Protocol

from tornado import httputil

from ..system.loop import in_slices

MAX_UNSENT_BYTES: Final = 64 << 20  # unread data of all slow readers, until `limit_memory`
ABORT_STEP: Final = 100  # connections aborted per event-loop iteration

ErrorResponder = Callable[[int, httputil.HTTPHeaders], tuple[httputil.HTTPHeaders, bytes]]


class Admission(Protocol):
    """A counted connection. `reject_status` is 0 if it is served, else the status for refusing its first request."""

    reject_status: int

    def release(self) -> None:
        """Stop counting the closed connection."""


class ConnectionLimiter(Protocol):
    """Counts connections by the address of the other end, which is empty on a Unix socket."""

    def connected(self, address: str, now_ms: int) -> Admission | None:
        """Count a new connection. The time is that of a monotonic clock. Return None to close it uncounted."""


class OpenConnection(Protocol):
    """A connection as its server sees it. `Connection` describes the attributes."""

    state: "ServerState"
    remote_ip: str
    client_address: str
    deadline_s: float

    @property
    def idle(self) -> bool:
        """Whether no request is under way."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the client has not taken yet."""

    @property
    def readable(self) -> bool:
        """Whether something has arrived that has not been read."""

    def deadline_passed(self) -> None:
        """Handle a passed deadline."""

    def close(self) -> None:
        """Close after what has been sent."""

    def abort(self) -> None:
        """End it at once."""


class StreamConnection(OpenConnection, Protocol):
    """A connection, as its streams know it."""

    delegate_work: "asyncio.Future[Any] | None"  # the work for which the rest of the current request is held back

    def wait_for_delegate(self, work: Awaitable[Any]) -> None:
        """Hold back the rest of the current request until its delegate's work is done."""

    def send(self, data: bytes) -> "asyncio.Future[None]":
        """Return a future that is done when more can be sent. It fails with StreamClosedError after a disconnection."""

    def stream_finished(self, stream: httputil.HTTPConnection) -> None:
        """Handle the end of the current response."""

    def hand_over(self, head: bytes, make: "MakeProtocol") -> bool:
        """Send the head of a response and pass the connection to another protocol. Return whether it is open."""


class MemoryBudget:
    """A budget for the memory of connections, such as unread or unfinished data.

    Such data costs a client nothing. When the total exceeds the budget, the address with the most data loses
    connections, the largest first, until a quarter is free. So one address cannot close the connections of others that
    together have less than 3/8 of the budget.
    """

    def __init__(self, max_bytes: int, size_of: Callable[[Any], int]) -> None:
        self.bytes = 0  # the total of the sizes reported last
        self.ended = 0  # the number of connections closed for it
        self.max_bytes = max_bytes  # the budget
        self._size_of = size_of
        self._sizes: dict[OpenConnection, int] = {}

    def update(self, connection: OpenConnection, size: int) -> None:
        """Update the size of a connection."""
        self.record(connection, size)
        if self.bytes > self.max_bytes:
            self._shrink()

    def record(self, connection: OpenConnection, size: int) -> None:
        """Set the size of a connection, whatever the total is."""
        self.bytes += size - self._sizes.get(connection, 0)
        self._sizes[connection] = size

    def forget(self, connection: OpenConnection) -> None:
        """Remove a connection that uses no memory or is closed."""
        if self._sizes:
            self.bytes -= self._sizes.pop(connection, 0)

    def _shrink(self) -> None:
        # The sizes can be outdated, because clients may have read since.
        self._sizes = {connection: self._size_of(connection) for connection in self._sizes}
        self.bytes = sum(self._sizes.values())
        by_address: defaultdict[str, list[OpenConnection]] = defaultdict(list)
        for connection in self._sizes:
            by_address[connection.client_address].append(connection)
        size = self._sizes.__getitem__
        # Heaps, so that the next address and its largest connection are found without a look at all others.
        addresses = [(-sum(map(size, some)), address) for address, some in by_address.items()]
        heapq.heapify(addresses)
        in_order: set[str] = set()  # addresses whose connections are sorted by size
        victims: list[OpenConnection] = []
        while self.bytes > self.max_bytes * 3 // 4:
            total, address = addresses[0]
            some = by_address[address]
            if address not in in_order:
                in_order.add(address)
                some.sort(key=size)
            largest = some.pop()
            heapq.heapreplace(addresses, (total + size(largest), address))
            self.forget(largest)
            victims.append(largest)
        self.ended += len(victims)
        in_slices(victims, methodcaller("abort"), ABORT_STEP)


class ServerState:
    """The shared state of a server's connections. It needs a running event loop."""

    def __init__(
        self,
        application: httputil.HTTPServerConnectionDelegate,
        error_responder: ErrorResponder,
        limiter: ConnectionLimiter,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.application = application  # handles the requests
        # Makes headers and body of the response to a rejected request, given the status and the parsed headers.
        self.error_responder = error_responder
        self.tls = tls  # certificate and key, for HTTPS
        self.protocol = "https" if tls else "http"
        self.loop = asyncio.get_running_loop()
        self.connections: set[OpenConnection] = set()
        # Those before their first request or between two, the one that has been idle for longest first. Each with the
        # time from which on a new connection may replace it.
        self.idle: OrderedDict[OpenConnection, float] = OrderedDict()
        self.keep_alive_s = 75.0  # the time between two requests
        self.all_closed = asyncio.Event()  # set when the last connection is closed
        self.unsent = MemoryBudget(MAX_UNSENT_BYTES, attrgetter("unsent_bytes"))  # the budget of slow readers
        # The budget of incomplete or unprocessed input.
        self.unfinished = MemoryBudget(MAX_UNSENT_BYTES // 4, attrgetter("unfinished_bytes"))
        self.websockets = 0
        self.cut_off = Counter({"too many": 0})  # connections closed because of their clients, by reason
        self.leaving = False  # whether each response is the last of its connection, and says so
        self.stopping = False  # whether new connections and WebSockets are closed
        self.closing_idle = False  # whether connections are closed when they become idle
        self.done: asyncio.Future[None] = self.loop.create_future()  # a future that is done
        self.done.set_result(None)
        self._limiter = limiter
        self._writes: list[Callable[[], None]] = []  # of connections, at the end of the event-loop iteration

    def limit_memory(self, max_unsent_bytes: int) -> None:
        """Change the limit of `unsent`, and that of `unfinished`, which is a quarter of it."""
        self.unsent.max_bytes = max_unsent_bytes
        self.unfinished.max_bytes = max_unsent_bytes // 4

    def admit(self, address: str, now_s: float) -> Admission | None:
        admission = self._limiter.connected(address, int(now_s * 1000))
        if admission is None:
            self.cut_off["too many"] += 1
        return admission

    def count_cut_off(self) -> Mapping[str, int]:
        return {**self.cut_off, "unsent": self.unsent.ended, "unfinished": self.unfinished.ended}

    def write_soon(self, write: Callable[[], None]) -> None:
        """Call a function of a connection in the next event-loop iteration, with those of others."""
        if not self._writes:
            self.loop.call_soon(self._write_all)
        self._writes.append(write)

    def _write_all(self) -> None:
        writes, self._writes = self._writes, []
        for write in writes:
            write()

    def remove(self, connection: OpenConnection) -> None:
        self.connections.discard(connection)
        self.idle.pop(connection, None)
        self.unsent.forget(connection)
        self.unfinished.forget(connection)
        if not self.connections:
            self.all_closed.set()


MakeProtocol = Callable[[ServerState, str, Admission], asyncio.Protocol]
"""Makes the protocol that takes a connection over, from the server's state, the remote address and the admission."""
