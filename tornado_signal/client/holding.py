"""Offers of peers: with a secret of their own, and held."""

import secrets

from .api import SignalClient
from .errors import APIError
from .types import Token

TTL_MS = 120_000  # how long an offer outlives a peer that vanished without a word


def new_secret() -> str:
    """A secret for one side of one session."""
    return secrets.token_urlsafe(24)


async def publish_held(client: SignalClient, topic: str, info: str, offer: str, secret: str) -> Token:
    """Publish an offer that lives as long as the client; its code."""
    try:
        return await client.offer(topic, info, offer, ttl_ms=TTL_MS, secret=secret, hold=True)
    except APIError as error:
        if error.status != 400 or not error.text.endswith("ttl"):
            raise
        return await client.offer(topic, info, offer, secret=secret, hold=True)  # so long is not allowed
