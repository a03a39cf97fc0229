"""What is counted of waiting calls; how long they waited is in `pdgate_stage_seconds`."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.admission.gate import Gate


class AdmissionBooks(Collector):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        waiting = GaugeMetricFamily(
            "pdgate_calls_waiting", "Calls that wait until engines have room.", labels=("model",)
        )
        for model, count in self._gate.waiting():
            waiting.add_metric((model,), count)
        yield waiting
        refused = CounterMetricFamily(
            "pdgate_calls_turned_away",
            "Calls that were refused because too many came, by why.",
            labels=("model", "reason"),
        )
        for (model, reason), count in self._gate.refused.items():
            refused.add_metric((model, reason), count)
        yield refused
