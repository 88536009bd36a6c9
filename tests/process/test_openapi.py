"""/openapi.json describes all routes. `Service.call` compares each response of the other tests with it."""

import json

from support.service import DOCUMENT as PROTECTED
from support.service import FILES, declared
from support.tokens import write_secret

from tornado_signal.http import openapi
from tornado_signal.service.operations import declare
from tornado_signal.settings.settings import Settings

TIMEOUT_MS = 300_000
DOCUMENT = openapi.make_document(declare(Settings(session_timeout_ms=TIMEOUT_MS)), FILES)


async def test_document_is_served_with_the_configured_maximum(service):
    assert await service.get("/openapi.json") == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["components"]["schemas"]["OfferRequest"]["properties"]["ttl"]["maximum"] == TIMEOUT_MS


def test_document_has_every_route_and_nothing_else():
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["servers"] == [{"url": "/", "description": "The server that this document is from."}]
    routes = declared() | dict.fromkeys(FILES, "GET")  # whatever has GET has HEAD, and everything has OPTIONS
    assert {path: [method.upper() for method in each] for path, each in DOCUMENT["paths"].items()} == {
        path: [method] for path, method in routes.items()
    }
    names = [operation["operationId"] for operation in operations(DOCUMENT)]
    assert len(names) == len(set(names)) == len(routes)


def operations(document):
    return [operation for path in document["paths"].values() for operation in path.values()]


def within(part):
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from within(each)


def test_references_and_components_are_the_same_and_all_errors_one_schema():
    named = {f"#/components/{kind}/{name}" for kind, some in PROTECTED["components"].items() for name in some}
    used = {each["$ref"] for each in within(PROTECTED) if "$ref" in each}
    assert named - used == {"#/components/securitySchemes/token"}
    assert (used <= named, "securitySchemes" in DOCUMENT["components"]) == (True, False)
    assert not any("security" in each for each in within(DOCUMENT["paths"]))
    errors = [each["content"] for each in DOCUMENT["components"]["responses"].values()]
    assert errors == [{"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}] * len(errors)
    for operation in operations(DOCUMENT):
        refused = operation["responses"].keys() - {"200", "204", "303", "304"}
        assert all(set(operation["responses"][status]) == {"$ref"} for status in refused)
        assert {"400", "403", "429", "500", "503", "default"} <= refused
        assert ("413" in refused) == ("requestBody" in operation)


def test_code_is_any_string_and_the_origin_no_parameter():
    codes = [each["properties"]["code"] for each in within(DOCUMENT) if "code" in each.get("properties", {})]
    codes += [each["schema"] for each in within(DOCUMENT) if each.get("name") == "code"]
    assert codes == [{"$ref": "#/components/schemas/Code"}] * 8
    assert {"type", "minLength", "description"} == set(DOCUMENT["components"]["schemas"]["Code"])
    assert {each["name"] for each in within(DOCUMENT) if each.get("in") == "header"} == {"Last-Event-ID"}
    assert "`Origin`" in DOCUMENT["info"]["description"]


async def test_server_with_keys_documents_which_operations_need_a_token(start_service, tmp_path):
    service = await start_service(auth_keys=write_secret(tmp_path / "keys"), auth_anonymous=("list",))
    assert await service.get("/openapi.json") == PROTECTED
    optional = {"topics", "sessions", "topicEvents", "iceServers", "nearby", "report"}
    required = {"offer", "answer", "poll", "refresh", "withdraw", "sessionEvents"}
    for operation in operations(PROTECTED):
        name = operation["operationId"]
        wanted = [{"token": []}] if name in required else [{}, {"token": []}] if name in optional else None
        assert operation.get("security") == wanted, name
