"""Spans of requests, sent to a real receiver of OTLP (docs/monitoring.md#traces)."""

import asyncio
import gzip
import signal
import time

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.backend import Backend, Responding, hang, responding
from support.command import ORIGIN, call, commit, run
from support.rpc import RpcClient
from support.service import NO_SUCH_CODE
from support.sse import open_stream
from support.traffic import SECRETS, traffic
from support.waiting import until
from support.y_webrtc import RawClient

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = (f"00-{TRACE}-{PARENT}-{flags}" for flags in ("01", "00"))
OFFER = {"info": "i", "offer": "o"}
SOON = {"OTEL_BSP_SCHEDULE_DELAY": "50"}  # between two batches, in milliseconds
NEVER = {"OTEL_BSP_SCHEDULE_DELAY": "3600000"}
DROPPED = "are dropped: "

# Python imports these before the command starts.
DEFECT = """
import tornado_signal.stores.leveldb.store
async def broken(self, *arguments, **options):
    raise ValueError("hidden")
tornado_signal.stores.leveldb.store.LevelDBStore.read = broken
"""
WITHOUT_PACKAGE = "import sys; sys.modules['opentelemetry'] = None"
KINDS = {1: "INTERNAL", 2: "SERVER"}
ERROR = 2


class Exported:
    """One received span. Ids are hexadecimal digits, and `parent_id` is empty for a root. It began in Unix seconds."""

    def __init__(self, span, resource):
        self.name, self.kind = span.name, KINDS[span.kind]
        self.attributes, self.resource = values(span.attributes), values(resource.attributes)
        ids = (span.trace_id, span.span_id, span.parent_span_id)
        self.trace_id, self.span_id, self.parent_id = (each.hex() for each in ids)
        self.seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.began_s = span.start_time_unix_nano / 1e9
        self.failed = span.status.code == ERROR
        assert not any((span.events, span.links, span.trace_state, span.status.message))


def values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collecting(Responding):
    def send(self, status, data, headers):
        """Respond, and before that decode what is accepted."""
        if status == 200:
            assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
            body = gzip.decompress(self.body) if self.headers["Content-Encoding"] == "gzip" else self.body
            self.server.bodies.append(body)
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    assert scope.scope.name == "tornado_signal"
                    self.server.spans += [Exported(span, resource.resource) for span in scope.spans]
        super().send(status, data, headers)


class Collector(Backend):
    """A collector of OpenTelemetry: a real receiver. `bodies` are those of accepted requests, not compressed."""

    handler, behaviour = Collecting, staticmethod(responding(b""))

    def __init__(self):
        self.spans, self.bodies = [], []
        super().__init__()
        self.url = self.base

    def wait_for(self, name):
        """Return the first span of a name, once it has arrived."""
        return until(lambda: self.named(name))[0]

    def named(self, name):
        return [span for span in list(self.spans) if span.name == name]


@pytest.fixture
def collector():
    with Collector() as collector:
        yield collector


@pytest.fixture
def traced(start, collector):
    """A function that starts a server whose spans go to `collector`."""

    def starting(*arguments, **variables):
        return start("--otlp-endpoint", collector.url, *arguments, **{**SOON, **variables})

    return starting


def send(server, method, path, body=None, traceparent=SAMPLED, **headers):
    return server.exchange(path, body, method=method, traceparent=traceparent, **headers)[0]


def web_socket(server, path="/ws", client=RpcClient, traceparent=SAMPLED):
    return client(f"ws://127.0.0.1:{server.port}{path}", ORIGIN, additional_headers={"traceparent": traceparent})


def of_http(method, status, route=None, **more):
    attributes = {"http.request.method": method, "url.scheme": "http", "http.response.status_code": status}
    return attributes | ({"http.route": route} if route else {}) | more


def refused_for(reason):
    return {"tornado_signal.refusal": reason}


def test_each_request_is_a_span_of_its_callers_trace_and_the_last_ones_are_exported_at_the_stop(traced, collector):
    server = traced(**NEVER)
    expected, began_s = [], time.time()
    for method, path, route, reason, *body in [
        ("GET", "/health", "/health", None),
        ("HEAD", "/health?hidden", "/health", None),
        ("OPTIONS", "/topics", "/topics", None),
        ("POST", "/lobby/offer", "/:topic/offer", None, OFFER),
        ("POST", "/lobby/offer", "/:topic/offer", "info", {}),
        ("POST", "/poll", "/poll", "session not found", {"code": NO_SUCH_CODE, "side": "offerer"}),
        ("DELETE", "/health", "/health", "method not allowed"),
        ("GET", "/no/such/path", None, "path not found"),
        ("PROPFIND", "/health", "/health", "method not allowed"),
    ]:
        status = send(server, method, path, *body)
        name = "HTTP /health" if method == "PROPFIND" else f"{method} {route}" if route else method
        shown = "_OTHER" if method == "PROPFIND" else method
        expected.append((name, of_http(shown, status, route, **(refused_for(reason) if reason else {}))))
    for path in ("/topics", "/empty/sessions?wait=0.01"):
        assert send(server, "GET", path, traceparent=UNSAMPLED) == 200
    invalid = ["", "", "hidden", SAMPLED.upper(), SAMPLED + "-00", "ff" + SAMPLED[2:]]
    for traceparent in invalid:
        assert send(server, "GET", "/health", traceparent=traceparent) == 200
    assert send(server, "GET", "/empty/sessions?wait=0.3") == 200
    assert collector.spans == []
    assert server.stop() == 0
    ended_s = time.time()
    spans, others, (waited,) = (collector.spans[at] for at in (slice(9), slice(9, -1), slice(-1, None)))
    assert [(span.name, span.attributes) for span in spans] == expected
    for span in [*spans, waited]:
        assert (span.kind, span.trace_id, span.parent_id, span.failed) == ("SERVER", TRACE, PARENT, False)
        assert began_s - 0.001 < span.began_s <= span.began_s + span.seconds < ended_s + 0.001
        assert span.seconds > 0
    assert len({span.span_id for span in collector.spans}) == len(expected) + len(invalid) + 1
    # Those without a valid parent begin a trace.
    assert [span.parent_id for span in others] == [""] * len(invalid)
    assert len({TRACE, *(span.trace_id for span in others)}) == len(invalid) + 1
    waited_s = waited.attributes.pop("tornado_signal.wait.duration")
    assert waited.attributes == of_http("GET", 200, "/:topic/sessions")
    assert 0.29 < waited_s < waited.seconds
    assert not any(b"hidden" in body for body in collector.bodies)
    assert len(bytes.fromhex(waited.resource.pop("service.instance.id"))) == 8
    found = {name: value for name, value in waited.resource.items() if name.startswith("service.")}
    assert found == {"service.name": "tornado-signal", "service.version": commit()}


def test_internal_error_is_a_failed_span_and_a_request_beyond_the_rate_is_not(traced, collector, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    limits = ("--rate-per-address", 1, "--unlimited-addresses", "none")
    server = traced(*limits, PYTHONPATH=str(tmp_path))
    statuses = [send(server, "POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"})]
    while statuses[-1] != 429:
        statuses.append(send(server, "GET", "/health"))
    assert server.stop() == 0
    assert [span.attributes["http.response.status_code"] for span in collector.spans] == statuses
    failed, *_, limited = collector.spans
    assert (failed.attributes, failed.failed) == (of_http("POST", 500, "/poll", **{"error.type": "500"}), True)
    assert (limited.attributes["tornado_signal.refusal"], limited.failed) == ("requests of an address", False)
    assert not any(b"hidden" in body for body in collector.bodies)


async def test_stream_is_a_span_at_once_and_another_one_at_its_end(traced, collector):
    server = traced()
    async with open_stream(server.port, "/lobby/events?hidden=hidden"):
        begun = await asyncio.to_thread(collector.wait_for, "GET /:topic/events")
        assert collector.named("stream /:topic/events") == []
    ended = await asyncio.to_thread(collector.wait_for, "stream /:topic/events")
    assert server.stop() == 0
    assert begun.attributes == ended.attributes == of_http("GET", 200, "/:topic/events")
    assert (begun.kind, ended.kind) == ("SERVER", "INTERNAL")
    assert (ended.trace_id, ended.parent_id) == (begun.trace_id, begun.span_id)
    assert ended.began_s >= begun.began_s
    assert len(collector.spans) == 2


async def test_websocket_messages_are_spans_of_the_trace_of_their_handshake(traced, collector):
    server = traced()
    async with web_socket(server, traceparent=UNSAMPLED) as client:
        await client.call("topics")
        await client.call("subscribe", topic="lobby")
    async with web_socket(server, "/y-webrtc", RawClient) as client:
        await client.send({"type": "subscribe", "topics": ["hidden"]})
        await client.send({"type": "ping"})
        await client.receive()
    async with web_socket(server) as client:
        await client.call("offer", topic="hidden", **OFFER)
        assert (await client.refused("poll", code=NO_SUCH_CODE, side="offerer"))[0] == 404
        assert (await client.refused("hidden"))[0] == -32601
        await client.call("topics")
        assert (await client.refused("subscribe", topic="x" * 1000))[0] == 400
        await client.call("subscribe", topic="hidden")
        await client.call("poll", code=server.offer(), side="offerer", wait=0.2)
    ended = await asyncio.to_thread(collector.wait_for, "stream /:topic/events")
    assert server.stop() == 0
    rpc = {"rpc.system.name": "jsonrpc", "jsonrpc.protocol.version": "2.0"}
    spans = [span for span in collector.spans if "rpc.method" in span.attributes]
    waited_s = spans[-1].attributes.pop("tornado_signal.wait.duration")
    assert 0.19 < waited_s < spans[-1].seconds
    expected = []
    for method, status, reason in (
        ("offer", None, None),
        ("poll", "404", "session not found"),
        ("topics", None, None),
        ("subscribe", "400", "topic"),
        ("subscribe", None, None),
        ("poll", None, None),
    ):
        error = {"rpc.response.status_code": status, "error.type": status} | refused_for(reason) if status else {}
        expected.append((method, rpc | {"rpc.method": method} | error, bool(status)))
    assert [(span.name, span.attributes, span.failed) for span in spans] == expected
    (handshake,), others = collector.named("GET /ws"), collector.named("WS /y-webrtc")
    assert handshake.attributes == of_http("GET", 101, "/ws")
    assert [(span.attributes, span.failed) for span in others] == [({"http.route": "/y-webrtc"}, False)] * len(others)
    assert len(others) >= 2
    for span in (*spans, *others, handshake):
        assert (span.kind, span.trace_id, span.parent_id) == ("SERVER", TRACE, PARENT)
    subscribed = collector.named("subscribe")[1]
    assert (ended.kind, ended.trace_id, ended.parent_id) == ("INTERNAL", TRACE, subscribed.span_id)
    assert (ended.attributes, len(collector.named(ended.name))) == ({"http.route": "/:topic/events"}, 1)
    assert not any(b"hidden" in body for body in collector.bodies)


def test_variables_of_the_sdk_apply(traced, collector):
    resource = "deployment.environment.name=test,service.instance.id=pod-7"
    sdk = {"TRACES_SAMPLER": "parentbased_always_off", "SERVICE_NAME": "my signaling", "RESOURCE_ATTRIBUTES": resource}
    sdk |= {"EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc", "EXPORTER_OTLP_COMPRESSION": "gzip"}
    server = traced(**{f"OTEL_{name}": value for name, value in sdk.items()})
    assert send(server, "GET", "/topics", traceparent=None) == 200
    assert send(server, "GET", "/health") == 200
    assert server.stop() == 0
    (span,) = collector.spans
    assert span.name == "GET /health"
    given = {"service.name": "my signaling", "deployment.environment.name": "test", "service.instance.id": "pod-7"}
    assert given.items() <= span.resource.items()
    (request,) = collector.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    assert (headers["authorization"], headers["content-encoding"]) == ("Bearer abc", "gzip")


def test_spans_contain_nothing_that_peers_send(traced, collector):
    server = traced("--trusted-proxies", "127.0.0.1", "--allowed-origins", f"{ORIGIN},https://hidden.example")
    requests, code = traffic(server)
    hidden = {"tracestate": "hidden=hidden", "baggage": "hidden=1", "Authorization": "Bearer hidden"}
    hidden |= {"X-Request-Id": "hidden", "X-Forwarded-For": "203.0.113.9", "User-Agent": "hidden", "Cookie": "hidden"}
    assert send(server, "GET", "/hidden/sessions?wait=0.1&hidden=hidden", **hidden) in (200, 400)
    assert server.stop() == 0
    assert len(collector.spans) == len(requests) + 1
    digits = code.replace("-", "")
    words = [*SECRETS, code, digits, "203.0.113.9", "app.example", "hidden.example"]
    for body in collector.bodies:
        assert [word for word in words if word.encode() in body.lower()] == []
        assert bytes.fromhex(digits) not in body


def test_each_worker_exports_its_spans(traced, collector, redis, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = traced("--durability", "os", "--workers", 2, redis=redis)

    def instances():
        assert send(server, "GET", "/health") == 200
        return {span.resource["service.instance.id"] for span in list(collector.spans)}

    until(lambda: len(instances()) == 2)
    assert sorted(name.rpartition("-")[2] for name in instances()) == ["1", "2"]
    assert server.stop() == 0


def test_outage_of_the_collector_is_logged_once(traced, collector):
    collector.behaviour = responding(b"", 400)
    server = traced()

    def batches(number):
        assert send(server, "GET", "/health") == 200
        return len(collector.requests) >= number

    until(lambda: batches(5))
    collector.behaviour = responding(b"", 200)
    until(lambda: (send(server, "GET", "/topics"), collector.named("GET /topics"))[1])
    assert server.stop() == 0
    failed, again = [line for line in server.log if "tracing" in line or "opentelemetry" in line]
    warning = "WARNING tornado_signal.tracing.spans: spans cannot be exported to "
    assert (f"{warning}{collector.url} and {DROPPED}" in failed, "400" in failed) == (True, True)
    assert "INFO tornado_signal.tracing.spans: spans are exported to " in again


def test_collector_that_does_not_respond_delays_nothing(traced, collector):
    collector.behaviour = hang
    server = traced(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    assert send(server, "GET", "/health") == 200
    until(lambda: collector.requests)
    for _ in range(50):  # more than the queue holds
        assert send(server, "GET", "/health") == 200
    assert server.stop() == 0
    full, late = [line for line in server.log if "WARNING" in line]
    assert "tornado_signal.tracing.spans: OpenTelemetry: Queue full, dropping Span." in full
    assert "tornado_signal.tracing.spans: the last spans were not exported within 2 s and are dropped" in late


def test_second_signal_stops_without_a_collector(traced, collector):
    collector.behaviour = hang
    server = traced("--drain-delay-ms", 5000)
    assert send(server, "GET", "/health") == 200
    until(lambda: collector.requests)
    server.process.send_signal(signal.SIGTERM)
    assert "stopping: draining" in server.process.stderr.readline()
    assert server.stop() == 0
    assert any("stopping at once" in line for line in server.log)
    assert not any("span" in line for line in server.log)


@pytest.mark.parametrize("check", [True, False])
def test_missing_package_and_wrong_variables_are_errors(check, tmp_path):
    flags = ["serve", "--port", 0, "--otlp-endpoint", "http://127.0.0.1:9", *(["--check"] if check else [])]
    wrong = call(*flags, cwd=tmp_path, OTEL_BSP_MAX_QUEUE_SIZE="0")
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_PACKAGE)
    missing = run(*flags, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    for done, reason in [
        (missing, "--otlp-endpoint needs the extra otel; in the checkout: pip install '.[otel]'"),
        (wrong, "a variable OTEL_… cannot be used: max_queue_size must be a positive integer"),
    ]:
        assert (done.returncode, reason in done.stderr, done.stderr.count("\n")) == (1, True, 1)
