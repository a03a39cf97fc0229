"""What became of traces, on /metrics."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector


class Counts(Protocol):
    """Traces: that the collector took, that it did not take, that found the line full."""

    sent: int
    lost: int
    dropped: int


class TraceBooks(Collector):
    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        traces = CounterMetricFamily(
            "pdgate_traces", "Calls that were traced, by what became of it.", labels=("result",)
        )
        for result in ("sent", "lost", "dropped"):
            traces.add_metric((result,), getattr(self._counts, result))
        yield traces
