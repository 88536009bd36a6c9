"""Accepts connections for a Tornado application, and looks after their deadlines and their end."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from tornado import httputil

from .connection import HEAD_S, Connection
from .outbox import Outbox
from .receiver import Heads

TICK_S: Final = 1.0
BACKLOG: Final = 4096
SILENT_S: Final = 30  # for a client that has gone without a word to acknowledge anything
ACCEPTED_S: Final = 0.1  # for what the kernel has handed over to become a connection; a few turns of the loop do
HANDSHAKE_S: Final = 1.0  # the same, over TLS

Refusal = Callable[[int, httputil.HTTPHeaders], tuple[httputil.HTTPHeaders, bytes]]


class Gate(Protocol):
    """Counts connections by the address of their other end; it is empty on a Unix socket."""

    def connected(self, address: str) -> int | None:
        """A connection has come: 0, or the status to refuse its first request with, or None to end it at once."""

    def disconnected(self, address: str) -> None:
        """It is over, however it was received."""


class Server:
    """Accepts connections for a Tornado application.

    Args:
        delegate: the application.
        refusal: makes headers and body of an answer to what is refused here, from its status and the headers
            that were understood.
        tls: certificate and key, for HTTPS.
        gate: counts connections, and says which are too many.
    """

    _tick: asyncio.TimerHandle

    def __init__(
        self,
        delegate: httputil.HTTPServerConnectionDelegate,
        refusal: Refusal,
        tls: ssl.SSLContext | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.delegate = delegate
        self.refusal = refusal
        self.gate = gate
        self.loop = asyncio.get_running_loop()
        self.protocol = "https" if tls else "http"
        self.stopping = False
        self.connections: set[Connection] = set()
        self.heads: Heads = {}
        self.outbox = Outbox(self.loop)
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.done.set_result(None)
        self._tls = tls
        self._listeners: list[asyncio.Server] = []
        self._gone = asyncio.Event()

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on sockets that listen already."""
        for listening in sockets:
            if listening.family != socket.AF_UNIX:
                find_half_open(listening)
            self._listeners.append(
                await self.loop.create_server(
                    lambda: Connection(self),
                    sock=listening,
                    ssl=self._tls,
                    backlog=BACKLOG,
                    ssl_handshake_timeout=HEAD_S if self._tls else None,
                )
            )
        self._tick = self.loop.call_later(TICK_S, self._look_at_deadlines)

    async def accept_no_more(self) -> None:
        """Leave whoever still comes in the kernel's queue, but serve all who have been accepted.

        Those have to be connections when `stopping` says that from now on each response is its connection's last.
        Where somebody else holds the sockets too, a new process finds the queue as it was.
        """
        for listener in self._listeners:
            listener.close()
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
        for listener in self._listeners:
            listener.close()
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

    def connection_made(self, connection: Connection) -> int:
        """A client has connected; 0, or the status to refuse its first request with."""
        self.connections.add(connection)
        unwelcome = self.gate.connected(connection.remote_ip) if self.gate is not None else 0
        if unwelcome is None:
            connection.abort()
        return unwelcome or 0

    def connection_lost(self, connection: Connection) -> None:
        """A connection is over."""
        self.connections.discard(connection)
        if self.gate is not None:
            self.gate.disconnected(connection.remote_ip)
        if self.stopping and not self.connections:
            self._gone.set()

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
