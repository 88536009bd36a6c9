"""GET /ws: the handshake, an HTTP request like any other."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, cast

from ..errors import InvalidParameter
from ..http.application import Route, document_route
from ..http.handlers import Handler
from ..service.operations import Operation
from ..transport import ServerState
from ..transport.websocket import WebSocket, accept
from .asyncapi import make_asyncapi
from .connection import Connection, Method, make_methods
from .presence import Holds

PATH: Final = "/ws"
SUBPROTOCOL: Final = "signal.v1"


class Handshake(Handler):
    """GET /ws."""

    methods = ("GET", "OPTIONS")

    def initialize(self, methods: Mapping[str, Method], holds: Holds) -> None:
        self.rpc_methods = methods
        self.holds = holds

    def get(self) -> None:
        """Answer 101 and hand the connection over."""
        context, service = self.context, self.context.service
        accepted = accept(cast(Any, self.request.headers), self.request.version, SUBPROTOCOL)
        if accepted is None:
            raise InvalidParameter("Upgrade")
        methods, holds, limits = self.rpc_methods, self.holds, service.limits
        origin, address, request_id = context.origin, context.client_address, context.request_id
        forwarded = limits.client(address) is not limits.client(context.remote_ip)
        if forwarded:
            limits.admit_forwarded(address)

        def make(state: ServerState, remote_ip: str, refusal: int | None) -> asyncio.Protocol:
            socket = WebSocket(state, remote_ip, refusal, service.settings.max_body_bytes, address)
            socket.receiver = Connection(
                service, methods, holds, origin, address, request_id, socket, forwarded=forwarded
            )
            return socket

        self.set_status(HTTPStatus.SWITCHING_PROTOCOLS)
        self.clear_header("Content-Type")
        for name, value in accepted:
            self.set_header(name, value)
        self.flush()
        with context:
            self.detach().upgrade(make)


def websocket_routes(holds: Holds, operations: tuple[Operation, ...]) -> dict[str, Route]:
    """Return the routes of GET /ws and of its document, by path."""
    handshake = Route(PATH, Handshake, {"methods": make_methods(operations), "holds": holds})
    document = document_route("/asyncapi.json", make_asyncapi(operations))
    return {PATH: handshake, document.pattern: document}
