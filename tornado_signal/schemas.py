"""What the OpenAPI document is made of: the schemas of fields, parameters and operations."""

from typing import Any, Final

from . import errors, wire

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
FILLED: Final[Schema] = {"type": "string", "minLength": 1}
CODE: Final[Schema] = {"type": "string", "minLength": 1, "description": "The session's UUID."}
UUID: Final[Schema] = {"type": "string", "format": "uuid"}
SIDE: Final[Schema] = {"type": "string", "enum": ["offerer", "answerer"]}
TIME: Final[Schema] = {"type": "integer", "description": "Milliseconds since the Unix epoch."}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
CURSOR: Final[Schema] = {"type": "string", "description": "Where this answer has come to; goes into `since`."}
SINCE: Final[Schema] = {"type": ["string", "null"], "minLength": 1, "description": "The `cursor` of an earlier answer."}
WAIT: Final[Schema] = {
    "type": ["number", "null"],
    "minimum": 0,
    "maximum": wire.MAX_WAIT_S,
    "description": "Seconds to wait for news.",
}
SECRET: Final[Schema] = {
    "type": ["string", "null"],
    "minLength": wire.MIN_SECRET,
    "maxLength": wire.MAX_SECRET,
    "description": "Shown in a side's first offer or answer, it must be shown in all that the side does.",
}


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


SESSION: Final = object_of(
    {"code": UUID, "info": TEXT, "offer": TEXT, "offerCandidates": TEXTS, "createdAt": TIME, "expiresAt": TIME}
)
ICE_SERVER: Final = object_of(
    {"urls": TEXTS, "username": {"type": "string", "description": "When it ends, in s."}, "credential": TEXT}, ["urls"]
)
TOPIC: Final[Schema] = {
    "name": "topic",
    "in": "path",
    "required": True,
    "schema": {**FILLED, "maxLength": wire.MAX_TOPIC},
}


def query(name: str, schema: Schema, description: str = "", *, required: bool = False) -> Schema:
    """A parameter of the query."""
    parameter = {"name": name, "in": "query", "required": required, "schema": schema}
    return {**parameter, "description": description} if description else parameter


def header(name: str, schema: Schema, *, required: bool) -> Schema:
    """A header of the request."""
    return {"name": name, "in": "header", "required": required, "schema": schema}


def operation(
    name: str,
    summary: str,
    fields: Schema,
    *,
    optional: Schema | None = None,
    schema: Schema | None = None,
    parameters: list[Schema] | None = None,
    body: Schema | None = None,
    failures: tuple[int, ...] = (),
) -> Schema:
    """One operation that answers in JSON."""
    if schema is None:
        schema = object_of({**fields, **(optional or {})}, list(fields))
    content = {wire.JSON: {"schema": schema}}
    return with_errors(name, summary, content, parameters or [], body, failures)


def stream(name: str, summary: str, parameters: list[Schema], failures: tuple[int, ...] = ()) -> Schema:
    """One operation that answers with Server-Sent Events."""
    resume = header("Last-Event-ID", FILLED, required=False)
    return with_errors(name, summary, {"text/event-stream": {"schema": TEXT}}, [*parameters, resume], None, failures)


def file(path: str, media_type: str) -> Schema:
    """One file that is handed out also to who has no Origin."""
    content = {media_type: {"schema": TEXT}}
    found = with_errors(path, "A file.", content, [], None, (), origin_required=False)
    found["responses"]["304"] = {"description": "The client has it already."}
    return found


def with_errors(
    name: str,
    summary: str,
    content: Schema,
    parameters: list[Schema],
    body: Schema | None,
    failures: tuple[int, ...],
    *,
    origin_required: bool = True,
) -> Schema:
    """One operation, with the answers that every one may give."""
    origin = header("Origin", {**FILLED, "maxLength": wire.MAX_ORIGIN}, required=origin_required)
    statuses = {400, 403, 429, 500, 503, *failures} | ({413} if body else set())
    error = {wire.JSON: {"schema": object_of({"error": TEXT})}}
    operation: Schema = {
        "operationId": name,
        "summary": summary,
        "parameters": [origin, *parameters],
        "responses": {
            "200": {"description": "Done.", "content": content},
            **{str(status): {"description": MEANING[status], "content": error} for status in sorted(statuses)},
        },
    }
    if body:
        operation["requestBody"] = {"required": True, "content": {wire.JSON: {"schema": body}}}
    return operation


MEANING: Final = {
    400: "A parameter is missing or invalid; the text names it.",
    403: str(errors.OriginNotAllowed()),
    404: str(errors.SessionNotFound()),
    409: str(errors.AlreadyAnswered()),
    413: str(errors.BodyTooLarge()),
    429: "Too many requests; Retry-After says when to try again.",
    500: "Internal server error",
    503: "Service unavailable; Retry-After says when to try again.",
}
