"""An asyncio client of the API: single requests (`SignalClient`), or rooms and connections of peers (`Peers`).

A name is imported when it is used: peers need an extra, and `--help` needs neither httpx nor websockets.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import SignalClient
    from .errors import SignalError
    from .files import IncomingFile
    from .link import Connection
    from .peers import Peers
    from .room import Room
    from .room_peer import FileOffered, Full, Joined, Left, Message, Peer, ServerUnreachable
    from .types import Event, Listing, Session, SessionUpdate, Side, Token

__all__ = ["Connection", "IncomingFile", "Peers", "Room", "SignalClient", "SignalError"]
__all__ += ["FileOffered", "Full", "Joined", "Left", "Message", "Peer", "ServerUnreachable"]
__all__ += ["Event", "Listing", "Session", "SessionUpdate", "Side", "Token"]
_MODULES = ("types", "errors", "api", "link", "files", "room_peer", "room", "peers")  # each may import those before it


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            if hasattr(found := importlib.import_module(f".{module}", __name__), name):
                return getattr(found, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
