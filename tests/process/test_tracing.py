"""Spans of requests, sent to a real receiver of OTLP (docs/monitoring.md#traces)."""

import asyncio
import contextlib
import signal
import socket
import time

import pytest
from support.command import BOUND_S, ORIGIN, call, commit, run
from support.otlp import Collector
from support.redis_servers import RedisServer
from support.rpc import RpcClient
from support.service import NO_SUCH_CODE
from support.sse import open_stream
from support.traffic import SECRETS, traffic
from support.waiting import until
from support.y_webrtc import RawClient

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
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
MODULES_AT_EXIT = """
import atexit, pathlib, sys
atexit.register(lambda: pathlib.Path("modules").write_text(" ".join(sys.modules)))
"""
WITHOUT_PACKAGE = "import sys; sys.modules['opentelemetry'] = None"


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
    """Send a request on a connection of its own, and return its status."""
    return server.exchange(path, body, method=method, traceparent=traceparent, **headers)[0]


def web_socket(server, path="/ws", client=RpcClient, traceparent=SAMPLED):
    return client(f"ws://127.0.0.1:{server.port}{path}", ORIGIN, additional_headers={"traceparent": traceparent})


def of_http(method, status, route=None, **more):
    attributes = {"http.request.method": method, "url.scheme": "http", "http.response.status_code": status}
    return attributes | ({"http.route": route} if route else {}) | more


def refused_for(reason):
    return {"tornado_signal.refusal": reason}


def test_each_request_is_a_span_of_its_callers_trace(traced, collector):
    server = traced()
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
    ]:
        status = send(server, method, path, *body)
        name = f"{method} {route}" if route else method
        expected.append((name, of_http(method, status, route, **(refused_for(reason) if reason else {}))))
    assert send(server, "PROPFIND", "/health") == 405
    expected.append(("HTTP /health", of_http("_OTHER", 405, "/health", **refused_for("method not allowed"))))
    assert server.stop() == 0
    ended_s = time.time()
    assert [(span.name, span.attributes) for span in collector.spans] == expected
    for span in collector.spans:
        assert (span.kind, span.trace_id, span.parent_id, span.failed) == ("SERVER", TRACE, PARENT, False)
        assert began_s - 0.001 < span.began_s <= span.began_s + span.seconds < ended_s + 0.001
        assert span.seconds > 0
    assert len({span.span_id for span in collector.spans}) == len(expected)


def test_request_without_a_valid_parent_begins_a_trace(traced, collector):
    server = traced()
    invalid = ["", "", "hidden", SAMPLED.upper(), SAMPLED + "-00", "ff" + SAMPLED[2:]]
    for traceparent in invalid:
        assert send(server, "GET", "/health", traceparent=traceparent) == 200
    assert server.stop() == 0
    assert [span.parent_id for span in collector.spans] == [""] * len(invalid)
    assert len({TRACE, *(span.trace_id for span in collector.spans)}) == len(invalid) + 1
    assert not any(b"hidden" in body for body in collector.bodies)


def test_internal_error_is_a_failed_span(traced, collector, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(DEFECT)
    server = traced(PYTHONPATH=str(tmp_path))
    assert send(server, "POST", "/poll", {"code": NO_SUCH_CODE, "side": "offerer"}) == 500
    assert server.stop() == 0
    (span,) = collector.spans
    assert (span.attributes, span.failed) == (of_http("POST", 500, "/poll", **{"error.type": "500"}), True)
    assert not any(b"hidden" in body for body in collector.bodies)


def test_request_beyond_the_rate_is_a_span(traced, collector):
    server = traced("--rate-per-address", 1, "--unlimited-addresses", "none")
    statuses = [200]
    while statuses[-1] != 429:
        statuses.append(send(server, "GET", "/health"))
    assert server.stop() == 0
    assert [span.attributes["http.response.status_code"] for span in collector.spans] == statuses[1:]
    limited = collector.spans[-1]
    assert limited.attributes["tornado_signal.refusal"] == "requests of an address"
    assert not limited.failed


def test_long_poll_is_one_span_with_the_time_of_its_wait(traced, collector):
    server = traced()
    assert send(server, "GET", "/lobby/sessions?wait=0.3&since=0") in (200, 400)
    assert send(server, "GET", "/lobby/sessions?wait=0.3") == 200
    assert server.stop() == 0
    *_, span = collector.spans
    waited_s = span.attributes.pop("tornado_signal.wait.duration")
    assert span.attributes == of_http("GET", 200, "/:topic/sessions")
    assert 0.29 < waited_s < span.seconds


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


async def test_websocket_requests_are_spans_of_the_trace_of_their_handshake(traced, collector):
    server = traced()
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
    error = {"rpc.response.status_code": "404", "error.type": "404"}
    spans = [span for span in collector.spans if "rpc.method" in span.attributes]
    waited_s = spans[-1].attributes.pop("tornado_signal.wait.duration")
    assert 0.19 < waited_s < spans[-1].seconds
    assert [(span.name, span.attributes, span.failed) for span in spans] == [
        ("offer", rpc | {"rpc.method": "offer"}, False),
        ("poll", rpc | {"rpc.method": "poll"} | error | refused_for("session not found"), True),
        ("topics", rpc | {"rpc.method": "topics"}, False),
        (
            "subscribe",
            rpc
            | {"rpc.method": "subscribe", "rpc.response.status_code": "400", "error.type": "400"}
            | refused_for("topic"),
            True,
        ),
        ("subscribe", rpc | {"rpc.method": "subscribe"}, False),
        ("poll", rpc | {"rpc.method": "poll"}, False),
    ]
    assert collector.named("GET /ws")[0].attributes == of_http("GET", 101, "/ws")
    for span in [*spans, *collector.named("GET /ws")]:
        assert (span.kind, span.trace_id, span.parent_id) == ("SERVER", TRACE, PARENT)
    subscribed = collector.named("subscribe")[1]
    assert (ended.kind, ended.trace_id, ended.parent_id) == ("INTERNAL", TRACE, subscribed.span_id)
    assert ended.attributes == {"http.route": "/:topic/events"}
    assert not any(b"hidden" in body for body in collector.bodies)


async def test_messages_of_other_protocols_are_spans(traced, collector):
    server = traced()
    async with web_socket(server, "/y-webrtc", RawClient) as client:
        await client.send({"type": "subscribe", "topics": ["hidden"]})
        await client.send({"type": "ping"})
        await client.receive()
    assert server.stop() == 0
    spans = collector.named("WS /y-webrtc")
    assert len(spans) >= 2
    for span in spans:
        assert (span.kind, span.trace_id, span.parent_id, span.failed) == ("SERVER", TRACE, PARENT, False)
        assert span.attributes == {"http.route": "/y-webrtc"}
    assert not any(b"hidden" in body for body in collector.bodies)


async def test_flag_of_the_parent_decides_whether_a_span_is_exported(traced, collector):
    server, unsampled = traced(), SAMPLED[:-2] + "00"
    async with web_socket(server, traceparent=unsampled) as client:
        await client.call("topics")
        await client.call("subscribe", topic="lobby")
    for traceparent, path in [(unsampled, "/topics"), (SAMPLED, "/health"), (unsampled, "/lobby/sessions?wait=0.01")]:
        assert send(server, "GET", path, traceparent=traceparent) == 200
    assert server.stop() == 0
    assert [span.name for span in collector.spans] == ["GET /health"]


def test_variables_of_the_sdk_apply(traced, collector):
    server = traced(
        OTEL_TRACES_SAMPLER="parentbased_always_off",
        OTEL_SERVICE_NAME="my signaling",
        OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test,service.instance.id=pod-7",
        OTEL_EXPORTER_OTLP_HEADERS="authorization=Bearer%20abc",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )
    assert send(server, "GET", "/topics", traceparent=None) == 200
    assert send(server, "GET", "/health") == 200
    assert server.stop() == 0
    (span,) = collector.spans
    assert span.name == "GET /health"
    given = {"service.name": "my signaling", "deployment.environment.name": "test", "service.instance.id": "pod-7"}
    assert given.items() <= span.resource.items()
    (headers,) = collector.headers
    assert (headers["authorization"], headers["content-encoding"]) == ("Bearer abc", "gzip")


def test_spans_contain_nothing_that_peers_send(traced, collector):
    server = traced("--trusted-proxies", "127.0.0.1", "--allowed-origins", f"{ORIGIN},https://hidden.example")
    requests, code = traffic(server)
    hidden = {"tracestate": "hidden=hidden", "baggage": "hidden=1", "Authorization": "Bearer hidden"}
    hidden |= {"X-Request-Id": "hidden", "X-Forwarded-For": "203.0.113.9", "User-Agent": "hidden", "Cookie": "hidden"}
    assert send(server, "GET", "/hidden/sessions?wait=0.1&hidden=hidden", **hidden) in (200, 400)
    assert server.stop() == 0
    assert len(collector.spans) == len(requests) + 1
    words = [*SECRETS, code, code.replace("-", ""), "203.0.113.9", "app.example", "hidden.example"]
    for body in collector.bodies:
        assert [word for word in words if word.encode() in body.lower() or bytes_of(word) in body] == []


def bytes_of(word):
    """Return a code as bytes, which also must not occur."""
    with contextlib.suppress(ValueError):
        return bytes.fromhex(word.replace("-", ""))
    return word.encode()


def test_last_spans_are_exported_when_the_server_stops(traced, collector):
    server = traced(**NEVER)
    assert send(server, "GET", "/health") == 200
    assert collector.spans == []
    assert server.stop() == 0
    (span,) = collector.spans
    assert len(bytes.fromhex(span.resource.pop("service.instance.id"))) == 8
    found = {name: value for name, value in span.resource.items() if name.startswith("service.")}
    assert found == {"service.name": "tornado-signal", "service.version": commit()}


def test_each_worker_exports_its_spans(traced, collector, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    redis = RedisServer("redis")
    try:
        flags = ("--store", "redis", "--redis-nodes", redis.address, "--durability", "os", "--workers", 2)
        server = traced(*flags)

        def instances():
            assert send(server, "GET", "/health") == 200
            return {span.resource["service.instance.id"] for span in list(collector.spans)}

        until(lambda: len(instances()) == 2)
        assert server.stop() == 0
        assert sorted(name.rpartition("-")[2] for name in instances_of(collector)) == ["1", "2"]
    finally:
        redis.kill()


def instances_of(collector):
    return {span.resource["service.instance.id"] for span in collector.spans}


def test_outage_of_the_collector_is_logged_once(traced, collector):
    collector.status = 400
    server = traced()

    def batches(number):
        assert send(server, "GET", "/health") == 200
        return collector.requests >= number

    until(lambda: batches(5))
    collector.status = 200
    until(lambda: (send(server, "GET", "/topics"), collector.named("GET /topics"))[1])
    assert server.stop() == 0
    lines = [line for line in server.log if "tracing" in line or "opentelemetry" in line]
    assert len(lines) == 2
    assert (
        f"WARNING tornado_signal.tracing.spans: spans cannot be exported to {collector.url} and {DROPPED}" in lines[0]
    )
    assert "400" in lines[0]
    assert "INFO tornado_signal.tracing.spans: spans are exported to " in lines[1]


def test_requests_are_served_without_a_collector(start):
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        reserved.shutdown(socket.SHUT_RDWR)  # connections to its port are refused
        server = start("--otlp-endpoint", url, **SOON, OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
        assert send(server, "GET", "/health") == 200
        line = server.process.stderr.readline()
        assert f"spans cannot be exported to {url} and {DROPPED}" in line
        for _ in range(20):
            assert send(server, "POST", "/lobby/offer", OFFER) == 200
        assert server.stop() == 0
    assert [line for line in server.log if "spans" in line or "opentelemetry" in line] == []


def test_collector_that_does_not_respond_delays_nothing(traced, collector):
    collector.released.clear()
    server = traced(OTEL_BSP_MAX_QUEUE_SIZE="4", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="2")
    assert send(server, "GET", "/health") == 200
    assert collector.requested.wait(BOUND_S)
    for _ in range(50):  # more than the queue holds
        assert send(server, "GET", "/health") == 200
    assert server.stop() == 0
    full, late = [line for line in server.log if "WARNING" in line]
    assert "tornado_signal.tracing.spans: OpenTelemetry: Queue full, dropping Span." in full
    assert "tornado_signal.tracing.spans: the last spans were not exported within 2 s and are dropped" in late


def test_second_signal_stops_without_a_collector(traced, collector):
    collector.released.clear()
    server = traced("--drain-delay-ms", 5000)
    assert send(server, "GET", "/health") == 200
    assert collector.requested.wait(BOUND_S)
    server.process.send_signal(signal.SIGTERM)
    assert "stopping: draining" in server.process.stderr.readline()
    assert server.stop() == 0
    assert any("stopping at once" in line for line in server.log)
    assert not any("span" in line for line in server.log)


@pytest.mark.parametrize("on", [True, False])
def test_package_is_imported_only_with_a_collector(on, start, collector, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MODULES_AT_EXIT)
    server = start(*(["--otlp-endpoint", collector.url] if on else []), PYTHONPATH=str(tmp_path))
    assert send(server, "GET", "/health") == 200
    assert server.stop() == 0
    packages = {name.partition(".")[0] for name in (tmp_path / "modules").read_text().split()}
    assert ({"opentelemetry", "requests"} <= packages) == on
    assert on or not {"opentelemetry", "requests", "urllib3", "google"} & packages


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
        assert done.returncode == 1
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1
