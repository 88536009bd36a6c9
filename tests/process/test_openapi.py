"""/openapi.json is valid, and describes all routes and every response of a running server."""

import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st
from support.command import ORIGIN, Server
from support.needs import require
from support.service import declared
from support.tokens import write_secret

from tornado_signal.http import openapi
from tornado_signal.service.operations import SUBSCRIPTIONS, declare
from tornado_signal.settings.origins import AllowedOrigins
from tornado_signal.settings.settings import Settings
from tornado_signal.system import assets
from tornado_signal.system.lifecycle import DRAINING

pytest_plugins = ["support.http_fixtures"]

TIMEOUT_MS = 300_000
FILES = {path: media_type for path, (_, media_type) in (assets.CLIENT | assets.DEMO).items()}
DECLARED = declare(Settings(session_timeout_ms=TIMEOUT_MS))
DOCUMENT = openapi.make_document(DECLARED, FILES)
PROTECTED = openapi.make_document(DECLARED, FILES, ("list",))  # of a server with keys

STREAMS = {f"GET {each.path}" for each in SUBSCRIPTIONS}
LABELS = {
    f"{method.upper()} {path}": operation
    for path, each in DOCUMENT["paths"].items()
    for method, operation in each.items()
}
EXAMPLES = 30  # of an operation, in each mode
WAIT_S = 0.01  # what waits are cut to, other than those that are refused


class Checked:
    """The operations and checks of Schemathesis, whose import takes too long for the collection of tests."""

    def __init__(self):
        import requests
        import schemathesis

        strict = json.loads(json.dumps(DOCUMENT))
        # Invalid HTTP gets statuses that `default` stands for. With `default`, any status would pass.
        for operation in operations(strict):
            del operation["responses"]["default"]
        config = schemathesis.Config.from_dict({"headers": {"Origin": ORIGIN}})
        self.schema = schemathesis.openapi.from_dict(strict, config=config)
        self.operations = {each.ok().label: each.ok() for each in self.schema.get_all_operations()}
        self.modes = {mode.value: mode for mode in schemathesis.GenerationMode}
        self.session = requests.Session
        self.checks = checks = schemathesis.checks
        self.always = [
            checks.not_a_server_error,
            checks.status_code_conformance,
            checks.content_type_conformance,
            checks.response_schema_conformance,
            checks.response_headers_conformance,
        ]


@pytest.fixture(scope="module")
def checked():
    require("schemathesis")
    return Checked()


async def test_document_is_served_with_the_configured_maximum(service):
    assert await service.get("/openapi.json") == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["components"]["schemas"]["OfferRequest"]["properties"]["ttl"]["maximum"] == TIMEOUT_MS


def test_document_has_every_route_and_nothing_else():
    routes = declared() | dict.fromkeys(FILES, "GET")  # whatever has GET has HEAD, and everything has OPTIONS
    assert {path: [method.upper() for method in each] for path, each in DOCUMENT["paths"].items()} == {
        path: [method] for path, method in routes.items()
    }
    names = [operation["operationId"] for operation in operations(DOCUMENT)]
    assert len(names) == len(set(names)) == len(LABELS)


def test_document_is_openapi_3_1(checked):
    assert DOCUMENT["openapi"].startswith("3.1.")
    checked.schema.validate()
    assert DOCUMENT["servers"] == [{"url": "/", "description": "The server that this document is from."}]


def operations(document):
    return [operation for path in document["paths"].values() for operation in path.values()]


def within(part):
    """Every object in a part of the document, itself included."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from within(each)


def test_references_and_components_are_the_same_and_all_errors_one_schema():
    named = {f"#/components/{kind}/{name}" for kind, some in PROTECTED["components"].items() for name in some}
    used = {each["$ref"] for each in within(PROTECTED) if "$ref" in each}
    used |= {
        f"#/components/securitySchemes/{name}"
        for each in within(PROTECTED["paths"])
        for one in each.get("security", ())
        for name in one
    }
    assert used == named
    assert "securitySchemes" not in DOCUMENT["components"]
    assert not any("security" in each for each in within(DOCUMENT["paths"]))
    errors = [each["content"] for each in DOCUMENT["components"]["responses"].values()]
    assert errors == [{"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}] * len(errors)
    for operation in operations(DOCUMENT):
        refused = operation["responses"].keys() - {"200", "204", "303", "304"}
        assert all(set(operation["responses"][status]) == {"$ref"} for status in refused)
        assert {"400", "403", "429", "500", "503", "default"} <= refused


def test_code_is_any_string_and_the_origin_no_parameter():
    codes = [each["properties"]["code"] for each in within(DOCUMENT) if "code" in each.get("properties", {})]
    codes += [each["schema"] for each in within(DOCUMENT) if each.get("name") == "code"]
    assert codes == [{"$ref": "#/components/schemas/Code"}] * 8
    assert {"type", "minLength", "description"} == set(DOCUMENT["components"]["schemas"]["Code"])
    assert {each["name"] for each in within(DOCUMENT) if each.get("in") == "header"} == {"Last-Event-ID"}
    assert "`Origin`" in DOCUMENT["info"]["description"]


async def test_server_with_keys_documents_which_operations_need_a_token(start_service, tmp_path):
    service = await start_service(auth_keys=write_secret(tmp_path / "keys"), auth_anonymous=("list",))
    assert await service.get("/openapi.json") == json.loads(json.dumps(PROTECTED))
    optional = {"topics", "sessions", "topicEvents", "iceServers", "nearby", "report"}
    required = {"offer", "answer", "poll", "refresh", "withdraw", "sessionEvents"}
    for path, methods in PROTECTED["paths"].items():
        for method, operation in methods.items():
            name = operation["operationId"]
            wanted = [{"token": []}] if name in required else [{}, {"token": []}] if name in optional else None
            assert operation.get("security") == wanted, name
            if name not in required:
                continue
            body = (b"{}",) if method == "post" else ()
            response = await service.call(method.upper(), path.replace("{topic}", "lobby"), *body)
            assert response.status == 401, name
            said = resolve(operation["responses"]["401"], PROTECTED)["headers"]
            assert all(header in response.headers for header in said)
    await service.get("/lobby/sessions")


def resolve(part, document=DOCUMENT):
    """A part of a document, or what it refers to."""
    if "$ref" in part:
        _, kind, name = part["$ref"].rsplit("/", 2)
        return document["components"][kind][name]
    return part


@pytest.mark.parametrize(
    ("status", "settings"),
    [
        (403, {"allowed_origins": AllowedOrigins(frozenset({"https://other.example"}))}),
        (413, {}),
        (429, {"rate_per_address": 1, "unlimited_addresses": ()}),
        (503, {}),
    ],
)
async def test_each_operation_has_its_documented_refusals(status, settings, start_service):
    """A server may take no such origin, no such body, no more, or nothing now."""
    service = await start_service(**settings)
    if status == 503:
        service.shared.lifecycle.reach(DRAINING)
    if status == 429:
        for _ in range(10):
            await service.get("/health")
    later = {"Retry-After"} if status in (429, 503) else set()
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            if status == 413 and "requestBody" not in operation:
                assert "413" not in operation["responses"]
                continue
            body = b'{"offer": "%b"}' % (b"o" * 300_000) if status == 413 else b"{}"
            arguments = (body,) if method == "post" else ()
            response = await service.call(method.upper(), path.replace("{topic}", "lobby"), *arguments)
            assert (response.status, response.json.keys()) == (status, {"error"}), path
            said = resolve(operation["responses"][str(status)])
            assert set(said["headers"]) == {"X-Request-Id"} | later == set(said["headers"]) & set(response.headers)
            assert not later or int(response.headers["Retry-After"]) >= 1


async def test_invalid_http_is_refused_as_documented(service):
    said = DOCUMENT["components"]["responses"]["Malformed"]
    for request in (b"GET /health\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"x" * 70_000)):
        response = await service.raw(request)
        assert response.status in (400, 431)
        assert response.json.keys() == {"error"}
        assert set(said["headers"]) <= set(response.headers)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The installed command as a process, with two sessions in it: unanswered and answered."""
    started = Server(
        "--data-dir", tmp_path_factory.mktemp("openapi") / "data", "--durability", "os", "--connection-reports"
    )
    started.known = [started.offer(), started.offer()]
    started.call("/answer", {"code": started.known[1], "side": "answerer", "answer": "a"})
    yield started
    started.end()


def fields_of(case):
    return case.body if case.method == "POST" else case.query


def make_case(data, operation, mode, server, mended=True):
    """Return a request to one operation without a long wait. With `mended` it sometimes names an existing session."""
    case = data.draw(operation.as_strategy(mode))
    fields = fields_of(case)
    if isinstance(fields, dict):
        if mended and "code" in fields and data.draw(st.booleans()):
            known = data.draw(st.sampled_from(server.known))
            fields["code"] = server.offer() if "withdraw" in operation.path else known
        wait = fields.get("wait")
        if re.fullmatch(r"[0-9.]+(e-[0-9]+)?", str(wait)) and 0 < float(wait) <= 60:
            fields["wait"] = WAIT_S
        if mended and data.draw(st.booleans()):
            fields.pop("since", None)
    return case


def drive(examples, example):
    """Send an example of a request repeatedly, and return the statuses."""
    seen = set()

    @hypothesis.settings(max_examples=examples, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.seed(1)
    @hypothesis.given(st.data())
    def driving(data):
        seen.add(example(data))

    driving()
    return seen


def modes(label, operation):
    yield label, "positive"
    if {"parameters", "requestBody"} & set(operation):
        yield label, "negative"


@pytest.mark.parametrize(
    ("label", "mode"), [each for label in sorted(set(LABELS) - STREAMS) for each in modes(label, LABELS[label])]
)
def test_each_response_is_documented(label, mode, server, checked):
    def example(data):
        mended = mode == "positive" or data.draw(st.booleans())
        case = make_case(data, checked.operations[label], checked.modes[mode], server, mended)
        response = case.call(base_url=server.url, timeout=60)
        if mode == "positive":  # an invented cursor has a wrong checksum
            more = [] if "since" in (fields_of(case) or ()) else [checked.checks.positive_data_acceptance]
        else:  # a repaired request can have lost its only mistake
            more = [] if mended else [checked.checks.negative_data_rejection]
        case.validate_response(response, checks=[*checked.always, *more])
        return response.status_code

    seen = drive(EXAMPLES, example)
    assert seen <= {200, 204, 400, 404, 409}
    assert seen & {200, 204} or mode == "negative"


@pytest.mark.parametrize("label", sorted(STREAMS))
def test_each_stream_begins_or_fails_as_documented(label, server, checked):
    operation = checked.operations[label]

    def example(data):
        case = make_case(data, operation, data.draw(st.sampled_from([*checked.modes.values()])), server)
        sent = case.as_transport_kwargs(base_url=server.url)
        with checked.session() as session, session.request(**sent, stream=True, timeout=60) as response:
            assert str(response.status_code) in operation.definition.raw["responses"]
            kind = response.headers["Content-Type"]
            if response.status_code == 200:
                assert kind == "text/event-stream"
                assert response.raw.readline() == b":\n"
            else:
                assert kind == "application/json"
                assert set(response.json()) == {"error"}
        return response.status_code

    # Few of them are without a mistake, so there have to be more than of another operation.
    assert {200, 400} <= drive(4 * EXAMPLES, example) <= {200, 400, 404}
