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

_MODULES = {
    "SignalClient": "api",
    "SignalError": "errors",
    "IncomingFile": "files",
    "Connection": "link",
    "Peers": "peers",
    "Room": "room",
}
_MODULES |= dict.fromkeys(("Event", "Listing", "Session", "SessionUpdate", "Side", "Token"), "types")

__all__ = [
    "Connection",
    "Event",
    "FileOffered",
    "Full",
    "IncomingFile",
    "Joined",
    "Left",
    "Listing",
    "Message",
    "Peer",
    "Peers",
    "Room",
    "ServerUnreachable",
    "Session",
    "SessionUpdate",
    "Side",
    "SignalClient",
    "SignalError",
    "Token",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_MODULES.get(name, 'room_peer')}", __name__), name)
