"""Base classes of the endpoints of all protocols: their scopes, tokens, and clients without an Origin."""

import orjson

from .. import errors
from ..http.fields import query_token
from ..http.handlers import Handler
from ..http.upgrade import Upgrade
from ..service.service import Service


def make_scope(protocol: str, origin: str | None, *parts: str) -> str:
    """Return the isolation scope of an origin in a protocol. None stands for all origins together."""
    return orjson.dumps([protocol, origin, *parts]).decode()


def find_scope(service: Service, protocol: str, origin: str, *parts: str) -> str:
    """Return the isolation scope of a client. A shared protocol has one for all origins."""
    return make_scope(protocol, None if protocol in service.settings.shared_protocols else origin, *parts)


class ProtocolHandler(Handler):
    """A request of another library's client. Its token is in the query, because a handshake has no other place."""

    protocol: str

    def find_origin(self) -> str:
        """Return the Origin of a client, or an empty text if the protocol is shared and the client sends none.

        Native programs send none. The refusal and the log name the setting that admits them.
        """
        request = self.request
        if "Origin" in request.headers:
            return request.find_origin()
        if self.protocol in request.service.settings.shared_protocols:
            return ""
        try:
            return request.find_origin()
        except errors.InvalidParameter:
            advice = f"; programs that send none need --shared-protocols {self.protocol}"
            error = errors.InvalidParameter("Origin", advice)
            request.service.report_client(request.client_address, f"{request.pattern}: {error}")
            raise error from None

    def find_token(self) -> str:
        return super().find_token() or query_token(self.request.query_arguments)


class ProtocolUpgrade(ProtocolHandler, Upgrade):
    """The handshake of another library's client."""

    binary = True
    needs_token = True

    def find_origin(self) -> str:
        return self.request.find_page_origin() if self.is_page else super().find_origin()
