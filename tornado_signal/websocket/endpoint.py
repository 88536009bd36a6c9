"""GET /ws and its description."""

from typing import Final

from ..http.application import Route, document_route
from ..http.upgrade import Client, Upgrade
from ..service.operations import Operation
from .asyncapi import make_asyncapi
from .connection import PATTERN, Connection, make_methods
from .presence import Holds

SUBPROTOCOL: Final = "signal.v1"


def websocket_routes(holds: Holds, operations: tuple[Operation, ...]) -> dict[str, Route]:
    """Return the routes of GET /ws and of its document, by path."""
    methods = make_methods(operations)

    def make_receiver(client: Client) -> Connection:
        return Connection(
            client.service,
            methods,
            holds,
            client.origin,
            client.address,
            client.request_id,
            client.socket,
            traceparent=client.traceparent,
            forwarded=client.forwarded,
            grant=client.grant,
        )

    handshake = Route(PATTERN, Upgrade, {"make_receiver": make_receiver, "subprotocol": SUBPROTOCOL})
    document = document_route("/asyncapi.json", make_asyncapi(operations))
    return {PATTERN: handshake, document.pattern: document}
