"""Accepts connections for a Tornado application, and looks after their deadlines and their end."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tornado import httputil

from .connection import HEAD_S, REFUSED_S, Connection
from .outbox import Outbox
from .receiver import Heads
from .unsent import Unsent

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
BACKLOG: Final = 4096
SILENT_S: Final = 30  # for a client that has gone without a word to acknowledge anything
ACCEPTED_S: Final = 0.1  # for what the kernel has handed over to become a connection; a few turns of the loop do
HANDSHAKE_S: Final = 1.0  # the same, over TLS
ACCEPT_STEP: Final = 64  # connections accepted in one turn of the event loop, over TLS
ACCEPT_PAUSE_S: Final = 1.0  # after the kernel has refused to hand one over

Refusal = Callable[[int, httputil.HTTPHeaders], tuple[httputil.HTTPHeaders, bytes]]


class ConnectionLimiter(Protocol):
    """Counts connections by the address of their other end; it is empty on a Unix socket."""

    def connected(self, address: str, now_ms: int) -> int | None:
        """A connection has come, at a time by a clock that never goes back.

        Returns:
            0, or the status to refuse its first request with, or None to end it at once: it is not counted then.
        """

    def disconnected(self, address: str, refusal: int) -> None:
        """A connection that was counted is over; `refusal` is what `connected` has returned for it."""


class Server:
    """Accepts connections for a Tornado application.

    Args:
        delegate: the application.
        refusal: makes headers and body of an answer to what is refused here, from its status and the headers
            that were understood.
        tls: certificate and key, for HTTPS.
        limiter: counts connections, and says which are too many.
        max_unsent_bytes: what clients that read too slowly may leave unread, all together.
        max_read_ahead_bytes: what is read behind requests that are not finished, of all clients together.

    Attributes:
        connections: those that are open.
        unsent: those of them whose clients read too slowly.
        read_ahead_bytes: what has been read behind requests that are not finished.
        turned_away: how many connections were closed as soon as they came.
    """

    _tick: asyncio.TimerHandle

    def __init__(
        self,
        delegate: httputil.HTTPServerConnectionDelegate,
        refusal: Refusal,
        tls: ssl.SSLContext | None = None,
        limiter: ConnectionLimiter | None = None,
        max_unsent_bytes: int = 64 << 20,
        max_read_ahead_bytes: int = 16 << 20,
    ) -> None:
        self.delegate = delegate
        self.refusal = refusal
        self.limiter = limiter
        self.loop = asyncio.get_running_loop()
        self.protocol = "https" if tls else "http"
        self.stopping = False
        self.connections: set[Connection] = set()
        self.heads: Heads = {}
        self.outbox = Outbox(self.loop)
        self.unsent = Unsent(max_unsent_bytes)
        self.max_read_ahead_bytes = max_read_ahead_bytes
        self.read_ahead_bytes = 0
        self.turned_away = 0
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.done.set_result(None)
        self._tls = tls
        self._listeners: list[asyncio.Server] = []
        self._tls_sockets: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on sockets that listen already."""
        for listening in sockets:
            if listening.family != socket.AF_UNIX:
                find_half_open(listening)
            if self._tls is None:
                server = await self.loop.create_server(lambda: Connection(self), sock=listening, backlog=BACKLOG)
                self._listeners.append(server)
            else:
                listening.listen(BACKLOG)
                listening.setblocking(False)
                self._tls_sockets.append(listening)
                self._accept_from(listening)
        self._tick = self.loop.call_later(TICK_S, self._look_at_deadlines)

    async def accept_no_more(self) -> None:
        """Leave whoever still comes in the kernel's queue, but serve all who have been accepted.

        Those have to be connections when `stopping` says that from now on each response is its connection's last.
        Where somebody else holds the sockets too, a new process finds the queue as it was.
        """
        self._close_listeners()
        await asyncio.sleep(HANDSHAKE_S if self._tls else ACCEPTED_S)
        self.stopping = True

    async def serve_the_rest(self, limit_s: float) -> None:
        """Give those who are connected some time for one more request, then close what is idle."""
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), limit_s)
        self.stop()

    def stop(self) -> None:
        """Accept no more, close what is idle, and everything else after its response."""
        self.stopping = True
        self._close_listeners()
        for handshake in self._handshakes:
            handshake.cancel()
        for connection in list(self.connections):
            if connection.idle:
                connection.close()

    async def close(self, limit_s: float) -> None:
        """Wait until all connections are gone, then end those that remain."""
        self.stop()
        if self.connections:
            try:
                await asyncio.wait_for(self._gone.wait(), limit_s)
            except TimeoutError:
                for connection in list(self.connections):
                    connection.abort()
                await self._gone.wait()
        self._tick.cancel()

    def count(self, address: str) -> int | None:
        """Count a client's connection; see `ConnectionLimiter.connected`."""
        refusal = self.limiter.connected(address, int(self.loop.time() * 1000)) if self.limiter is not None else 0
        self.turned_away += refusal is None
        return refusal

    def connection_lost(self, connection: Connection, refusal: int | None) -> None:
        """A connection is over; `refusal` is what `count` has returned for it."""
        self.connections.discard(connection)
        self.unsent.forget(connection)
        self._uncount(connection.remote_ip, refusal)
        if self.stopping and not self.connections:
            self._gone.set()

    def _uncount(self, address: str, refusal: int | None) -> None:
        if self.limiter is not None and refusal is not None:
            self.limiter.disconnected(address, refusal)

    # An event loop that does TLS tells of a connection after its handshake. Until then a silent client has a
    # descriptor as well, so these are accepted and counted here.

    def _accept_from(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPT_STEP):
            try:
                accepted, peer = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # such as no descriptors left
                log.error("cannot accept connections: %s", error.strerror)
                self.loop.remove_reader(listening.fileno())
                self.loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listening)
                return
            address = peer[0] if isinstance(peer, tuple) else ""
            refusal = self.count(address)
            if refusal is None:
                accepted.close()
                continue
            handshake = self.loop.create_task(self._handshake(accepted, address, refusal))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, address: str, refusal: int) -> None:
        accepted.setblocking(False)
        connection = Connection(self, address, refusal)
        try:
            await self.loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=REFUSED_S if refusal else HEAD_S,
            )
        except BaseException as error:
            accepted.close()
            if connection not in self.connections:
                self._uncount(address, refusal)
            if not isinstance(error, OSError):  # of the client, or its time is over
                raise

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()
        for listening in self._tls_sockets:
            if listening.fileno() >= 0:
                self.loop.remove_reader(listening.fileno())
                listening.close()

    def _look_at_deadlines(self) -> None:
        self._tick = self.loop.call_later(TICK_S, self._look_at_deadlines)
        now_s = self.loop.time()
        for connection in [connection for connection in self.connections if 0 < connection.deadline_s < now_s]:
            connection.patience_ended()


def find_half_open(listening: socket.socket) -> None:
    """Have the kernel end connections whose client is gone without a word; what is accepted inherits this."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENT_S // 3)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
