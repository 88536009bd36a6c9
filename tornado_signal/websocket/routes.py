"""GET /ws and its description."""

from functools import partial

from ..http.application import Route, document_route
from ..http.upgrade import Upgrade
from ..service.operations import Operation
from .asyncapi import make_asyncapi
from .connection import PATTERN, RpcConnection, make_methods
from .presence import Presence


class RpcUpgrade(Upgrade):
    """GET /ws."""

    subprotocol = "signal.v1"


def websocket_routes(presence: Presence, operations: tuple[Operation, ...]) -> dict[str, Route]:
    arguments = {"make_receiver": partial(RpcConnection, make_methods(operations), presence)}
    handshake = Route(PATTERN, RpcUpgrade, arguments)
    document = document_route("/asyncapi.json", make_asyncapi(operations))
    return {PATTERN: handshake, document.pattern: document}
