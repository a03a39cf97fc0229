"""The connector's numbers in the classes in which vLLM collects and shows them.

Source: vLLM 0.32.0, distributed/kv_transfer/kv_connector/v1/metrics.py.
"""

from collections.abc import Mapping
from typing import Any

from pdgate.engine.vllm import metrics, surface


class VllmStats(surface.KVConnectorStats):  # type: ignore[misc]
    data: metrics.Numbers

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: Any) -> "VllmStats":
        return VllmStats(metrics.merged(self.data, other.data))

    def reduce(self) -> Mapping[str, float]:
        return {name: round(value, 3) for name, value in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(surface.KVConnectorPromMetrics):  # type: ignore[misc]
    def __init__(
        self, vllm_config: Any, types: Any, labels: list[str], values: dict[int, list[object]]
    ) -> None:
        super().__init__(vllm_config, types, labels, values)

        def per_engine(make: Any, name: str, about: str) -> Any:
            metric = make(name=metrics.PREFIX + name, documentation=about, labelnames=labels)
            return surface.create_metric_per_engine(metric, values)

        counters, gauges = metrics.COUNTERS.items(), metrics.GAUGES.items()
        self._counters = {n: per_engine(self._counter_cls, n, about) for n, about in counters}
        self._gauges = {n: per_engine(self._gauge_cls, n, about) for n, about in gauges}
        self._last: dict[int, metrics.WorkerGauges] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, counter in self._counters.items():
            counter[engine_idx].inc(transfer_stats_data.get(name, 0))
        last = self._last.setdefault(engine_idx, metrics.WorkerGauges())
        for name, value in last.after(transfer_stats_data).items():
            self._gauges[name][engine_idx].set(value)
