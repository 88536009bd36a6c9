"""/openapi.json is true: of the routes, as OpenAPI, and of every answer that a running server gives (contract C8)."""

import json
import re

import hypothesis
import pytest
import requests
import schemathesis
from command import ORIGIN, Server
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks

from tornado_signal import assets, handlers, openapi
from tornado_signal.handlers import streams

pytest_plugins = ["http_fixtures"]

TIMEOUT_MS = 300_000
FILES = {path: media_type for path, (_, media_type) in (assets.CLIENT | assets.DEMO).items()}
DOCUMENT = openapi.make_document(TIMEOUT_MS, FILES)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {each.ok().label: each.ok() for each in SCHEMA.get_all_operations()}
STREAMS = {"GET /{topic}/events", "GET /events"}
EXAMPLES = 30  # of an operation, in each mode
WAIT_S = 0.01  # what waits are cut to, other than those that are refused
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


async def test_it_is_served(service):
    """GET /openapi.json answers the document, with the configured maximum in it."""
    assert await service.get("/openapi.json") == json.loads(json.dumps(DOCUMENT))
    assert DOCUMENT["paths"]["/{topic}/offer"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "properties"
    ]["ttl"]["maximum"] == (TIMEOUT_MS)


def test_it_has_every_route():
    """Each route is in the document and nothing else is, with the methods that it has."""
    routes = (
        handlers.FIXED
        | handlers.FILES
        | handlers.DEMO
        | {f"/{{topic}}/{last}": each for last, each in handlers.BY_TOPIC.items()}
    )
    implied = {"HEAD", "OPTIONS"}  # whatever has GET has HEAD, and everything has OPTIONS
    expected = {path: set(handler.methods) - implied for path, handler in routes.items()}
    assert {path: {method.upper() for method in each} for path, each in DOCUMENT["paths"].items()} == expected
    assert {label for label in OPERATIONS if issubclass(routes[label.split(" ")[1]], streams.Stream)} == STREAMS
    names = [operation["operationId"] for each in DOCUMENT["paths"].values() for operation in each.values()]
    assert len(names) == len(set(names)) == len(OPERATIONS)


def test_it_is_openapi():
    """It is valid as OpenAPI 3.1, by the standard's own schema."""
    assert DOCUMENT["openapi"].startswith("3.1.")
    SCHEMA.validate()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The installed command as a process, with two sessions in it: unanswered and answered."""
    started = Server("--data-dir", tmp_path_factory.mktemp("openapi") / "data", "--durability", "os")
    started.known = [started.offer(), started.offer()]
    started.call("/answer", {"code": started.known[1], "side": "answerer", "answer": "a"})
    yield started
    started.end()


def make_case(data, operation, mode, server):
    """A request to one operation; about a session that exists, now and then, and with no long wait."""
    case = data.draw(operation.as_strategy(mode))
    fields = case.body if operation.method == "post" else case.query
    if isinstance(fields, dict):
        if "code" in fields and data.draw(st.booleans()):
            fields["code"] = (
                server.offer() if "withdraw" in operation.path else data.draw(st.sampled_from(server.known))
            )
        wait = fields.get("wait")
        if re.fullmatch(r"[0-9.]+", str(wait)) and 0 < float(wait) <= 60:
            fields["wait"] = WAIT_S
        if data.draw(st.booleans()):
            fields.pop("since", None)
    return case


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", sorted(set(OPERATIONS) - STREAMS))
def test_every_operation(label, mode, server):
    """Whatever is sent by the document, or against it, the answer is one that the document has, and never a 500."""
    operation = OPERATIONS[label]
    seen = set()

    @hypothesis.settings(max_examples=EXAMPLES, suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.seed(1)
    @hypothesis.given(st.data())
    def drive(data):
        case = make_case(data, operation, mode, server)
        own = mode is GenerationMode.NEGATIVE and data.draw(st.booleans())  # with the Origin that it makes up
        response = case.call(base_url=server.url, headers={} if own else {"Origin": ORIGIN}, timeout=10)
        case.validate_response(response, checks=[*CHECKS, checks.negative_data_rejection] if own else CHECKS)
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
            sent = case.as_transport_kwargs(base_url=server.url, headers={"Origin": ORIGIN})
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
