"""A collector: takes OTLP over HTTP, and decodes it with OpenTelemetry's own messages.

async with collector() as collected:
    async with gateway_of(..., tracing=TracingSection(endpoint=collected.url)):
        ...
    collected.spans                 # all of them: a gateway sends what is left when it ends
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.raw_server import Peer, Request, raw_server, reply

PROTOBUF = b"content-type: application/x-protobuf"


@dataclass
class Collected:
    """
    Attributes:
        refuses: Answers 400 to all that comes.
        resources: Of every span, in the order of `spans`.
    """

    url: str = ""
    refuses: bool = False
    requests: list[Request] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    resources: list[dict[str, Any]] = field(default_factory=list)
    metrics: dict[str, Metric] = field(default_factory=dict)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        (span,) = self.named(name)
        return span

    async def take(self, peer: Peer) -> None:
        self.requests.append(peer.request)
        path = peer.request.line.split()[1]
        if self.refuses:
            await peer.send(reply(b"", b"400 Bad Request"))
        elif path == b"/v1/traces":
            self._take_spans(peer.request.body)
            done = ExportTraceServiceResponse().SerializeToString()
            await peer.send(reply(done, b"200 OK", PROTOBUF))
        else:
            assert path == b"/v1/metrics"
            self._take_metrics(peer.request.body)
            done = ExportMetricsServiceResponse().SerializeToString()
            await peer.send(reply(done, b"200 OK", PROTOBUF))

    def _take_spans(self, body: bytes) -> None:
        asked = ExportTraceServiceRequest.FromString(body)
        for resource_spans in asked.resource_spans:
            resource = attributes(resource_spans.resource)
            for scope in resource_spans.scope_spans:
                self.spans += scope.spans
                self.resources += [resource] * len(scope.spans)

    def _take_metrics(self, body: bytes) -> None:
        asked = ExportMetricsServiceRequest.FromString(body)
        for resource_metrics in asked.resource_metrics:
            for scope in resource_metrics.scope_metrics:
                self.metrics |= {metric.name: metric for metric in scope.metrics}


def attributes(found: Any) -> dict[str, Any]:
    """Of a span, a resource or a data point."""
    return {each.key: _value(each.value) for each in found.attributes}


def _value(found: Any) -> Any:
    kind = found.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in found.array_value.values]
    return getattr(found, kind)


@asynccontextmanager
async def collector() -> AsyncIterator[Collected]:
    collected = Collected()
    async with raw_server(collected.take) as server:
        collected.url = server.url
        yield collected
