"""The HTTP API as OpenAPI 3.1, derived from the declarations. Tests compare it with real responses."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from ..auth import ANY
from ..service import schemas
from ..service.operations import SUBSCRIPTIONS, Operation
from ..service.parameters import Parameter, describe_bodies
from ..service.schemas import EVENT_STREAM, TEXT, Schema, ref
from ..service.wire import JSON
from ..system.assets import DEMO_PAGE

DESCRIPTION: Final = f"""\
Signaling and topic discovery for peer-to-peer applications.

Every request is isolated by its `Origin` header, of at most {schemas.MAX_ORIGIN} characters: it sees and touches the
sessions of that origin only. Browsers send the header by themselves and let no page set it, so no operation has it
among its parameters. Every other client adds it to each request, as a default header of its HTTP client; a request
without it is answered 400. Only the files and this document need none.
"""

TOKEN: Final = {
    "type": "http",
    "scheme": "bearer",
    "bearerFormat": "JWT",
    "description": "A token of the application's own backend.",
}

DESCRIPTIONS: Final = {
    "code": "The UUID of the session.",
    "side": "Which peer is speaking.",
    "page": "The page of the list, from 1 on.",
}
"""The descriptions of parameters whose schemas are shared and have none."""


def make_document(
    operations: Iterable[Operation], files: Mapping[str, str], anonymous: Collection[str] | None = None
) -> Schema:
    """Return the document. `anonymous` has the actions that need no token, or is None on a server without keys."""
    bodies: Schema = {}
    paths: Schema = {}
    for declared in operations:
        in_body = declared.fields if declared.method == "POST" else ()
        in_query = () if in_body else declared.fields
        parameters = [describe(parameter) for parameter in (*declared.in_path, *in_query)]
        description = operation(
            declared.name,
            declared.tag,
            declared.summary,
            declared.result,
            parameters=parameters,
            refusals=declared.refusals,
            security=security(declared.action, anonymous),
        )
        if in_body:
            named = describe_bodies(declared.body, in_body)
            bodies |= named
            one_of = [ref(name) for name in named]
            schema = one_of[0] if len(one_of) == 1 else {"oneOf": one_of}
            description["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
            description["responses"]["413"] = ref(schemas.REFUSALS[413][0], "responses")
        paths[declared.path] = {declared.method.lower(): description}
    for stream in SUBSCRIPTIONS:
        parameters = [
            *map(describe, stream.parameters),
            *(ref(name, "parameters") for name in ("LastEventId", *(() if anonymous is None else ("Token",)))),
        ]
        description = operation(
            stream.name,
            stream.tag,
            stream.summary,
            TEXT,
            EVENT_STREAM,
            parameters=parameters,
            refusals=stream.refusals,
            security=security(stream.action, anonymous),
        )
        description["description"] = f"{stream.summary} A request with an `Upgrade` header is refused with 400."
        paths[stream.path] = {"get": description}
    anything: Schema = {"type": "object", "additionalProperties": True}
    itself = operation("openapi", "service", "This document; it needs no `Origin`.", anything)
    paths["/openapi.json"] = {"get": itself}
    paths |= {path: {"get": file(path, media_type)} for path, media_type in files.items()}
    if DEMO_PAGE in files:
        paths["/"]["get"]["responses"]["303"] = {
            "description": f"A browser that navigates here without an `Origin` is sent to `{DEMO_PAGE}`.",
            "headers": {**schemas.ALWAYS, "Location": {"required": True, "schema": {"const": DEMO_PAGE}}},
        }
    components = {
        "schemas": schemas.SCHEMAS | bodies,
        "parameters": schemas.PARAMETERS,
        "headers": schemas.HEADERS,
        "responses": schemas.RESPONSES,
        **({} if anonymous is None else {"securitySchemes": {"token": TOKEN}}),
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tornado-signal",
            "version": "1",
            "description": DESCRIPTION,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "The server that this document is from."}],
        "tags": [
            {"name": "discovery", "description": "Who is there."},
            {"name": "signaling", "description": "Connecting two peers."},
            {"name": "service", "description": "The server itself."},
            {"name": "files", "description": "What a browser loads."},
        ],
        "paths": paths,
        "components": components,
    }


def security(action: str, anonymous: Collection[str] | None) -> list[Schema]:
    if anonymous is None or not action:
        return []
    allowed = bool(anonymous) if action == ANY else action in anonymous
    return [*([{}] if allowed else []), {"token": []}]


def describe(parameter: Parameter) -> Schema:
    if parameter.place == "path":
        return ref(parameter.name.title(), "parameters")
    return {
        "name": parameter.name,
        "in": "query",
        "required": parameter.required,
        "schema": parameter.schema,
        "description": parameter.description or parameter.schema.get("description") or DESCRIPTIONS[parameter.name],
    }


def operation(
    name: str,
    tag: str,
    summary: str,
    schema: Schema,
    media_type: str = JSON,
    *,
    parameters: list[Schema] | None = None,
    refusals: tuple[int, ...] = (),
    security: list[Schema] | None = None,
) -> Schema:
    """Return the description of an operation, with the responses that all operations share."""
    found: Schema = {"operationId": name, "tags": [tag], "summary": summary, "description": summary}
    if parameters:
        found["parameters"] = parameters
    if security:
        found["security"] = security
        refusals = (401, *refusals)
    done: Schema = {"200": {"description": "Done.", "headers": schemas.ALWAYS}}
    if schema is schemas.NOTHING:
        done = {"204": done["200"]}
    else:
        done["200"]["content"] = {media_type: {"schema": schema}}
    found["responses"] = {
        **done,
        **{
            str(status): ref(schemas.REFUSALS[status][0], "responses")
            for status in sorted({400, 403, 429, 500, 503, *refusals})
        },
        "default": ref(schemas.MALFORMED[0], "responses"),
    }
    return found


def file(path: str, media_type: str) -> Schema:
    first, *others = path.replace(".", "/").strip("/").split("/")
    name = first + "".join(map(str.title, others))
    description = operation(name, "files", "A file; it needs no `Origin`.", TEXT, media_type)
    description["responses"]["304"] = {"description": "The client has it already.", "headers": schemas.ALWAYS}
    return description
