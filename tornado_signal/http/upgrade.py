"""The handshake of WebSockets, an HTTP request like any other."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, cast

from tornado import web

from ..auth import ANY
from ..errors import InvalidParameter
from ..transport.state import Admission, ServerState
from ..transport.stream import SWITCHING_PROTOCOLS
from ..transport.websocket import VERSION_HEADER, WEBSOCKET_VERSION, MessageReceiver, WebSocket, accept
from .error_responses import cors
from .handlers import Handler
from .request import Request

STATUS_LINE: Final = b"HTTP/1.1 101 Switching Protocols\r\n"

MakeReceiver = Callable[[Request, WebSocket], MessageReceiver]


class Upgrade(Handler):
    """A path that upgrades connections to WebSockets. Some also have a page for other requests.

    `subprotocol` is chosen if the client offers it. `binary` says whether binary messages are accepted like text, and
    `needs_token` whether only the handshake can have the token.
    """

    subprotocol = ""
    binary = False
    needs_token = False
    is_page = False  # whether the request is for the page

    def initialize(self, make_receiver: MakeReceiver, protocol: str = "websocket") -> None:
        """Set the receiver of messages, and the name of the protocol for the observer of connections."""
        self._make_receiver = make_receiver
        self.protocol = protocol

    def admit(self) -> None:
        """Admit the request. A client that can set headers may send its token in one."""
        # A proxy can forward credentials of another scheme.
        if self.request.service.authority is not None and (self.needs_token or self.find_token()):
            self.action = ANY
        super().admit()

    def write_page(self) -> None:
        """Respond to a request for the page."""

    def get(self) -> None:
        """Respond with 101 and hand the connection over, which only `tornado_signal.transport` can do."""
        request, limits = self.request, self.request.service.limits
        if self.is_page:
            self.write_page()
            return
        if not hasattr(request.connection, "upgrade"):
            raise web.HTTPError(HTTPStatus.NOT_IMPLEMENTED, "WebSockets need the server of tornado_signal.transport")
        accepted = None
        if request.method == "GET":
            accepted = accept(cast(Any, request.headers), request.version, self.subprotocol)
        if accepted is None:
            raise InvalidParameter(VERSION_HEADER if self._has_other_version else "Upgrade")
        if limits.is_forwarded(request.client, request.remote_ip):
            limits.admit_forwarded(request.client)
        request.response_begun = True
        request.status = SWITCHING_PROTOCOLS
        self.ui.clear()  # it refers back to the handler, and would keep both for the garbage collector
        with request:
            cast(Any, self.detach()).upgrade(self._format_head(accepted), self._make_socket)

    head = get

    @property
    def _has_other_version(self) -> bool:
        return self.request.headers.get(VERSION_HEADER, WEBSOCKET_VERSION) != WEBSOCKET_VERSION

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write an error, and the supported version to a client of another one (RFC 6455, 4.4)."""
        if self._has_other_version:
            self.set_header(VERSION_HEADER, WEBSOCKET_VERSION)
        super().write_error(status_code, **kwargs)

    def _format_head(self, accepted: bytes) -> bytes:
        request, service = self.request, self.request.service
        common = _common_headers(request.origin, service.live.current.allowed_origins is not None)
        date = service.clock.http_date(request.now_ms).encode()
        id_ = request.request_id.encode()
        return b"%b%b%bDate: %b\r\nX-Request-Id: %b\r\n\r\n" % (STATUS_LINE, accepted, common, date, id_)

    def _make_socket(self, state: ServerState, remote_ip: str, admission: Admission) -> asyncio.Protocol:
        request, service = self.request, self.request.service
        max_bytes, address = service.live.current.max_body_bytes, request.client_address
        socket = WebSocket(state, remote_ip, admission, max_bytes, address, binary=self.binary)
        socket.receiver = self._make_receiver(request, socket)
        if service.observer is not None:
            socket.on_closed = service.observer.opened(self.protocol, request.request_id, request.origin, address)
        return socket


@lru_cache(1000)
def _common_headers(origin: str, listed: bool) -> bytes:
    headers = [("Cache-Control", "no-store"), ("Vary", Handler.vary), *(cors(origin, listed=listed) if origin else ())]
    return "".join(f"{name}: {value}\r\n" for name, value in headers).encode("latin-1")
