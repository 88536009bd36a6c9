"""GET /ws and its description."""

from typing import Final

from ..http.application import Route, document_route
from ..http.upgrade import Upgrade
from ..service.client_connection import Client
from ..service.operations import Operation
from .asyncapi import make_asyncapi
from .connection import PATTERN, RpcConnection, make_methods
from .presence import Presence

SUBPROTOCOL: Final = "signal.v1"


def websocket_routes(presence: Presence, operations: tuple[Operation, ...]) -> dict[str, Route]:
    methods = make_methods(operations)

    def make_receiver(client: Client) -> RpcConnection:
        return RpcConnection(client, methods, presence)

    handshake = Route(PATTERN, Upgrade, {"make_receiver": make_receiver, "subprotocol": SUBPROTOCOL})
    document = document_route("/asyncapi.json", make_asyncapi(operations))
    return {PATTERN: handshake, document.pattern: document}
