"""The handshake of WebSockets, an HTTP request like any other."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from tornado import web

from ..auth import ANY
from ..errors import InvalidParameter
from ..service.client_connection import Client
from ..transport.state import Admission, ServerState
from ..transport.stream import SWITCHING_PROTOCOLS
from ..transport.syntax import format_head
from ..transport.websocket import VERSION_HEADER, WEBSOCKET_VERSION, MessageReceiver, WebSocket, accept
from .handlers import Handler

MakeReceiver = Callable[[Client], MessageReceiver]

NO_SUBPROTOCOL: Final = ""


class Upgrade(Handler):
    """A path that upgrades connections to WebSockets."""

    protocol = "websocket"  # for the observer of connections
    needs_token = False  # whether the handshake has the token, because no message can

    def initialize(
        self, make_receiver: MakeReceiver, subprotocol: str = NO_SUBPROTOCOL, *, binary: bool = False
    ) -> None:
        """Set what the connection becomes. With `binary`, binary messages are accepted like text."""
        self.make_receiver = make_receiver
        self.subprotocol = subprotocol
        self.binary = binary

    def admit(self) -> None:
        """Admit the request. A client that can set headers may send its token in one."""
        # A proxy can forward credentials of another scheme.
        if self.request.service.authority is not None and (self.needs_token or self.find_token()):
            self.action = ANY
        super().admit()

    def get(self) -> None:
        """Respond with 101 and hand the connection over, which only `tornado_signal.transport` can do."""
        request, service = self.request, self.request.service
        if not hasattr(request.connection, "upgrade"):
            raise web.HTTPError(HTTPStatus.NOT_IMPLEMENTED, "WebSockets need the server of tornado_signal.transport")
        accepted = accept(cast(Any, request.headers), request.version, self.subprotocol)
        if accepted is None:
            raise InvalidParameter(VERSION_HEADER if self._has_other_version else "Upgrade")
        limits, address = service.limits, request.client_address
        forwarded = request.client is not limits.client(request.remote_ip)
        if forwarded:
            limits.admit_forwarded(request.client)
        make_receiver, binary = self.make_receiver, self.binary
        origin, request_id, traceparent = request.origin, request.request_id, request.traceparent
        query, grant, protocol = request.query_arguments, request.grant, self.protocol

        def make(state: ServerState, remote_ip: str, admission: Admission) -> asyncio.Protocol:
            max_bytes = service.settings.max_body_bytes
            socket = WebSocket(state, remote_ip, admission, max_bytes, address, binary=binary)
            socket.receiver = make_receiver(
                Client(service, origin, address, request_id, traceparent, forwarded, socket, query, grant)
            )
            if service.observer is not None:
                socket.on_closed = service.observer.opened(protocol, request_id, origin, address)
            return socket

        request.begun = True
        request.status = SWITCHING_PROTOCOLS
        headers = [*accepted, ("Cache-Control", "no-store"), *self.common_headers().items()]
        self.ui.clear()  # it refers back to the handler, and would keep both for the garbage collector
        with request:
            cast(Any, self.detach()).upgrade(format_head(request.status, "Switching Protocols", headers), make)

    @property
    def _has_other_version(self) -> bool:
        return self.request.headers.get(VERSION_HEADER, WEBSOCKET_VERSION) != WEBSOCKET_VERSION

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write an error, and the supported version to a client of another one (RFC 6455, 4.4)."""
        if self._has_other_version:
            self.set_header(VERSION_HEADER, WEBSOCKET_VERSION)
        super().write_error(status_code, **kwargs)

    def head(self) -> None:
        """Respond as to a GET that is not a handshake."""
        raise InvalidParameter("Upgrade")
