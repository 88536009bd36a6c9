"""What the OpenAPI document is made of: the schemas of fields, bodies and answers, and the shape of an operation."""

from typing import Any, Final

from .. import errors
from . import wire

Schema = dict[str, Any]

EVENT_STREAM: Final = "text/event-stream"


def ref(name: str, kind: str = "schemas") -> Schema:
    """What stands for a component of the document."""
    return {"$ref": f"#/components/{kind}/{name}"}


def object_of(properties: Schema, required: list[str] | None = None, *, closed: bool = True) -> Schema:
    """An object; closed for what we send, open for what we accept: unknown fields are ignored."""
    found: Schema = {"type": "object", "properties": properties}
    found["required"] = list(properties) if required is None else required
    if closed:
        found["additionalProperties"] = False
    return found


def list_of(items: Schema, **limits: int) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **limits}


def whole(most: int = wire.MAX_NUMBER) -> Schema:
    """A whole number from 1 up."""
    return {"type": "integer", "minimum": 1, "maximum": most}


TEXT: Final[Schema] = {"type": "string"}
FILLED: Final[Schema] = {"type": "string", "minLength": 1}
TEXTS: Final = list_of(TEXT)
TIME: Final[Schema] = {"type": "integer", "description": "Milliseconds since the Unix epoch."}
WAIT: Final[Schema] = {"minimum": 0, "maximum": wire.MAX_WAIT_S, "description": "Seconds to wait for news."}
SINCE: Final[Schema] = {"minLength": 1, "description": "The `cursor` of an earlier answer."}
SECRET: Final[Schema] = {
    "minLength": wire.MIN_SECRET,
    "maxLength": wire.MAX_SECRET,
    "description": "Shown in a side's first offer or answer, it must be shown in all that the side does.",
}
OWNER: Final[Schema] = {
    "code": ref("Code"),
    "side": ref("Side"),
    "secret": {**SECRET, "type": ["string", "null"]},
}
CURSOR: Final[Schema] = {
    "type": "string",
    "description": "Where this answer has come to; goes into `since`. It comes if the request had `wait` or `since`.",
}

SCHEMAS: Final[Schema] = {
    "Error": {**object_of({"error": TEXT}), "description": "What went wrong; a parameter at fault is named."},
    "Code": {**FILLED, "description": "The UUID of a session. What is no UUID belongs to no session: 404."},
    "Side": {"type": "string", "enum": ["offerer", "answerer"], "description": "Which peer is speaking."},
    "Version": object_of({"version": TEXT}),
    "Topic": object_of({"topic": TEXT, "count": whole()}),
    "Pagination": object_of(
        {
            "page": whole(),
            "limit": whole(wire.MAX_LIMIT),
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
    "Listing": object_of({"sessions": list_of(ref("Session")), "cursor": CURSOR}, ["sessions"]),
    "Offered": object_of({"code": ref("Code")}),
    "AnswerRequest": object_of(
        {**OWNER, "side": {"type": "string", "const": "answerer"}, "answer": FILLED},
        ["code", "side", "answer"],
        closed=False,
    ),
    "CandidateRequest": object_of({**OWNER, "candidate": FILLED}, ["code", "side", "candidate"], closed=False),
    "CandidatesRequest": object_of(
        {**OWNER, "candidates": list_of(FILLED, minItems=1, maxItems=wire.MAX_CANDIDATES)},
        ["code", "side", "candidates"],
        closed=False,
    ),
    "PollRequest": object_of(
        {**OWNER, "wait": {**WAIT, "type": ["number", "null"]}, "since": {**SINCE, "type": ["string", "null"]}},
        ["code", "side"],
        closed=False,
    ),
    "OffererNews": object_of(
        {"answer": {"type": ["string", "null"]}, "answerCandidates": TEXTS, "cursor": CURSOR},
        ["answer", "answerCandidates"],
    ),
    "AnswererNews": object_of(
        {"offer": TEXT, "offerCandidates": TEXTS, "cursor": CURSOR}, ["offer", "offerCandidates"]
    ),
    "OwnerRequest": object_of(OWNER, ["code", "side"], closed=False),
    "Success": object_of({"success": {"type": "boolean", "const": True}}),
    "Refreshed": object_of({"expiresAt": TIME}),
    "Health": object_of({"status": {"type": "string", "const": "ok"}, "timestamp": TIME}),
    "IceServer": object_of(
        {"urls": TEXTS, "username": {"type": "string", "description": "When it ends, in s."}, "credential": TEXT},
        ["urls"],
    ),
    "IceConfiguration": object_of({"iceServers": list_of(ref("IceServer")), "expiresAt": TIME}),
}
"""Every schema that depends on no setting, by its name."""

PARAMETERS: Final[Schema] = {
    "Topic": {
        "name": "topic",
        "in": "path",
        "required": True,
        "schema": {**FILLED, "maxLength": wire.MAX_TOPIC},
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
}
ALWAYS: Final = {"X-Request-Id": ref("RequestId", "headers")}
LATER: Final = {**ALWAYS, "Retry-After": ref("RetryAfter", "headers")}

REFUSALS: Final[dict[int, tuple[str, str, Schema]]] = {
    400: ("BadRequest", "A parameter is missing or invalid; the text names it.", ALWAYS),
    403: ("Forbidden", str(errors.OriginNotAllowed()), ALWAYS),
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
    name: {"description": meaning, "headers": headers, "content": {wire.JSON: {"schema": ref("Error")}}}
    for name, meaning, headers in [*REFUSALS.values(), MALFORMED]
}


def query(name: str, schema: Schema, description: str = "", *, required: bool = False) -> Schema:
    """A parameter of the query."""
    parameter = {"name": name, "in": "query", "required": required, "schema": schema}
    return {**parameter, "description": description} if description else parameter


def operation(
    name: str,
    tag: str,
    summary: str,
    schema: Schema,
    *,
    media_type: str = wire.JSON,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    failures: tuple[int, ...] = (),
) -> Schema:
    """One operation, with the answers that every one may give."""
    statuses = {400, 403, 429, 500, 503, *failures} | ({413} if body else set())
    found: Schema = {"operationId": name, "tags": [tag], "summary": summary}
    if parameters:
        found["parameters"] = parameters
    if body:
        found["requestBody"] = {"required": True, "content": {wire.JSON: {"schema": body}}}
    found["responses"] = {
        "200": {"description": "Done.", "headers": ALWAYS, "content": {media_type: {"schema": schema}}},
        **{str(status): ref(REFUSALS[status][0], "responses") for status in sorted(statuses)},
        "default": ref(MALFORMED[0], "responses"),
    }
    return found


def stream(name: str, tag: str, summary: str, parameters: list[Schema], failures: tuple[int, ...] = ()) -> Schema:
    """One operation that answers with Server-Sent Events."""
    parameters = [*parameters, ref("LastEventId", "parameters")]
    found = operation(name, tag, summary, TEXT, media_type=EVENT_STREAM, parameters=parameters, failures=failures)
    return {**found, "description": "A request with an `Upgrade` header is refused with 400."}


def file(path: str, media_type: str) -> Schema:
    """One file."""
    first, *others = path.replace(".", "/").strip("/").split("/")
    name = first + "".join(map(str.title, others))
    found = operation(name, "files", "A file; it needs no `Origin`.", TEXT, media_type=media_type)
    found["responses"]["304"] = {"description": "The client has it already.", "headers": ALWAYS}
    return found
