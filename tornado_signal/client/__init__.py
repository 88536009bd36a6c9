"""A client of the API, on asyncio: call by call (`SignalClient`), or as peers that connect (`client.peers`)."""

from .api import SignalClient
from .errors import APIError, Unreachable
from .types import Event, Listing, News, Session, Side, Token

__all__ = ["APIError", "Event", "Listing", "News", "Session", "Side", "SignalClient", "Token", "Unreachable"]
