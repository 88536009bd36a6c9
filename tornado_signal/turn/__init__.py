"""TURN servers of a provider: requested regularly, and passed on to the peers (docs/turn.md#a-provider)."""

from .provider import Provider, make_provider
from .refresher import Refresher, check_provider

__all__ = ["Provider", "Refresher", "check_provider", "make_provider"]
