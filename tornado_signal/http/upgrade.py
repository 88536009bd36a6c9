"""The handshake of WebSockets: a request whose response hands its connection over, unless it is refused."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final, cast

from tornado import httputil, web

from ..auth import ANY
from ..errors import InvalidParameter, SignalError
from ..transport.state import Admission, ServerState
from ..transport.stream import SWITCHING_PROTOCOLS
from ..transport.websocket import VERSION_HEADER, WEBSOCKET_VERSION, MessageReceiver, WebSocket, accept
from .error_responses import cors
from .handlers import Handler
from .request import Request

STATUS_LINE: Final = b"HTTP/1.1 101 Switching Protocols\r\n"

MakeReceiver = Callable[[Request, WebSocket], MessageReceiver]


class Upgrade(Handler):
    """The handler of refused handshakes, and of all other requests at such a path."""

    def initialize(self, handshake: "Handshake", refusal: SignalError | None) -> None:
        self.handshake = handshake
        self._refusal = refusal

    def admit(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.handshake.admit()

    def get(self) -> None:
        if self.handshake.is_page:
            self.handshake.write_page(self)
        elif not hasattr(self.request.connection, "upgrade"):
            raise web.HTTPError(HTTPStatus.NOT_IMPLEMENTED, "WebSockets need the server of tornado_signal.transport")
        else:
            raise InvalidParameter(VERSION_HEADER if self._has_other_version else "Upgrade")

    head = get

    @property
    def _has_other_version(self) -> bool:
        return self.request.headers.get(VERSION_HEADER, WEBSOCKET_VERSION) != WEBSOCKET_VERSION

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Write an error, and the supported version to a client of another one (RFC 6455, 4.4)."""
        if self._has_other_version:
            self.set_header(VERSION_HEADER, WEBSOCKET_VERSION)
        super().write_error(status_code, **kwargs)


class Handshake(httputil.HTTPMessageDelegate):
    """A request at a path of WebSockets. Only what does not become one needs a handler, which Tornado runs.

    `subprotocol` is chosen if the client offers it. `binary` says whether binary messages are accepted like text, and
    `needs_token` whether only the handshake can have the token. `protocol` is for the observer of connections.
    """

    handler: type[Upgrade] = Upgrade
    subprotocol = ""
    binary = False
    needs_token = False
    is_page = False  # whether it is for a page instead

    def __init__(
        self, application: web.Application, request: Request, make_receiver: MakeReceiver, protocol: str = "websocket"
    ) -> None:
        self._application = application
        self.request = request
        self._make_receiver = make_receiver
        self.protocol = protocol

    def admit(self) -> None:
        """Admit the request. A client that can set headers may send its token in one."""
        request = self.request
        request.admit_request(self.find_origin)
        # A proxy can forward credentials of another scheme.
        if request.service.authority is not None and request.method != "OPTIONS":
            token = self.find_token()
            if token or self.needs_token:
                request.authorize(ANY, token)

    def find_origin(self) -> str:
        return self.request.find_origin()

    def find_token(self) -> str:
        return self.request.find_token()

    def write_page(self, handler: Upgrade) -> None:
        """Respond to a request for the page."""

    def finish(self) -> None:
        """Respond with 101 and hand the connection over, which only `tornado_signal.transport` can do."""
        request = self.request
        limits, accepted = request.service.limits, None
        if request.method == "GET" and hasattr(request.connection, "upgrade"):
            accepted = accept(cast(Any, request.headers), request.version, self.subprotocol)
        if accepted is None:
            self._handle(None)
            return
        try:
            self.admit()
            if limits.is_forwarded(request.client, request.remote_ip):
                limits.admit_forwarded(request.client)
        except SignalError as refusal:
            self._handle(refusal)
            return
        request.status = SWITCHING_PROTOCOLS
        try:
            request.connection.upgrade(self._format_head(accepted), self._make_socket)
        except Exception as error:
            request.count_error(error)
            request.connection.close()
        finally:
            request.ended()

    def _handle(self, refusal: SignalError | None) -> None:
        arguments = {"handshake": self, "refusal": refusal}
        self._application.get_handler_delegate(self.request, self.handler, arguments).finish()

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
