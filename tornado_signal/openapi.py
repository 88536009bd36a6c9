"""The interface as OpenAPI 3.1 (contract C8): served at /openapi.json, and held to the truth by the tests."""

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


def make_document(max_ttl_ms: int) -> Schema:
    """The document.

    Args:
        max_ttl_ms: the longest lifetime that an offer may ask for: the configured timeout.
    """
    ttl = {"type": ["integer", "null"], "minimum": wire.MIN_TTL_MS, "maximum": max_ttl_ms, "description": "In ms."}
    owner = {"code": CODE, "side": SIDE, "secret": SECRET}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tornado-signal",
            "version": "1",
            "description": "Signaling and topic discovery for peer-to-peer applications. Every request is isolated "
            "by its Origin header.",
        },
        "paths": {
            "/": {"get": _operation("version", "The commit that the server was built from.", {"version": TEXT})},
            "/topics": {
                "get": _operation(
                    "topics",
                    "Topics that have unanswered sessions, alphabetically.",
                    {
                        "topics": _list(_object({"topic": TEXT, "count": _whole()})),
                        "pagination": _object(
                            {
                                "page": _whole(),
                                "limit": _whole(wire.MAX_LIMIT),
                                "total": {"type": "integer", "minimum": 0},
                                "hasMore": {"type": "boolean"},
                            }
                        ),
                    },
                    parameters=[
                        _query("page", {**_whole(), "default": 1}),
                        _query(
                            "limit",
                            {**_whole(), "default": wire.DEFAULT_LIMIT},
                            f"More than {wire.MAX_LIMIT} counts as {wire.MAX_LIMIT}.",
                        ),
                    ],
                )
            },
            "/{topic}/sessions": {
                "get": _operation(
                    "sessions",
                    "The unanswered sessions of a topic, newest first; with `wait` or `since`, as soon as they are not "
                    "those of `since`.",
                    {"sessions": _list(_session())},
                    optional={"cursor": CURSOR},
                    parameters=[
                        _topic(),
                        _query("wait", {**WAIT, "type": "number"}),
                        _query("since", {**SINCE, "type": "string"}),
                        _query("limit", _whole(), f"More than {wire.MAX_LIMIT} counts as {wire.MAX_LIMIT}."),
                    ],
                )
            },
            "/{topic}/events": {
                "get": _stream(
                    "topicEvents",
                    "Server-Sent Events `session` and `gone` (`code`, `reason`), first the current listing.",
                    [_topic()],
                )
            },
            "/{topic}/offer": {
                "post": _operation(
                    "offer",
                    "Publish an offer under a topic.",
                    {"code": UUID},
                    parameters=[_topic()],
                    body=_object(
                        {
                            "info": {**FILLED, "maxLength": wire.MAX_INFO},
                            "offer": FILLED,
                            "ttl": ttl,
                            "secret": SECRET,
                        },
                        required=["info", "offer"],
                        closed=False,
                    ),
                    failures=(404,),
                )
            },
            "/answer": {
                "post": _operation(
                    "answer",
                    "Send the answer, or candidates of either side.",
                    {"success": {"const": True}},
                    body={
                        "oneOf": [
                            _object(
                                {**owner, "side": {"const": "answerer"}, "answer": FILLED},
                                ["code", "side", "answer"],
                                closed=False,
                            ),
                            _object({**owner, "candidate": FILLED}, ["code", "side", "candidate"], closed=False),
                            _object(
                                {
                                    **owner,
                                    "candidates": _list(FILLED, minItems=1, maxItems=wire.MAX_CANDIDATES),
                                },
                                ["code", "side", "candidates"],
                                closed=False,
                            ),
                        ]
                    },
                    failures=(404, 409),
                )
            },
            "/poll": {
                "post": _operation(
                    "poll",
                    "What the other side has sent; with `wait` or `since`, what is new after `since`, as soon as there "
                    "is anything.",
                    {},
                    schema={
                        "oneOf": [
                            _object(
                                {"answer": {"type": ["string", "null"]}, "answerCandidates": TEXTS, "cursor": CURSOR},
                                ["answer", "answerCandidates"],
                            ),
                            _object(
                                {"offer": TEXT, "offerCandidates": TEXTS, "cursor": CURSOR},
                                ["offer", "offerCandidates"],
                            ),
                        ]
                    },
                    body=_object({**owner, "wait": WAIT, "since": SINCE}, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/events": {
                "get": _stream(
                    "sessionEvents",
                    "Server-Sent Events `offer`, `answer`, `candidate` and `gone` of one session, for one side.",
                    [
                        _query("code", CODE, required=True),
                        _query("side", SIDE, required=True),
                        _query("secret", {**SECRET, "type": "string"}),
                    ],
                    failures=(404,),
                )
            },
            "/withdraw": {
                "post": _operation(
                    "withdraw",
                    "End a session at once.",
                    {"success": {"const": True}},
                    body=_object(owner, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/refresh": {
                "post": _operation(
                    "refresh",
                    "Move a session's expiry to now and its lifetime.",
                    {"expiresAt": TIME},
                    body=_object(owner, ["code", "side"], closed=False),
                    failures=(404,),
                )
            },
            "/health": {
                "get": _operation("health", "That the server answers.", {"status": {"const": "ok"}, "timestamp": TIME})
            },
            "/openapi.json": {"get": _operation("openapi", "This document.", {}, schema={"type": "object"})},
        },
    }


def _object(properties: Schema, required: list[str] | None = None, *, closed: bool = True) -> Schema:
    """An object; closed for what we send, open for what we accept: unknown fields are ignored."""
    found: Schema = {"type": "object", "properties": properties}
    found["required"] = list(properties) if required is None else required
    if closed:
        found["additionalProperties"] = False
    return found


def _list(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def _whole(most: int = wire.MAX_NUMBER) -> Schema:
    return {"type": "integer", "minimum": 1, "maximum": most}


def _session() -> Schema:
    return _object(
        {
            "code": UUID,
            "info": TEXT,
            "offer": TEXT,
            "offerCandidates": TEXTS,
            "createdAt": TIME,
            "expiresAt": TIME,
        }
    )


def _topic() -> Schema:
    schema = {**FILLED, "maxLength": wire.MAX_TOPIC}
    return {"name": "topic", "in": "path", "required": True, "schema": schema}


def _query(name: str, schema: Schema, description: str = "", *, required: bool = False) -> Schema:
    parameter = {"name": name, "in": "query", "required": required, "schema": schema}
    return {**parameter, "description": description} if description else parameter


def _header(name: str, schema: Schema, *, required: bool) -> Schema:
    return {"name": name, "in": "header", "required": required, "schema": schema}


def _operation(
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
        schema = _object({**fields, **(optional or {})}, list(fields))
    content = {wire.JSON: {"schema": schema}}
    return _with_errors(name, summary, content, parameters or [], body, failures)


def _stream(name: str, summary: str, parameters: list[Schema], failures: tuple[int, ...] = ()) -> Schema:
    """One operation that answers with Server-Sent Events."""
    resume = _header("Last-Event-ID", FILLED, required=False)
    return _with_errors(name, summary, {"text/event-stream": {"schema": TEXT}}, [*parameters, resume], None, failures)


def _with_errors(
    name: str, summary: str, content: Schema, parameters: list[Schema], body: Schema | None, failures: tuple[int, ...]
) -> Schema:
    origin = _header("Origin", {**FILLED, "maxLength": wire.MAX_ORIGIN}, required=True)
    statuses = {400, 403, 429, 500, 503, *failures} | ({413} if body else set())
    error = {wire.JSON: {"schema": _object({"error": TEXT})}}
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
