"""An asyncio client of the API: single requests (`SignalClient`), or WebRTC peers (`client.peers`)."""

from .api import SignalClient
from .errors import APIError, Unreachable
from .types import Event, Listing, Session, SessionUpdate, Side, Token

__all__ = ["APIError", "Event", "Listing", "Session", "SessionUpdate", "Side", "SignalClient", "Token", "Unreachable"]
