"""A client of the API, on asyncio: call by call (`SignalClient`), or as peers that connect (`client.peers`)."""

from .api import SignalClient
from .errors import APIError, Unreachable
from .types import Event, Listing, Session, SessionUpdate, Side, Token

__all__ = ["APIError", "Event", "Listing", "Session", "SessionUpdate", "Side", "SignalClient", "Token", "Unreachable"]
