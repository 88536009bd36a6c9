"""JSON-RPC 2.0: messages into requests, results and errors into messages. No I/O.

Source: https://www.jsonrpc.org/specification
"""

from typing import Any, Final

from ..service import wire

MAX_BATCH: Final = 100
MAX_ID_BYTES: Final = 128  # as JSON; an id stays in memory while its request waits
ID_TYPES: Final = (str, int, float, type(None))
MAX_FLOAT_ID: Final = 2.0**53  # the parser rounds larger numbers, or makes them infinite

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
_MESSAGES: Final = {
    PARSE_ERROR: "Parse error",
    INVALID_REQUEST: "Invalid Request",
    METHOD_NOT_FOUND: "Method not found",
    INVALID_PARAMS: "Invalid params",
}


RpcRequest = tuple[bytes, str, dict[str, Any]]
"""One request: its id as JSON, or empty for a notification, which has no response; its method; its parameters."""


def parse(message: bytes) -> tuple[list[RpcRequest | bytes], bool]:
    """Parse a message.

    Return the requests in order, and whether they are a batch. An error response replaces each invalid one.
    """
    try:
        parsed = wire.parse(message)
    except ValueError:
        return [own_error(PARSE_ERROR)], False
    if type(parsed) is not list:
        return [_request(parsed)], False
    if not 1 <= len(parsed) <= MAX_BATCH:
        return [own_error(INVALID_REQUEST)], False
    return [_request(request) for request in parsed], True


def decode(message: bytes) -> Any:
    """Return decoded JSON, or None for what is not JSON."""
    try:
        return wire.parse(message)
    except ValueError:
        return None


def _request(request: Any) -> RpcRequest | bytes:
    """Return a request, or the response to what is not a valid one, which is empty for a notification."""
    if type(request) is not dict or request.get("jsonrpc") != "2.0" or type(request.get("method")) is not str:
        return own_error(INVALID_REQUEST)
    id_ = encode_id(request["id"]) if "id" in request else b""
    if id_ is None:
        return own_error(INVALID_REQUEST)
    params = request.get("params", {})
    if type(params) is not dict:
        return own_error(INVALID_PARAMS, id_) if id_ else b""
    return id_, request["method"], params


def encode_id(value: Any) -> bytes | None:
    """Return an id as JSON, or None if it is too long or cannot be sent back unchanged."""
    if type(value) not in ID_TYPES or (type(value) is float and abs(value) >= MAX_FLOAT_ID):
        return None
    try:
        id_ = wire.encode(value)
    except TypeError:  # an integer of more than 64 bits, or a string that is not UTF-8
        return None
    return id_ if len(id_) <= MAX_ID_BYTES else None


def own_error(code: int, id_: bytes = b"null") -> bytes:
    """Return the response to a request for an error of JSON-RPC itself."""
    return error(id_, code, _MESSAGES[code])


def error(id_: bytes, code: int, message: str, data: dict[str, Any] | None = None) -> bytes:
    fields = {"code": code, "message": message} | ({"data": data} if data else {})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id_, wire.encode(fields))


def result(id_: bytes, found: bytes) -> bytes:
    """Return the response to a request. `found` is JSON."""
    return b"%b%b}" % (begin_result(id_), found)


def begin_result(id_: bytes) -> bytes:
    """Return a response up to its result, after which only `}` follows."""
    return b'{"jsonrpc":"2.0","id":%b,"result":' % id_


def begin_event(type_: str, data: bytes, cursor: str) -> bytes:
    """Return a notification of an event up to the number of its subscription, after which only `}}` follows."""
    event = b'"type":%b,"data":%b,' % (wire.encode(type_), data) if type_ else b""
    return b'{"jsonrpc":"2.0","method":"event","params":{%b"cursor":%b,"subscription":' % (event, wire.encode(cursor))
