"""Offers that live as long as their client."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Coroutine

from .errors import APIError
from .rpc import RpcConnection
from .servers import Servers, back_off_s
from .types import Token

REFRESH_S = 40.0


class LeaseManager:
    """Offers are held over a WebSocket, each new one takes them over, and without one they are refreshed."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self, code: Token, secret: str | None, connection: RpcConnection | None) -> None:
        """Keep an offer that has been published.

        Args:
            code: its code.
            secret: its owner's.
            connection: which one holds it.
        """
        self._start(code, self._keep(code, secret, connection))

    def withdraw_later(self, code: str, withdraw: Callable[[], Awaitable[object]]) -> None:
        """Repeat a withdrawal until the server responds, or the client is closed.

        Args:
            code: the code of the session.
            withdraw: sends the withdrawal.
        """
        self._start(code, self._withdraw(withdraw))

    def forget(self, code: str) -> None:
        """Keep an offer no longer, as it is answered or gone."""
        task = self._tasks.pop(code, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Keep none."""
        for code in list(self._tasks):
            self.forget(code)

    def _start(self, code: str, work: Coroutine[None, None, None]) -> None:
        self.forget(code)
        task = self._tasks[code] = asyncio.create_task(work)
        task.add_done_callback(lambda task: self._tasks.get(code) is task and self._tasks.pop(code))

    async def _withdraw(self, withdraw: Callable[[], Awaitable[object]]) -> None:
        for attempt in itertools.count():
            await asyncio.sleep(back_off_s(attempt))
            try:
                await withdraw()
            except APIError as error:
                if error.is_transient:
                    continue
            return

    async def _keep(self, code: Token, secret: str | None, connection: RpcConnection | None) -> None:
        with contextlib.suppress(APIError):  # it is gone
            while True:
                if connection is None:
                    await asyncio.sleep(REFRESH_S)
                else:
                    with connection.holding():
                        await connection.ended.wait()
                connection = await self._take_over(code, secret)

    async def _take_over(self, code: Token, secret: str | None) -> RpcConnection | None:
        """Hold an offer over the connection that there is now, which is returned, else refresh it."""
        fields = {"code": code, "secret": secret}
        for attempt in itertools.count():
            await asyncio.sleep(back_off_s(attempt))
            try:
                connection = await self._servers.connection(code.server)
                if connection is not None and connection.may_hold:
                    await connection.call("hold", {name: value for name, value in fields.items() if value is not None})
                    return connection
                await self._servers.call("refresh", {**fields, "side": "offerer"}, at=code.server)
                return None
            except APIError as error:
                if not error.is_transient:
                    raise
        raise AssertionError("unreachable")
