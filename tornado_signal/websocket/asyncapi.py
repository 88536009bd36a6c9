"""The WebSocket API as AsyncAPI 3.0, derived from the declarations."""

from collections.abc import Iterable
from typing import Any, Final

from ..service import schemas
from ..service.operations import SUBSCRIPTIONS, Operation
from ..service.parameters import CODE, SECRET, Parameter, describe_bodies
from ..service.schemas import SINCE, TEXT, Schema, object_of, ref
from ..service.wire import JSON
from .connection import MAX_SUBSCRIPTIONS
from .presence import MAX_HELD
from .rpc import MAX_BATCH

DESCRIPTION: Final = f"""\
Signaling and topic discovery for peer-to-peer applications, over one WebSocket: JSON-RPC 2.0 in text messages, one
request or a batch of at most {MAX_BATCH} in each. The methods are the operations of `/openapi.json`, with the same
parameters and results. Requests are answered in any order; those of one session take effect as they were sent.

Every connection is isolated by the `Origin` header of its handshake, which browsers send by themselves: it sees and
touches the sessions of that origin only. The subprotocol `signal.v1` is chosen if it is offered; none is needed.

If the operator has configured keys, `authorize` comes first. Other methods fail with 401 before it, and with 403 if the
token does not allow them.

A connection has at most {MAX_SUBSCRIPTIONS} subscriptions and {MAX_HELD} held offers. When the server stops it closes
with 1012: come back, with the cursors of the last events and `hold` for your offers.
"""
SERVER: Final[Schema] = {
    "host": "{host}",
    "protocol": "wss",
    "description": "The server that this document is from. Without TLS the protocol is `ws`.",
    "variables": {"host": {"default": "localhost:3000", "description": "Host and port of this server."}},
}
CHANNEL: Final = {"$ref": "#/channels/socket"}
ID: Final[Schema] = {
    "type": ["string", "number", "null"],
    "description": "Chosen by the client; the answer has it, too.",
}
NUMBER: Final[Schema] = {"type": "integer", "minimum": 1, "description": "The number of a subscription."}
EVENTS: Final[dict[str, Schema]] = {
    "session": ref("Session"),
    "offer": object_of({"offer": TEXT}),
    "answer": object_of({"answer": TEXT}),
    "candidate": object_of({"candidate": TEXT}),
    "reset": object_of({}),
    "gone": object_of(
        {"code": ref("Code"), "reason": {"type": "string", "enum": ["answered", "expired", "withdrawn"]}}
    ),
}


def make_asyncapi(operations: Iterable[Operation]) -> Schema:
    by_name = {operation.name: operation for operation in operations}
    messages: Schema = {}
    described: Schema = {}
    bodies: Schema = {}

    def method(name: str, tag: str, summary: str, params: list[Schema], result: Schema) -> None:
        fields = {"jsonrpc": {"const": "2.0"}, "id": ID, "method": {"const": name}}
        one_of = params[0] if len(params) == 1 else {"oneOf": params}
        messages[name] = message(object_of({**fields, "params": one_of}, ["jsonrpc", "method"], closed=False))
        messages[f"{name}Result"] = message(object_of({"jsonrpc": {"const": "2.0"}, "id": ID, "result": result}))
        described[name] = {
            "action": "receive",
            "channel": CHANNEL,
            "summary": summary,
            "tags": [{"name": tag}],
            "messages": [in_channel(name)],
            "reply": {"channel": CHANNEL, "messages": [in_channel(f"{name}Result"), in_channel("error")]},
        }

    for operation in by_name.values():
        name = operation.name[0].upper() + operation.name[1:]
        named = describe_bodies(f"{name}Params", operation.parameters)
        bodies |= named
        params = [ref(body) for body in named]
        method(operation.name, operation.tag, operation.summary, params, operation.result)
    subscribing = []
    for subscription in SUBSCRIPTIONS:
        name = subscription.name[0].upper() + subscription.name[1:]
        bodies |= describe_bodies(name, [*subscription.parameters, Parameter("since", CODE.check, SINCE)])
        subscribing.append(ref(name))
    subscribed = object_of({"subscription": NUMBER})
    method("subscribe", "events", "Subscribe to the events of a topic or of a session.", subscribing, subscribed)
    ended = object_of({"subscription": NUMBER}, closed=False)
    method("unsubscribe", "events", "End a subscription.", [ended], ref("Success"))
    token = object_of({"token": {**TEXT, "minLength": 1}}, closed=False)
    valid = object_of({"expiresAt": {**schemas.TIME, "type": ["integer", "null"]}})
    method("authorize", "service", "Present a token, also a new one before the earlier one expires.", [token], valid)
    cancelled = object_of({"id": ID}, closed=False)
    ends = "End the waiting request with this id, which gets no response. Send it as a notification."
    method("cancel", "service", ends, [cancelled], ref("Success"))
    bodies |= describe_bodies("HoldParams", [CODE, SECRET])
    taken = "Take over an offer that another connection has held."
    method("hold", "signaling", taken, [ref("HoldParams")], ref("Refreshed"))

    error: Schema = {
        "code": {"type": "integer", "description": "The HTTP status, or JSON-RPC's own for what is not JSON-RPC."},
        "message": TEXT,
        "data": object_of({"retryAfter": {"type": "integer", "description": "Seconds after which to try again."}}),
    }
    failed = object_of(error, ["code", "message"])
    messages["error"] = message(object_of({"jsonrpc": {"const": "2.0"}, "id": ID, "error": failed}))
    messages["event"] = message(event())
    described["event"] = {
        "action": "send",
        "channel": CHANNEL,
        "summary": "An event of a subscription; one without a type only moves its cursor.",
        "tags": [{"name": "events"}],
        "messages": [in_channel("event")],
    }
    channels: Schema = {
        "socket": {
            "address": "/ws",
            "servers": [{"$ref": "#/servers/this"}],
            "messages": {name: ref(name, "messages") for name in messages},
            "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
        }
    }
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "tornado-signal", "version": "1", "description": DESCRIPTION, "license": {"name": "MIT"}},
        "defaultContentType": JSON,
        "servers": {"this": SERVER},
        "channels": channels,
        "operations": described,
        "components": {"schemas": schemas.SCHEMAS | bodies, "messages": messages},
    }


def event() -> Schema:
    common: dict[str, Any] = {"subscription": NUMBER, "cursor": {**TEXT, "description": "Goes into `since`."}}
    kinds = [object_of({"type": {"const": name}, "data": data, **common}) for name, data in EVENTS.items()]
    params = {"oneOf": [*kinds, object_of(common)]}
    return object_of({"jsonrpc": {"const": "2.0"}, "method": {"const": "event"}, "params": params})


def message(payload: Schema) -> Schema:
    return {"contentType": JSON, "payload": payload}


def in_channel(name: str) -> Schema:
    return {"$ref": f"#/channels/socket/messages/{name}"}
