"""HTTP/1.1 connections parsed by llhttp, under Tornado's interfaces, and WebSockets. Knows nothing of signaling.

`listener` accepts, `connection` is one client's bytes in and out with the order of its requests and the deadlines,
`state` what the connections of a server share, `parser` makes requests of what arrives, `exchange` is one request and
its response (what Tornado calls the HTTPConnection), `syntax` what is refused although llhttp takes it, `websocket` a
connection after its upgrade.

Sources: RFC 9112 (messages), RFC 9110 (semantics), RFC 6455 (WebSocket), Tornado's `httputil` (interfaces), llhttp
(grammar).
"""

from .listener import Server
from .state import ServerState

__all__ = ["Server", "ServerState"]
