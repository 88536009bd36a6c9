"""The handshakes of all protocols: their scopes, tokens, and clients without an Origin."""

import orjson

from .. import errors
from ..http.fields import query_token
from ..http.request import Request
from ..http.upgrade import Handshake
from ..service.service import Service


def make_scope(protocol: str, origin: str | None, *parts: str) -> str:
    """Return the isolation scope of an origin in a protocol. None stands for all origins together."""
    return orjson.dumps([protocol, origin, *parts]).decode()


def find_scope(service: Service, protocol: str, origin: str, *parts: str) -> str:
    """Return the isolation scope of a client. A shared protocol has one for all origins."""
    return make_scope(protocol, None if protocol in service.settings.shared_protocols else origin, *parts)


def find_client_origin(request: Request, protocol: str) -> str:
    """Return the Origin of a client, or an empty text if the protocol is shared and the client sends none.

    Native programs send none. The refusal and the log name the setting that admits them.
    """
    if "Origin" not in request.headers and protocol in request.service.settings.shared_protocols:
        return ""
    try:
        return request.find_origin()
    except errors.InvalidParameter:
        if "Origin" in request.headers:
            raise
        advice = f"; programs that send none need --shared-protocols {protocol}"
        error = errors.InvalidParameter("Origin", advice)
        request.service.report_client(request.client_address, f"{request.pattern}: {error}")
        raise error from None


def find_token(request: Request) -> str:
    """Return the token of a client. It is in the query, because a handshake has no other place."""
    return request.find_token() or query_token(request.query_arguments)


class ProtocolHandshake(Handshake):
    """A request at the path of another library's client. Some paths also have a page."""

    binary = True
    needs_token = True

    def find_origin(self) -> str:
        request = self.request
        return request.find_page_origin() if self.is_page else find_client_origin(request, self.protocol)

    def find_token(self) -> str:
        return find_token(self.request)
