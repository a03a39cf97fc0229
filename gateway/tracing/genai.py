"""The histograms of OpenTelemetry's conventions for model servers, made of call stats.

    gen_ai.server.request.duration          of all calls           pdgate_call_seconds
    gen_ai.server.time_to_first_token       of streams             pdgate_ttft_seconds
    gen_ai.server.time_per_output_token     of streams             pdgate_tpot_seconds

They count from the start of the process. Sampling has no part in them. Each operation is stated for
itself, so that a chat's time is not that of embeddings.

Source: opentelemetry-semantic-conventions 0.66b2, _incubating/metrics/gen_ai_metrics.py.
"""

from collections.abc import Callable
from time import time_ns
from typing import Any, Final, cast

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Histogram as Histograms

from pdgate.gateway.metrics.aggregates import grouped
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.metrics.histogram import SECONDS, Histogram
from pdgate.gateway.tracing import conventions
from pdgate.gateway.tracing.conventions import operation
from pdgate.gateway.tracing.export import SCOPE, resource_of

_NAMES: Final = {
    "call": "gen_ai.server.request.duration",
    "ttft": "gen_ai.server.time_to_first_token",
    "tpot": "gen_ai.server.time_per_output_token",
}
_NOT_KNOWN: Final = cast(float, None)
"""Of the least and the greatest value, which are optional on the wire."""


def metrics_of(stats: CallStats, service_name: str) -> Callable[[], MetricsData]:
    """Makes them of what has been counted by then."""
    resource, started = resource_of(service_name), time_ns()

    def made() -> MetricsData:
        stats.add_up()
        now = time_ns()
        found = grouped(
            stats.aggregates, lambda protocol, model, route: (protocol, model, operation(route))
        )
        metrics = []
        for what, name in _NAMES.items():
            points = [
                _point(aggregate.seconds[what], _attributes(*key), started, now)
                for key, aggregate in found.items()
                if any(aggregate.seconds[what].counts)
            ]
            if points:
                data = Histograms(points, AggregationTemporality.CUMULATIVE)
                metrics.append(Metric(name, "", "s", data))
        return MetricsData([ResourceMetrics(resource, [ScopeMetrics(SCOPE, metrics, "")], "")])

    return made


def _point(
    histogram: Histogram, attributes: dict[str, Any], started: int, now: int
) -> HistogramDataPoint:
    counts = list(histogram.counts)
    return HistogramDataPoint(
        attributes,
        started,
        now,
        sum(counts),
        histogram.sum,
        counts,
        SECONDS,
        _NOT_KNOWN,
        _NOT_KNOWN,
    )


def _attributes(protocol: str, model: str, named: str) -> dict[str, Any]:
    found = {
        conventions.OPERATION: named,
        conventions.PROVIDER: conventions.SERVED_BY,
        "pdgate.protocol": protocol,
    }
    if model:
        found[conventions.REQUEST_MODEL] = model
    return found
