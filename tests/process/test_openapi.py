"""/openapi.json is true: of the routes, as OpenAPI, and of every answer that a running server gives (contract C8)."""

import json
import re

import hypothesis
import pytest
from hypothesis import strategies as st
from support.command import ORIGIN, Server
from support.service import declared

from tornado_signal.api.operations import SUBSCRIPTIONS, declare
from tornado_signal.http import assets, openapi
from tornado_signal.settings.origins import Origins
from tornado_signal.settings.settings import Settings

requests = pytest.importorskip("requests")
schemathesis = pytest.importorskip("schemathesis")
GenerationMode, checks = schemathesis.GenerationMode, schemathesis.checks

pytest_plugins = ["support.http_fixtures"]

TIMEOUT_MS = 300_000
FILES = {path: media_type for path, (_, media_type) in (assets.CLIENT | assets.DEMO).items()}
DOCUMENT = openapi.make_document(declare(Settings(session_timeout_ms=TIMEOUT_MS)), FILES)

# What is no HTTP is refused with statuses that `default` stands for; with it, any status would be right.
STRICT = json.loads(json.dumps(DOCUMENT))
for _path in STRICT["paths"].values():
    for _operation in _path.values():
        del _operation["responses"]["default"]
SCHEMA = schemathesis.openapi.from_dict(STRICT, config=schemathesis.Config.from_dict({"headers": {"Origin": ORIGIN}}))
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
STREAMS = {"GET /{topic}/events", "GET /events"}
EXAMPLES = 30  # of an operation, in each mode
WAIT_S = 0.01  # what waits are cut to, other than those that are refused
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]


async def test_it_is_served(service):
    """GET /openapi.json answers the document, with the configured maximum in it."""
    assert await service.get("/openapi.json") == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["components"]["schemas"]["OfferRequest"]["properties"]["ttl"]["maximum"] == TIMEOUT_MS


def test_it_has_every_route():
    """Each route is in the document and nothing else is, with the methods that it has."""
    routes = declared() | dict.fromkeys(FILES, "GET")  # whatever has GET has HEAD, and everything has OPTIONS
    assert {path: [method.upper() for method in each] for path, each in DOCUMENT["paths"].items()} == {
        path: [method] for path, method in routes.items()
    }
    assert {f"GET {each.path}" for each in SUBSCRIPTIONS} == STREAMS
    names = [operation["operationId"] for each in DOCUMENT["paths"].values() for operation in each.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)


def test_it_is_openapi():
    """It is valid as OpenAPI 3.1, by the standard's own schema."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    SCHEMA.validate()
    assert DOCUMENT["servers"] == [{"url": "/", "description": "The server that this document is from."}]


def within(part):
    """Every object in a part of the document, itself included."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from within(each)


def test_its_components():
    """Every reference leads to a component, every component is referred to, and all errors are the one schema."""
    named = {f"#/components/{kind}/{name}" for kind, some in DOCUMENT["components"].items() for name in some}
    assert {each["$ref"] for each in within(DOCUMENT) if "$ref" in each} == named
    errors = [each["content"] for each in DOCUMENT["components"]["responses"].values()]
    assert errors == [{"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}] * len(errors)
    for operation in (operation for each in DOCUMENT["paths"].values() for operation in each.values()):
        refused = {
            status: each for status, each in operation["responses"].items() if status not in ("200", "303", "304")
        }
        assert all(set(each) == {"$ref"} for each in refused.values())
        assert {"400", "403", "429", "500", "503", "default"} <= set(refused)


def test_the_code_has_one_type():
    """A code is the same in requests and answers, and any string may be one: what is no UUID is a 404, not a 400."""
    codes = [each["properties"]["code"] for each in within(DOCUMENT) if "code" in each.get("properties", {})]
    codes += [each["schema"] for each in within(DOCUMENT) if each.get("name") == "code"]
    assert codes == [{"$ref": "#/components/schemas/Code"}] * 8
    assert {"type", "minLength", "description"} == set(DOCUMENT["components"]["schemas"]["Code"])


def test_the_origin_is_no_parameter():
    """The Origin, which no page can set, is told of once for all requests."""
    assert {each["name"] for each in within(DOCUMENT) if each.get("in") == "header"} == {"Last-Event-ID"}
    assert "`Origin`" in DOCUMENT["info"]["description"]


def resolve(part):
    """A part of the document, or what it refers to."""
    if "$ref" in part:
        _, kind, name = part["$ref"].rsplit("/", 2)
        return DOCUMENT["components"][kind][name]
    return part


async def refuse_all(service, status):
    """Ask for everything; each answer has this status, and what the document says of it."""
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            body = b'{"offer": "%b"}' % (b"o" * 300_000) if status == 413 else b"{}"
            if status == 413 and "requestBody" not in operation:
                assert "413" not in operation["responses"]
                continue
            arguments = (body,) if method == "post" else ()
            response = await service.call(method.upper(), path.replace("{topic}", "lobby"), *arguments)
            assert (response.status, response.json.keys()) == (status, {"error"}), path
            said = resolve(operation["responses"][str(status)])
            later = {"Retry-After"} if status in (429, 503) else set()
            assert set(said["headers"]) == {"X-Request-Id"} | later == set(said["headers"]) & set(response.headers)
            assert not later or int(response.headers["Retry-After"]) >= 1


@pytest.mark.parametrize(
    ("status", "settings"),
    [
        (403, {"allowed_origins": Origins(frozenset({"https://other.example"}))}),
        (413, {}),
        (429, {"rate_per_address": 1, "burst_per_address": 1, "unlimited_addresses": ()}),
        (503, {}),
    ],
)
async def test_what_everything_may_be_refused_with(status, settings, start_service):
    """Each operation has the answers of a server that takes no such origin, no such body, no more, or nothing now."""
    service = await start_service(**settings)
    service.site.draining = status == 503
    if status == 429:
        await service.get("/health")
    await refuse_all(service, status)


async def test_what_is_no_http(service):
    """What no operation sees is refused with the headers and the schema that the document has for all else."""
    said = DOCUMENT["components"]["responses"]["Malformed"]
    for request in (b"GET /health\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (b"x" * 70_000)):
        response = await service.raw(request)
        assert response.status in (400, 431)
        assert response.json.keys() == {"error"}
        assert set(said["headers"]) <= set(response.headers)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The installed command as a process, with two sessions in it: unanswered and answered."""
    started = Server("--data-dir", tmp_path_factory.mktemp("openapi") / "data", "--durability", "os")
    started.known = [started.offer(), started.offer()]
    started.call("/answer", {"code": started.known[1], "side": "answerer", "answer": "a"})
    yield started
    started.end()


def make_case(data, operation, mode, server, mended=True):
    """A request to one operation, with no long wait; `mended`, it is about a session that exists now and then."""
    case = data.draw(operation.as_strategy(mode))
    fields = case.body if operation.method == "post" else case.query
    if isinstance(fields, dict):
        if mended and "code" in fields and data.draw(st.booleans()):
            fields["code"] = (
                server.offer() if "withdraw" in operation.path else data.draw(st.sampled_from(server.known))
            )
        wait = fields.get("wait")
        if re.fullmatch(r"[0-9.]+", str(wait)) and 0 < float(wait) <= 60:
            fields["wait"] = WAIT_S
        if mended and data.draw(st.booleans()):
            fields.pop("since", None)
    return case


@pytest.mark.parametrize(
    ("label", "mode"),
    [
        pytest.param(label, mode, id=f"{label}-{mode.value}")
        for label in sorted(set(OPERATIONS) - STREAMS)
        for mode in GenerationMode
        if mode is GenerationMode.POSITIVE or {"parameters", "requestBody"} & set(OPERATIONS[label].definition.raw)
    ],
)
def test_every_operation(label, mode, server):
    """Whatever is sent by the document, or against it, the answer is one that the document has, and never a 500."""
    operation = OPERATIONS[label]
    seen = set()

    @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.seed(1)
    @hypothesis.given(st.data())
    def drive(data):
        mended = mode is GenerationMode.POSITIVE or data.draw(st.booleans())
        case = make_case(data, operation, mode, server, mended)
        response = case.call(base_url=server.url, timeout=10)
        # What is mended may have lost its only mistake.
        case.validate_response(response, checks=CHECKS if mended else [*CHECKS, checks.negative_data_rejection])
        seen.add(response.status_code)

    drive()
    if mode is GenerationMode.POSITIVE:
        assert 200 in seen
    assert seen <= {200, 400, 404, 409}


@pytest.mark.parametrize("label", sorted(STREAMS))
def test_every_stream(label, server):
    """A stream that begins is what the document says, and one that does not is one of its errors."""
    operation = OPERATIONS[label]
    seen = set()

    # Few of them are without a mistake, so there have to be more than of another operation.
    @hypothesis.settings(max_examples=4 * EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.seed(1)
    @hypothesis.given(st.data(), st.sampled_from(GenerationMode))
    def drive(data, mode):
        case = make_case(data, operation, mode, server)
        with requests.Session() as session:
            sent = case.as_transport_kwargs(base_url=server.url)
            with session.request(**sent, stream=True, timeout=10) as response:
                assert str(response.status_code) in operation.definition.raw["responses"]
                kind = response.headers["Content-Type"]
                if response.status_code == 200:
                    assert kind == "text/event-stream"
                    assert response.raw.readline() == b":\n"
                else:
                    assert kind == "application/json"
                    assert set(response.json()) == {"error"}
        seen.add(response.status_code)

    drive()
    assert {200, 400} <= seen <= {200, 400, 404}
