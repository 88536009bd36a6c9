"""Base classes of the endpoints of all protocols: their scopes, and clients without an Origin."""

import orjson

from .. import errors
from ..http.fields import query_token
from ..http.handlers import Handler
from ..http.request import Request
from ..http.upgrade import MakeReceiver, Upgrade
from ..relay import Relay


def make_scope(protocol: str, origin: str | None, *parts: str) -> str:
    """Return the isolation scope of an origin in a protocol. None stands for all origins together."""
    return orjson.dumps([protocol, origin, *parts]).decode()


def find_origin(request: Request, protocol: str) -> str:
    """Return the Origin of a client, or an empty text if the protocol is shared and the client sends none.

    Native programs send none. The refusal and the log name the setting that admits them.
    """
    if "Origin" in request.headers:
        return request.find_origin()
    if protocol in request.service.settings.shared_protocols:
        return ""
    try:
        return request.find_origin()
    except errors.InvalidParameter:
        error = errors.InvalidParameter("Origin", f"; programs that send none need --shared-protocols {protocol}")
        request.service.report_client(request.client_address, f"{request.pattern}: {error}")
        raise error from None


class ProtocolHandler(Handler):
    """A request over HTTP of another library's client."""

    def initialize(self, protocol: str, relay: Relay) -> None:
        self.protocol = protocol
        self.relay = relay

    def find_origin(self) -> str:
        return find_origin(self.request, self.protocol)

    def find_token(self) -> str:
        return super().find_token() or query_token(self.request.query_arguments)

    @property
    def scope_origin(self) -> str | None:
        return None if self.protocol in self.request.service.settings.shared_protocols else self.request.origin


class ProtocolUpgrade(Upgrade):
    """The handshake of another library's client. Its token is in the query, because it can send no other message."""

    needs_token = True

    def initialize(self, make_receiver: MakeReceiver, protocol: str = "") -> None:  # type: ignore[override]
        super().initialize(make_receiver, binary=True)
        self.protocol = protocol

    def find_origin(self) -> str:
        return find_origin(self.request, self.protocol)

    def find_token(self) -> str:
        return super().find_token() or query_token(self.request.query_arguments)
