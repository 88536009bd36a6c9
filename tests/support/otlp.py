"""A collector of OpenTelemetry: a real receiver of OTLP over HTTP, in a thread."""

import gzip
import threading

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .waiting import Handler, LocalServer, until

KINDS = {1: "INTERNAL", 2: "SERVER"}
ERROR = 2


class Exported:
    """One received span.

    Attributes:
        name, kind: as sent.
        attributes, resource: the attributes of the span and of its process.
        trace_id, span_id, parent_id: in hexadecimal digits. `parent_id` is empty for a root.
        seconds: its duration.
        began_s: its start in Unix seconds.
        failed: whether its status is an error.
    """

    def __init__(self, span, resource):
        self.name, self.kind = span.name, KINDS[span.kind]
        self.attributes, self.resource = values(span.attributes), values(resource.attributes)
        self.trace_id, self.span_id, self.parent_id = (
            part.hex() for part in (span.trace_id, span.span_id, span.parent_span_id)
        )
        self.seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        self.began_s = span.start_time_unix_nano / 1e9
        self.failed = span.status.code == ERROR
        assert not any((span.events, span.links, span.trace_state, span.status.message))

    def __repr__(self):
        return f"<{self.kind} {self.name} {self.attributes} failed={self.failed}>"


def values(attributes):
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


class Collector:
    """A collector, as a context manager.

    Attributes:
        url: its address.
        spans: the received spans, in order.
        bodies: the bodies of the requests, not compressed.
        headers: the headers of the requests, with names in lower case.
        status: the status of responses.
        requests: the number of requests.
        requested: set when there has been a request.
        released: cleared while requests get no response.
    """

    def __init__(self, port=0):
        collector = self

        class Collecting(Handler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.requests += 1
                collector.requested.set()
                collector.released.wait()
                if collector.status == 200:
                    collector.receive(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                self.send(collector.status, b"", {})

        self.spans, self.bodies, self.headers = [], [], []
        self.status, self.requests = 200, 0
        self.released, self.requested = threading.Event(), threading.Event()
        self.released.set()
        self._server = LocalServer(Collecting, port)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"

    def receive(self, path, headers, body):
        assert path == "/v1/traces"
        assert headers["content-type"] == "application/x-protobuf"
        body = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        self.headers.append(headers)
        self.bodies.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                assert scope.scope.name == "tornado_signal"
                self.spans += [Exported(span, resource.resource) for span in scope.spans]

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.released.set()
        self._server.close()

    def wait_for(self, name):
        """Return the first span of a name, once it has arrived."""
        until(lambda: any(span.name == name for span in list(self.spans)))
        return self.named(name)[0]

    def named(self, name):
        return [span for span in self.spans if span.name == name]
