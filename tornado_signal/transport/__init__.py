"""An HTTP/1.1 and WebSocket server for any Tornado application, in place of `tornado.httpserver.HTTPServer`.

It calls the application through the delegates of `tornado.httputil`, and knows nothing of signaling. HTTPServer has no
limits on connections, slow readers, unfinished input and the time of each phase, and costs several times the
instructions and memory. Tornado's own `WebSocketHandler` is not supported.

`listener` accepts connections. `connection` is a client's connection with the order of its requests and its deadlines.
`state` is shared by the connections of a server. `parser` parses requests. `stream` is one request and its response,
which Tornado calls the HTTPConnection. `syntax` has checks that are stricter than llhttp's. `websocket` is a
connection after its upgrade.

Sources: RFC 9112 (messages), RFC 9110 (semantics), RFC 6455 (WebSocket), Tornado's `httputil` (interfaces), llhttp
(grammar).
"""

from .listener import Server
from .state import ServerState

__all__ = ["Server", "ServerState"]
