"""A collector of OpenTelemetry: a real receiver of OTLP over HTTP, in a thread."""

import gzip

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .backend import Backend, Responding, responding
from .waiting import until

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

    def __repr__(self):
        return f"<{self.kind} {self.name} {self.attributes} failed={self.failed}>"


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
    """A collector, as a context manager. `bodies` are those of accepted requests, not compressed."""

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
