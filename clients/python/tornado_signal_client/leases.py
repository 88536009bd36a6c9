"""Leases of held offers: each offer exists as long as its client."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

from .errors import SignalError
from .rpc import RpcConnection
from .servers import Servers
from .tasks import Tasks, back_off_s, retry
from .types import Token

REFRESH_S = 40.0


class LeaseManager:
    """Leases of this client's offers.

    A WebSocket holds them. When it is closed, the next one takes them over. Without a WebSocket they are refreshed.
    """

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._tasks = Tasks()  # by code

    def keep(self, code: Token, secret: str | None, connection: RpcConnection | None) -> None:
        """Maintain the lease of a published offer."""
        self._tasks.start(self._maintain(code, secret, connection), code)

    def withdraw_later(self, code: str, withdraw: Callable[[], Awaitable[object]]) -> None:
        """Repeat a withdrawal until the server responds, or the client is closed."""
        self._tasks.start(self._retry_withdrawal(withdraw), code)

    def release(self, code: str) -> None:
        """Stop maintaining an offer that is answered or removed."""
        self._tasks.end(code)

    async def close(self) -> None:
        """Release all offers."""
        await self._tasks.cancel()

    async def _retry_withdrawal(self, withdraw: Callable[[], Awaitable[object]]) -> None:
        await asyncio.sleep(back_off_s(0))
        with contextlib.suppress(SignalError):  # the session was removed
            await retry(withdraw)

    async def _maintain(self, code: Token, secret: str | None, connection: RpcConnection | None) -> None:
        with contextlib.suppress(SignalError):  # the offer was removed
            while True:
                if connection is None:
                    await asyncio.sleep(REFRESH_S)
                else:
                    with connection.count_held():
                        await connection.closed.wait()
                await asyncio.sleep(back_off_s(0))
                connection = await retry(functools.partial(self._renew, code, secret))

    async def _renew(self, code: Token, secret: str | None) -> RpcConnection | None:
        """Hold an offer over the current connection and return it. Without one, refresh the offer and return None."""
        fields = {"code": code, "secret": secret}
        connection = await self._servers._connection(code.server)
        if connection is not None and connection.can_hold:
            await connection.call("hold", {name: value for name, value in fields.items() if value is not None})
            return connection
        await self._servers._call("refresh", {**fields, "side": "offerer"}, at=code.server)
        return None
