"""What the prefix index believes, and what it takes to know it."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.scheduling.prefix.index import PrefixIndex


class PrefixMetrics(Collector):
    def __init__(self, index: PrefixIndex) -> None:
        self._index = index

    def collect(self) -> Iterator[Metric]:
        index = self._index
        tokens = CounterMetricFamily(
            "pdgate_prompt_tokens",
            "Of prompts that engines were to read, as it was expected when they were chosen.",
            labels=("expected",),
        )
        tokens.add_metric(("cached",), index.cached_tokens)
        tokens.add_metric(("uncached",), index.read_tokens - index.cached_tokens)
        yield tokens
        yield GaugeMetricFamily(
            "pdgate_prefix_index_bytes", "Memory of the prefix index.", index.bytes
        )
        yield GaugeMetricFamily(
            "pdgate_prefix_index_blocks",
            "Blocks of prompts that some engine is believed to have cached.",
            index.blocks,
        )
        yield CounterMetricFamily(
            "pdgate_prefix_index_evicted_blocks",
            "Blocks of engines that were forgotten, as they or the index could not hold more.",
            index.evictions,
        )
