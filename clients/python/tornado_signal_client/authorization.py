"""The token that a client presents (docs/authorization.md)."""

import asyncio
import base64
import inspect
import json
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

RENEW_S: Final = 30.0  # before its expiry a token is replaced, or at half of a shorter lifetime

TokenSource = str | Callable[[], str | Awaitable[str]]
"""A token, or a function, possibly asynchronous, that returns a new one."""


class Authorization:
    """The current token of a client."""

    def __init__(self, source: TokenSource | None) -> None:
        self._source = source
        self._token = source if isinstance(source, str) else ""
        self._renewing = asyncio.Lock()  # so that calls at the same time renew the token once
        self._renew_at_s = 0.0 if callable(source) else math.inf  # Unix time

    async def token(self) -> str:
        """Return the token, or an empty text for no token. A function is called again when its token expires soon."""
        if time.time() >= self._renew_at_s:
            async with self._renewing:
                if time.time() >= self._renew_at_s:
                    await self._renew()
        return self._token

    async def replace(self, rejected: str) -> str | None:
        """Return a newer token than one that the server has refused, or None if there is none.

        Callers do this once for a request. A function can return a new token that the server refuses each time.
        """
        async with self._renewing:
            if rejected == self._token:
                await self._renew()
        return None if self._token == rejected else self._token

    async def _renew(self) -> None:
        if callable(self._source):
            made = self._source()
            self._token = await made if inspect.isawaitable(made) else made
            self._renew_at_s = renewal_s(self._token)

    def pause_s(self) -> float:
        """Return the time until the next renewal. Infinite if there is none."""
        return max(self._renew_at_s - time.time(), 0.0)


def renewal_s(token: str) -> float:
    """Return when to replace a token, Unix time. Infinite without an expiry, and after it: a clock can be wrong."""
    try:
        payload = token.split(".")[1]
        expires_s = float(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))["exp"])
    except (ValueError, LookupError, TypeError):
        return math.inf
    now_s = time.time()
    if now_s >= expires_s:
        return math.inf
    return max(expires_s - RENEW_S, now_s + (expires_s - now_s) / 2)
