"""JSON schemas of parameters, bodies and results, with their limits."""

from typing import Any, Final

from .. import errors
from .wire import JSON

MAX_TOPIC: Final = 256  # code points
MAX_INFO: Final = 1024  # code points
MAX_ORIGIN: Final = 512  # bytes, which are the code points of a header value
DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1000
MAX_NUMBER: Final = 2**53  # what a JavaScript number counts to
MAX_WAIT_S: Final = 60
MIN_SECRET: Final = 16  # code points
MAX_SECRET: Final = 256  # code points
MAX_CANDIDATES: Final = 100  # in a batch
MIN_TTL_MS: Final = 1000

Schema = dict[str, Any]

EVENT_STREAM: Final = "text/event-stream"


def ref(name: str, kind: str = "schemas") -> Schema:
    return {"$ref": f"#/components/{kind}/{name}"}


def object_of(properties: Schema, required: list[str] | None = None, *, closed: bool = True) -> Schema:
    """Return the schema of an object. Results are closed, inputs are open because unknown fields are ignored."""
    found: Schema = {"type": "object", "properties": properties}
    found["required"] = list(properties) if required is None else required
    if closed:
        found["additionalProperties"] = False
    return found


def list_of(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def positive(most: int = MAX_NUMBER) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}


TEXT: Final[Schema] = {"type": "string"}
FILLED: Final[Schema] = {"type": "string", "minLength": 1}
TEXTS: Final = list_of(TEXT)
NOTHING: Final[Schema] = {"type": "null"}
TIME: Final[Schema] = {"type": "integer", "description": "Milliseconds since the Unix epoch."}
WAIT: Final[Schema] = {
    "minimum": 0,
    "maximum": MAX_WAIT_S,
    "description": "Seconds to wait for news. The response comes after 45 at the latest.",
    "type": "number",
}
CURSOR_PATTERN: Final = "^[0-9a-f]{12}(\\.(0|[1-9a-f][0-9a-f]{0,14})){2}\\.[0-9a-f]{8}$"  # `format_cursor`
SINCE: Final[Schema] = {
    "pattern": CURSOR_PATTERN,
    "description": "The `cursor` of an earlier answer.",
    "type": "string",
}
SECRET: Final[Schema] = {
    "minLength": MIN_SECRET,
    "maxLength": MAX_SECRET,
    "description": "Shown in a side's first offer or answer, it must be shown in all that the side does.",
    "type": "string",
}
HOLD: Final[Schema] = {
    "description": "Whether the offer lives as long as the connection, and `--hold-grace-ms` longer.",
    "type": "boolean",
}
TOPIC: Final = {**FILLED, "maxLength": MAX_TOPIC}
PREFIX: Final[Schema] = {
    "maxLength": MAX_TOPIC,
    "description": "Only topics that begin with these characters. `total` counts them.",
    "type": "string",
}
CURSOR: Final[Schema] = {
    "type": "string",
    "pattern": CURSOR_PATTERN,
    "description": "Where this answer has come to; goes into `since`. It comes if the request had `wait` or `since`.",
}

SCHEMAS: Final[Schema] = {
    "Error": {**object_of({"error": TEXT}), "description": "What went wrong; a parameter at fault is named."},
    "Code": {**FILLED, "description": "The UUID of a session. What is no UUID belongs to no session: 404."},
    "Side": {"type": "string", "enum": ["offerer", "answerer"], "description": "Which peer is speaking."},
    "Version": object_of({"version": TEXT}),
    "Topic": object_of({"topic": TEXT, "count": positive()}),
    "Pagination": object_of(
        {
            "page": positive(),
            "limit": positive(MAX_LIMIT),
            "total": {"type": "integer", "minimum": 0},
            "hasMore": {"type": "boolean"},
        }
    ),
    "TopicPage": object_of({"topics": list_of(ref("Topic")), "pagination": ref("Pagination")}),
    "Session": object_of(
        {
            "code": ref("Code"),
            "info": TEXT,
            "offer": TEXT,
            "offerCandidates": TEXTS,
            "createdAt": TIME,
            "expiresAt": TIME,
        }
    ),
    "Nearby": object_of({"topic": TEXT}),
    "Listing": object_of({"sessions": list_of(ref("Session")), "cursor": CURSOR}, ["sessions"]),
    "Offered": object_of({"code": ref("Code")}),
    "OffererNews": object_of(
        {"answer": {"type": ["string", "null"]}, "answerCandidates": TEXTS, "cursor": CURSOR},
        ["answer", "answerCandidates"],
    ),
    "AnswererNews": object_of(
        {"offer": TEXT, "offerCandidates": TEXTS, "cursor": CURSOR}, ["offer", "offerCandidates"]
    ),
    "Success": object_of({"success": {"type": "boolean", "const": True}}),
    "Refreshed": object_of({"expiresAt": TIME}),
    "Health": object_of({"status": {"type": "string", "const": "ok"}, "timestamp": TIME}),
    "IceServer": object_of({"urls": TEXTS, "username": TEXT, "credential": TEXT}, ["urls"]),
    "IceConfiguration": object_of(
        {"iceServers": list_of(ref("IceServer")), "expiresAt": TIME, "reports": {"type": "boolean", "const": True}},
        ["iceServers", "expiresAt"],
    ),
}
"""Every schema that depends on no setting, by its name."""

PARAMETERS: Final[Schema] = {
    "Token": {
        "name": "token",
        "in": "query",
        "schema": FILLED,
        "description": "The token of a client that can set no header, such as an `EventSource`.",
    },
    "Topic": {
        "name": "topic",
        "in": "path",
        "required": True,
        "schema": TOPIC,
        "description": "The topic, percent-encoded.",
    },
    "LastEventId": {
        "name": "Last-Event-ID",
        "in": "header",
        "schema": FILLED,
        "description": "Where to resume; an `EventSource` sends it by itself.",
    },
}
HEADERS: Final[Schema] = {
    "RequestId": {"schema": TEXT, "required": True, "description": "What the server's log calls the request."},
    "RetryAfter": {
        "schema": {"type": "integer", "minimum": 1},
        "required": True,
        "description": "Seconds after which to try again.",
    },
    "Challenge": {"schema": TEXT, "required": True, "description": "The kind of the error, as RFC 6750 has it."},
}
ALWAYS: Final = {"X-Request-Id": ref("RequestId", "headers")}
CHALLENGE: Final = {**ALWAYS, "WWW-Authenticate": ref("Challenge", "headers")}
LATER: Final = {**ALWAYS, "Retry-After": ref("RetryAfter", "headers")}

REFUSALS: Final[dict[int, tuple[str, str, Schema]]] = {
    400: ("BadRequest", "A parameter is missing or invalid; the text names it.", ALWAYS),
    401: ("Unauthorized", str(errors.Unauthorized.message), CHALLENGE),
    403: ("Forbidden", f"{errors.OriginNotAllowed.message}. {errors.NotAllowed.message}.", ALWAYS),
    404: ("NotFound", str(errors.SessionNotFound()), ALWAYS),
    409: ("Conflict", str(errors.AlreadyAnswered()), ALWAYS),
    413: ("TooLarge", str(errors.BodyTooLarge()), ALWAYS),
    429: ("TooMany", "Too many requests: a rate or a quota is used up.", LATER),
    500: ("Defect", "Internal server error", ALWAYS),
    503: ("Unavailable", "Service unavailable: the server is stopping, is full, or cannot use its disk.", LATER),
}
"""The name, the meaning and the headers of each answer that is an error."""
MALFORMED: Final = ("Malformed", "What is no HTTP, or ambiguous as HTTP: the status that HTTP has for it.", ALWAYS)
RESPONSES: Final[Schema] = {
    name: {"description": meaning, "headers": headers, "content": {JSON: {"schema": ref("Error")}}}
    for name, meaning, headers in [*REFUSALS.values(), MALFORMED]
}
