"""The WebSocket of a server: when it is opened, and when HTTP is used without a try."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from typing import Final

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.typing import Origin, Subprotocol

from .errors import is_transient
from .rpc import RpcConnection

logging.getLogger("websockets").setLevel(logging.WARNING)  # below that it writes what is sent

OPEN_S: Final = 4.0
CLOSE_S: Final = 2.0
REFUSED_S: Final = 300.0  # without a try
SUBPROTOCOL: Final = Subprotocol("signal.v1")


class WebSocket:
    """At most one connection at a time.

    Args:
        server: the server's address.
        origin: the Origin of the handshake.
        tls: makes what TLS needs.
    """

    def __init__(self, server: str, origin: str, tls: Callable[[], ssl.SSLContext]) -> None:
        self._server = server
        self._origin = Origin(origin)
        self._tls = tls
        self._connection: RpcConnection | None = None
        self._opening: asyncio.Task[None] | None = None
        self._again_s = 0.0  # when it may be tried, by the monotonic clock

    async def connection(self, *, wanted: bool) -> RpcConnection | None:
        """The connection that is open; None if HTTP has to do.

        Args:
            wanted: whether to open one if there is none.
        """
        for _ in range(2):
            await asyncio.sleep(0)  # what has come is read first: it may be the end of the connection
        if self._connection is not None and self._connection.useless:  # something lets only its beginning through
            self._connection = None
            self._again_s = time.monotonic() + REFUSED_S
        if wanted and not self._open and time.monotonic() >= self._again_s:
            if self._opening is None:
                self._opening = asyncio.create_task(self._connect())
            await asyncio.wait([self._opening])  # it goes on if this call is cancelled
        return self._connection if self._open else None

    def retry(self) -> None:
        """Forget a refusal: the server could not be reached at all."""
        self._again_s = 0.0

    async def close(self) -> None:
        """Close the connection."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()

    @property
    def _open(self) -> bool:
        return self._connection is not None and self._connection.open

    async def _connect(self) -> None:
        try:
            socket = await connect(
                f"ws{self._server.removeprefix('http')}/ws",
                origin=self._origin,
                subprotocols=[SUBPROTOCOL],
                compression=None,
                open_timeout=OPEN_S,
                close_timeout=CLOSE_S,
                max_size=None,
                ssl=self._tls() if self._server.startswith("https:") else None,
            )
            if socket.subprotocol == SUBPROTOCOL:
                self._connection = RpcConnection(self._server, socket)
                return
            await socket.close()
        except InvalidStatus as error:
            if is_transient(error.response.status_code):
                return
        except OSError as error:
            if not isinstance(error, TimeoutError):
                return  # HTTP will say what is wrong
        except (WebSocketException, ImportError, ValueError):  # ImportError: of a proxy with SOCKS
            pass
        finally:
            self._opening = None
        self._again_s = time.monotonic() + REFUSED_S
