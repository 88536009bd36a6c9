"""Accepts connections for a Tornado application, and looks after their deadlines and their end."""

import asyncio
import contextlib
import functools
import itertools
import logging
import math
import os
import random
import select
import socket
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any, Final

from ..system.hourly import HourlyWarnings
from ..system.loop import in_slices
from .connection import HEAD_S, REJECT_S, Connection
from .state import ABORT_STEP, Admission, OpenConnection, ServerState
from .syntax import format_head
from .websocket import WebSocket

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
BACKLOG: Final = 4096
UNSENT_BYTES: Final = 128 << 10  # unsent data of a connection at which the kernel takes no more
SILENT_S: Final = 30  # the kernel closes a connection whose client acknowledges nothing for this time
ACCEPTED_S: Final = 0.1  # time for accepted sockets to become connections; a few event-loop iterations are enough
HANDSHAKE_S: Final = 1.0  # the same, over TLS
ACCEPT_STEP: Final = 64  # TLS connections accepted per event-loop iteration
BURST_STEP: Final = 16  # others, in addition to the one that the event loop accepts
DEADLINES_STEP: Final = 50  # expired deadlines handled per event-loop iteration
CLOSE_STEP: Final = 100  # connections closed per event-loop iteration, if they are idle
IDLE_SEARCHED: Final = 500  # idle connections: a client can cause it with each new connection
CLOSE_LATER_STEP: Final = 1000  # WebSockets whose end is planned per event-loop iteration
ACCEPT_LOG_S: Final = 60.0  # a failed accept is logged if there was none for this time
ACCEPT_PAUSE_S: Final = 1.0  # pause after a failed accept
PLAIN_HTTP_ERROR: Final = b'{"error":"This port is for HTTPS: use https:// or wss://"}'
PLAIN_HTTP_FIELDS: Final = (
    ("Content-Type", "application/json"),
    ("Content-Length", str(len(PLAIN_HTTP_ERROR))),
    ("Connection", "close"),
)
PLAIN_HTTP_RESPONSE: Final = format_head(400, "Bad Request", PLAIN_HTTP_FIELDS) + PLAIN_HTTP_ERROR


class Server:
    """Accepts connections for a Tornado application."""

    _tick: asyncio.TimerHandle

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self._loop = state.loop
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._paused: list[socket.socket] = []  # those of a server that leaves connections to other processes
        self._listeners: list[asyncio.Server] = []
        self._tls_sockets: list[socket.socket] = []
        self._accept_failed_s = -math.inf
        self._handshakes: set[asyncio.Task[None]] = set()
        self._plain_http = HourlyWarnings()

    async def start(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on sockets that listen already."""
        await self._accept_on(sockets)
        self._tick = self._loop.call_later(TICK_S, self._check_deadlines)

    async def accept(self, accepting: bool) -> None:
        """Accept connections, or leave them to other processes that listen on the same sockets."""
        if self._closed or accepting == (not self._paused):
            return
        if accepting:
            sockets, self._paused = self._paused, []
            await self._accept_on(sockets)
        else:
            # The event loop closes a socket when it stops accepting.
            self._paused = [socket.socket(fileno=os.dup(listening.fileno())) for listening in self._sockets]
            self._stop_accepting()

    async def _accept_on(self, sockets: Iterable[socket.socket]) -> None:
        self._sockets = list(sockets)
        for listening in self._sockets:
            if listening.family != socket.AF_UNIX:
                prepare(listening)
            if self.state.tls is None:
                queue = select.poll()
                queue.register(listening, select.POLLIN)
                make = functools.partial(self._make_connection, listening, queue)
                self._listeners.append(await self._loop.create_server(make, sock=listening, backlog=BACKLOG))
            else:
                listening.listen(BACKLOG)
                listening.setblocking(False)
                self._tls_sockets.append(listening)
                self._accept_from(listening)
        if self._closed:  # meanwhile
            self._stop_accepting()

    def make_room(self) -> bool:
        """Abort the replaceable connection with the nearest deadline and return whether there was one."""
        replaceable_connections = [
            connection
            for connection in self.state.connections
            if isinstance(connection, Connection) and connection.replaceable
        ]
        if replaceable_connections:
            min(replaceable_connections, key=lambda connection: connection.deadline_s).abort()
        return bool(replaceable_connections)

    def close_idle(self, chosen: Callable[[str], bool] | None = None) -> bool:
        """Close the connection that has been idle for longest, and return whether there was one.

        One without a request counts once it has been silent for HEAD_S, because its request may be on the way. At most
        `IDLE_SEARCHED` are searched. With `chosen`, a predicate of the address of the other end, a tenth of the chosen
        ones is closed, at least one, so that few new connections search.
        """
        idle, now_s = self.state.idle, self._loop.time()
        found: list[OpenConnection] = []
        for connection, replaceable_s in list(itertools.islice(idle.items(), IDLE_SEARCHED)):
            if not connection.idle:  # a request has begun to arrive
                del idle[connection]
            elif replaceable_s <= now_s and (chosen is None or chosen(connection.remote_ip)):
                found.append(connection)
                if chosen is None:
                    break
        del found[1 + len(found) // 10 :]
        for connection in found:
            del idle[connection]
            connection.abort()
        return bool(found)

    def leave(self) -> None:
        """Make each response the last of its connection, so that the next request goes elsewhere."""
        self.state.leaving = True

    async def accept_no_more(self) -> None:
        """Accept the connections in the kernel's queue once more, leave later ones there, and serve the accepted ones.

        Accepted sockets must be connections before `stopping` closes new ones. Another process that holds the same
        sockets accepts the later connections.
        """
        self.leave()
        self._close_listeners()  # after accepting once more
        await asyncio.sleep(HANDSHAKE_S if self.state.tls else ACCEPTED_S)
        self.state.stopping = True

    def close_websockets(self, seconds: float) -> None:
        """Close all WebSockets, spread over `seconds`."""

        def close_later(connection: OpenConnection) -> None:
            self._loop.call_later(random.uniform(0, seconds), connection.close)

        websockets = [connection for connection in self.state.connections if isinstance(connection, WebSocket)]
        in_slices(websockets, close_later, CLOSE_LATER_STEP)

    async def serve_the_rest(self, limit_s: float) -> None:
        """Give open connections some time for one more request, then close what is idle.

        Requests that have arrived by then are begun. Proxies do not repeat a POST whose connection is closed.
        """
        await self._wait_until_closed(limit_s)
        self.stop()
        await self._wait_until_closed(ACCEPTED_S)

    def stop(self) -> None:
        """Accept no more, close what is idle, and everything else after its response."""
        self.leave()
        self.state.stopping = self.state.closing_idle = True
        self._close_listeners()
        for handshake in self._handshakes:
            handshake.cancel()
        in_slices(list(self.state.connections), self._close_idle, CLOSE_STEP)

    async def close(self, limit_s: float) -> None:
        """Wait until all connections are gone, then end those that remain."""
        self.stop()
        await self._wait_until_closed(limit_s)
        in_slices(list(self.state.connections), methodcaller("abort"), ABORT_STEP)
        await self._wait_until_closed(None)
        self._tick.cancel()

    async def _wait_until_closed(self, limit_s: float | None) -> None:
        self.state.all_closed.clear()
        if self.state.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.state.all_closed.wait(), limit_s)

    def _close_idle(self, connection: OpenConnection) -> None:
        if connection.idle and not connection.readable:
            connection.close()

    def _make_connection(self, listening: socket.socket, queue: select.poll) -> Connection:
        """Return the protocol of a connection that the event loop has accepted, and accept others that wait.

        uvloop accepts one per iteration. The last of a burst would wait for as many iterations, with all their work.
        """
        # Most connections come alone. An attempt to accept another one would fail with an exception, which costs more.
        if queue.poll(0) and (others := self._accept_some(listening, BURST_STEP)):
            self._loop.call_soon(self._loop.call_soon, self._admit, others)  # after this one, in their order
        return Connection(self.state)

    # With TLS an event loop reports a connection after its handshake. Until then a silent client occupies a
    # descriptor, so the connections are accepted and counted here. Without TLS, only some are: the others of a burst,
    # and those that wait when the server stops accepting.

    def _accept_from(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        self._admit(self._accept_some(listening, ACCEPT_STEP))

    def _accept_some(self, listening: socket.socket, max_count: int) -> list[tuple[socket.socket, Any]]:
        accepted: list[tuple[socket.socket, Any]] = []
        while len(accepted) < max_count:
            try:
                accepted.append(listening.accept())
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:  # such as no descriptors left
                if self.state.tls is None:  # the event loop also accepts, gets this error and logs it
                    break
                now_s = self._loop.time()
                if now_s - self._accept_failed_s >= ACCEPT_LOG_S:
                    log.error("cannot accept connections: %s", error.strerror)
                self._accept_failed_s = now_s
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_from, listening)
                break
        return accepted

    def _admit(self, connections: list[tuple[socket.socket, Any]]) -> None:
        for accepted, peer in connections:
            address = peer[0] if isinstance(peer, tuple) else ""
            admission = self.state.admit(address, self._loop.time())
            if admission is None:
                accepted.close()
                continue
            handshake = self._loop.create_task(self._handshake(accepted, address, admission))
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)

    async def _handshake(self, accepted: socket.socket, address: str, admission: Admission) -> None:
        """Make an accepted socket a connection, after its handshake if there is TLS. Errors of the client end it."""
        accepted.setblocking(False)
        connection = Connection(self.state, address, admission)
        limit_s = (REJECT_S if admission.reject_status else HEAD_S) if self.state.tls else None
        try:
            if limit_s is not None and (await self._peek(accepted, limit_s)).isalpha():
                self._refuse_plain_http(accepted, address)
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self.state.tls, ssl_handshake_timeout=limit_s
            )
        except BaseException as error:
            accepted.close()
            connection.handshake_failed()
            if not isinstance(error, OSError):  # an OSError, such as TimeoutError, is the client's
                raise
            # Break a reference cycle: the loop's future, this exception, and its frames, which keep the connection.
            error.__traceback__ = None

    async def _peek(self, accepted: socket.socket, limit_s: float) -> bytes:
        """Return a client's first byte, and leave it in the kernel. Raise OSError if there is none in `limit_s`."""
        readable = asyncio.Event()
        self._loop.add_reader(accepted.fileno(), readable.set)
        try:
            async with asyncio.timeout(limit_s):
                await readable.wait()
        finally:
            self._loop.remove_reader(accepted.fileno())
        return accepted.recv(1, socket.MSG_PEEK)

    def _refuse_plain_http(self, accepted: socket.socket, address: str) -> None:
        """Respond to a request without TLS, which begins with the letters of its method, and raise an OSError."""
        if self._plain_http.due(address, self._loop.time()):
            log.warning("a client sends plain HTTP to the port for HTTPS: its URL needs https:// or wss://")
        accepted.recv(1 << 16)  # what is not read would reset the connection, and the client could not read this
        accepted.send(PLAIN_HTTP_RESPONSE)
        raise ConnectionAbortedError

    def _close_listeners(self) -> None:
        self._closed = True
        # The kernel resets what is in the queue of a closed socket, and proxies do not repeat a POST. Accept it first.
        for accepting in itertools.chain(self._tls_sockets, *(listener.sockets for listener in self._listeners)):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(accepting.fileno())) as queue:
                queue.setblocking(False)
                self._accept(queue)
        self._stop_accepting()
        for listening in self._paused:
            listening.close()

    def _stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.close()
        for listening in self._tls_sockets:
            if listening.fileno() >= 0:
                self._loop.remove_reader(listening.fileno())
                listening.close()
        self._listeners.clear()
        self._tls_sockets.clear()

    def _check_deadlines(self) -> None:
        self._tick = self._loop.call_later(TICK_S, self._check_deadlines)
        now_s = self._loop.time()
        due = [connection for connection in self.state.connections if 0 < connection.deadline_s < now_s]
        in_slices(due, self._check_deadline, DEADLINES_STEP)  # pings of thousands of WebSockets can be due

    def _check_deadline(self, connection: OpenConnection) -> None:
        if connection in self.state.connections and 0 < connection.deadline_s < self._loop.time():
            connection.deadline_passed()


def prepare(listening: socket.socket) -> None:
    """Configure a socket: the kernel closes connections of vanished clients, and buffers little unsent data.

    Accepted sockets inherit it. Otherwise the kernel buffers megabytes for each client that does not read, until no
    memory is left for new connections. Options that the system does not have are omitted, as on macOS.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NOTSENT_LOWAT", UNSENT_BYTES),
        ("TCP_KEEPIDLE", SILENT_S),
        ("TCP_KEEPINTVL", SILENT_S // 3),
        ("TCP_USER_TIMEOUT", SILENT_S * 1000),
    ):
        if (option := getattr(socket, name, None)) is not None:
            listening.setsockopt(socket.IPPROTO_TCP, option, value)
