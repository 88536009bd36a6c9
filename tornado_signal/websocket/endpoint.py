"""GET /ws: the handshake, an HTTP request like any other."""

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Final

from ..api.operations import Operation
from ..errors import InvalidParameter
from ..http.request import Endpoint, Request
from ..http.routes import document_endpoint
from ..http.site import Site
from ..transport import ServerState
from ..transport.websocket import WebSocket, accept
from .asyncapi import make_asyncapi
from .connection import Connection, make_methods
from .presence import Holds

PATH: Final = "/ws"
SUBPROTOCOL: Final = "signal.v1"


def websocket_endpoints(
    operations: tuple[Operation, ...], holds_of: Callable[[Site], Holds] | None = None
) -> dict[str, Endpoint]:
    """What answers GET /ws, and the document that describes it, by their paths.

    `holds_of` returns the held offers of a site, always the same: endpoints that take the place of others share them.
    """
    document = document_endpoint("/asyncapi.json", make_asyncapi(operations))
    return {PATH: websocket_endpoint(operations, holds_of or functools.cache(Holds)), document.pattern: document}


def websocket_endpoint(operations: Sequence[Operation], holds_of: Callable[[Site], Holds]) -> Endpoint:
    """What answers GET /ws."""
    methods = make_methods(operations)

    async def answer(request: Request) -> None:
        accepted = accept(request.headers, request.start_line.version, SUBPROTOCOL)
        if accepted is None:
            raise InvalidParameter("Upgrade")
        headers = request.response_headers()
        del headers["Content-Type"]
        for name, value in accepted:
            headers[name] = value

        holds = holds_of(request.site)
        site, origin, address, name = request.site, request.origin, request.client_address, request.request_id
        forwarded = site.limits.client(address) is not site.limits.client(request.remote_ip)
        if forwarded:
            site.limits.admit_forwarded(address)

        def make(state: ServerState, remote_ip: str, refusal: int | None) -> asyncio.Protocol:
            socket = WebSocket(state, remote_ip, refusal, site.service.settings.max_body_bytes, address)
            socket.receiver = Connection(site, methods, holds, origin, address, name, socket, forwarded=forwarded)
            return socket

        request.status, request.begun = 101, True
        request.connection.upgrade(headers.get_all(), make)
        request.ended()

    return Endpoint(PATH, ("GET", "OPTIONS"), answer)
