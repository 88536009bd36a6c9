"""Held offers of peers, each with its own secret."""

import asyncio
import contextlib
import secrets

from .api import SignalClient
from .errors import SignalError
from .types import Token

TTL_MS = 120_000  # how long an offer outlives a peer that disappeared without withdrawing it


def new_secret() -> str:
    """Return a random secret for one side of one session."""
    return secrets.token_urlsafe(24)


async def publish_held(client: SignalClient, topic: str, info: str, offer: str, secret: str) -> Token:
    """Publish an offer that exists as long as the client, and return its code. If cancelled, withdraw the offer."""
    publishing = asyncio.create_task(_publish(client, topic, info, offer, secret))
    try:
        return await asyncio.shield(publishing)
    except asyncio.CancelledError:
        with contextlib.suppress(SignalError):
            await withdraw(client, await publishing, secret)
        raise


async def withdraw(client: SignalClient, code: str, secret: str) -> None:
    """Withdraw an offer. An error is ignored: the client repeats it in the background, and the offer expires."""
    with contextlib.suppress(SignalError):
        await client.withdraw(code, "offerer", secret=secret)


async def _publish(client: SignalClient, topic: str, info: str, offer: str, secret: str) -> Token:
    try:
        return await client.offer(topic, info, offer, ttl_ms=TTL_MS, secret=secret, hold=True)
    except SignalError as error:
        if error.status != 400 or not error.text.endswith("ttl"):
            raise
        return await client.offer(topic, info, offer, secret=secret, hold=True)  # `TTL_MS` exceeds the server's limit
