"""Calls of each route are counted for themselves, and with the others of their model."""

from collections.abc import Sequence

import pytest
from opentelemetry.sdk.metrics.export import HistogramDataPoint

from pdgate.forwarders.record import PLAIN, Record
from pdgate.gateway.metrics.call_stats import CallStats
from pdgate.gateway.tracing import conventions
from pdgate.gateway.tracing.genai import metrics_of
from pdgate.protocols.apis import APIS, OTHER, PASSED, STORED, Api
from pdgate.protocols.call import CHAT, COMPLETIONS, Call
from tests.support.clock import Clock

EMBEDDINGS, RESPONSES = APIS["/v1/embeddings"], APIS["/v1/responses"]
SPEECH = "/v1/audio/speech?voice=secret"


def call(path: str, api: Api | None = None) -> Call:
    return Call("c", "c-1", path, {}, model="m", api=api)


def served(*calls: Call) -> CallStats:
    """Each took a second longer than the one before."""
    stats, clock = CallStats([]), Clock(100.0)
    for seconds, one in enumerate(calls, start=1):
        record = Record(one, clock)
        stats.opened(record)
        record.path, record.protocol = PLAIN, "plain"
        clock.now += seconds
        record.end("ok", 200)
        stats.closed(record)
    return stats


def told(stats: CallStats, name: str) -> dict[tuple[str, ...], float]:
    """Label values -> value, where it is not 0."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in stats.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


@pytest.mark.parametrize(
    ("path", "api", "route"),
    [
        (CHAT, None, CHAT),
        (COMPLETIONS, None, COMPLETIONS),
        ("/v1/embeddings", EMBEDDINGS, "/v1/embeddings"),
        ("/v1/responses", RESPONSES, "/v1/responses"),
        ("/v1/responses/resp_7", STORED, OTHER),
        (SPEECH, PASSED, OTHER),
    ],
)
def test_a_call_has_one_of_a_few_routes(path: str, api: Api | None, route: str) -> None:
    """What is passed through could be called anything."""
    assert call(path, api).route == route
    assert Record(call(path, api)).as_json()["api"] == route


def test_routes_are_counted_apart() -> None:
    stats = served(call(CHAT), call(CHAT), call("/v1/embeddings", EMBEDDINGS), call(SPEECH, PASSED))

    assert told(stats, "pdgate_api_calls_total") == {
        (CHAT, "ok"): 2,
        ("/v1/embeddings", "ok"): 1,
        (OTHER, "ok"): 1,
    }


def test_a_model_is_told_as_one_whatever_its_routes() -> None:
    stats = served(call(CHAT), call(COMPLETIONS), call("/v1/embeddings", EMBEDDINGS))

    for _ in range(2):
        assert told(stats, "pdgate_calls_total") == {("plain", "m", PLAIN, "ok"): 3}
        assert told(stats, "pdgate_call_seconds_count") == {("plain", "m"): 3}
        assert told(stats, "pdgate_call_seconds_sum") == {("plain", "m"): 6}


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([call(CHAT)], {"chat": 1.0}),
        ([call(CHAT), call("/v1/responses", RESPONSES)], {"chat": 3.0}),
        (
            [call(COMPLETIONS), call("/v1/embeddings", EMBEDDINGS)],
            {"text_completion": 1.0, "embeddings": 2.0},
        ),
        (
            [call("/v2/rerank", APIS["/v2/rerank"]), call(SPEECH, PASSED)],
            {"rerank": 1.0, OTHER: 2.0},
        ),
    ],
)
def test_the_histograms_of_opentelemetry_are_by_operation(
    calls: Sequence[Call], named: dict[str, float]
) -> None:
    (resource,) = metrics_of(served(*calls), "pdgate")().resource_metrics
    (metric,) = resource.scope_metrics[0].metrics

    found = {}
    for point in metric.data.data_points:
        assert isinstance(point, HistogramDataPoint)
        found[(point.attributes or {})[conventions.OPERATION]] = point.sum
    assert found == named


def test_a_trace_has_nothing_of_the_query() -> None:
    found = conventions.asked(call(SPEECH, PASSED))

    assert found[conventions.OPERATION] == OTHER
    assert found[conventions.PATH] == "/v1/audio/speech"
