"""HTTP/1.1 connections parsed by llhttp, behind Tornado's interfaces, and WebSockets. Independent of signaling.

`listener` accepts connections. `connection` is a client's connection with the order of its requests and its deadlines.
`state` is shared by the connections of a server. `parser` parses requests. `exchange` is one request and its response,
which Tornado calls the HTTPConnection. `syntax` has checks that are stricter than llhttp's. `websocket` is a
connection after its upgrade.

Sources: RFC 9112 (messages), RFC 9110 (semantics), RFC 6455 (WebSocket), Tornado's `httputil` (interfaces), llhttp
(grammar).
"""

from .listener import Server
from .state import ServerState

__all__ = ["Server", "ServerState"]
