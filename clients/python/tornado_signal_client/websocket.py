"""The WebSocket of a server, and the pauses during which HTTP is used instead."""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final, cast

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Origin, Subprotocol

from .authorization import Authorization
from .errors import MAX_RESPONSE_BYTES, SignalError, is_transient
from .http import is_local
from .rpc import RpcConnection, Socket
from .tasks import Tasks

logging.getLogger("websockets").setLevel(logging.WARNING)  # lower levels log the messages, which can contain secrets

OPEN_S: Final = 4.0
CLOSE_S: Final = 2.0
REFUSED_S: Final = 300.0  # the pause after a refused WebSocket
MIN_RENEWAL_S: Final = 1.0  # between two renewals of a token
MAX_RENEWAL_S: Final = 3600.0
OPENING: Final = "opening"  # the key of the task that opens the connection
SUBPROTOCOL: Final = Subprotocol("signal.v1")


class _Connect(connect):
    """An opening WebSocket that does not follow redirects: another host would receive the token."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class WebSocket:
    """The WebSocket of one server, with at most one connection at a time. Without one, HTTP is used."""

    def __init__(
        self, server: str, origin: str, tls: Callable[[], ssl.SSLContext], authorization: Authorization
    ) -> None:
        self._server = server
        self._authorization = authorization
        self._tasks = Tasks()
        self._origin = Origin(origin)
        self._tls = tls
        self._connection: RpcConnection | None = None
        self._retry_at_s = 0.0  # the monotonic time of the next allowed attempt

    async def connection(self, *, open_if_closed: bool) -> RpcConnection | None:
        """Return the open connection, or None if HTTP has to be used."""
        for _ in range(2):
            await asyncio.sleep(0)  # process received frames first: one may close the connection
        # An intermediary that lets the handshake through may block every frame.
        if self._connection is not None and self._connection.lost_before_response:
            self._connection = None
            self._retry_at_s = time.monotonic() + REFUSED_S
        if open_if_closed and not self._open and time.monotonic() >= self._retry_at_s:
            if OPENING not in self._tasks:
                self._tasks.start(self._connect(), OPENING)
            await asyncio.wait([self._tasks[OPENING]])  # opening continues if this call is cancelled
        return self._connection if self._open else None

    def retry(self) -> None:
        """End the pause after a refusal: the server is also unreachable over HTTP."""
        self._retry_at_s = 0.0

    def check(self) -> None:
        """Ask the server for a sign of life if a connection is open."""
        if self._connection is not None:
            self._connection.check()

    async def close(self) -> None:
        await self._tasks.cancel()
        if self._connection is not None:
            await self._connection.close()

    @property
    def _open(self) -> bool:
        return self._connection is not None and self._connection.open

    async def _authorize(self, connection: RpcConnection) -> bool:
        """Present the token. If that fails, close the connection: over HTTP the error reaches the caller."""
        try:
            if token := await self._authorization.token():
                try:
                    await connection.call("authorize", {"token": token})
                except SignalError as error:
                    if error.status != 401 or not (newer := await self._authorization.replace(token)):
                        raise
                    await connection.call("authorize", {"token": newer})
        except BaseException as error:  # a refusal, an error of the function for tokens, or a cancellation
            await connection.close()
            if not isinstance(error, Exception):
                raise
            return False
        return True

    async def _renew(self, connection: RpcConnection) -> None:
        """Present a new token whenever the earlier one expires soon."""
        while connection.open:
            pause_s = min(max(self._authorization.pause_s(), MIN_RENEWAL_S), MAX_RENEWAL_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.closed.wait(), pause_s)
                return
            if self._authorization.pause_s() == 0 and not await self._authorize(connection):
                return

    async def _connect(self) -> None:
        """Try to open the connection. Pause if something refuses WebSockets, but not if the server is merely down."""
        try:
            socket = await _Connect(
                f"ws{self._server.removeprefix('http')}/ws",
                origin=self._origin,
                subprotocols=[SUBPROTOCOL],
                create_connection=Socket,
                compression=None,
                ping_interval=None,  # `RpcConnection` notices silence
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                max_size=MAX_RESPONSE_BYTES,
                max_queue=4,
                proxy=None if is_local(self._server) else True,
                ssl=self._tls() if self._server.startswith("https:") else None,
            )
            if socket.subprotocol == SUBPROTOCOL:
                connection = RpcConnection(self._server, cast(Socket, socket))
                if await self._authorize(connection):
                    self._connection = connection
                    self._tasks.start(self._renew(connection))
                return
            await socket.close()
        except InvalidStatus as error:
            if is_transient(error.response.status_code):
                return
        except OSError as error:
            if not isinstance(error, TimeoutError):
                return  # the HTTP request reports the error
        except (WebSocketException, ImportError, ValueError):  # ImportError: a SOCKS proxy needs another package
            pass
        self._retry_at_s = time.monotonic() + REFUSED_S
