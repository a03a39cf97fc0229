"""What became of the engines' health, and of the process itself, on /metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.lifecycle.drain import Drain
from pdgate.gateway.lifecycle.reload import Reload
from pdgate.gateway.metrics.known import EJECTIONS, RELOADS
from pdgate.scheduling.instances import Instances


class HealthMetrics(Collector):
    def __init__(self, instances: Instances, drain: Drain, reload: Reload) -> None:
        self._instances = instances
        self._drain = drain
        self._reload = reload

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        state = GaugeMetricFamily(
            "pdgate_instance_state",
            "1 for the state that an instance is in.",
            labels=("instance", "role", "state"),
        )
        ejections = CounterMetricFamily(
            "pdgate_instance_ejections",
            "How often an instance was taken out.",
            labels=("instance", "role", "why"),
        )
        for candidate in self._instances:
            key = (candidate.instance.id, candidate.instance.role.value)
            state.add_metric((*key, candidate.state), 1.0)
            for why, times in {**dict.fromkeys(EJECTIONS, 0), **candidate.ejections}.items():
                ejections.add_metric((*key, why), times)
        yield state
        yield ejections
        yield GaugeMetricFamily(
            "pdgate_draining",
            "1 while no new calls are taken, before the end.",
            float(self._drain.began is not None),
        )
        reloads = CounterMetricFamily(
            "pdgate_reloads", "Configurations that were read again.", labels=("result",)
        )
        for result, times in {**dict.fromkeys(RELOADS, 0), **self._reload.results}.items():
            reloads.add_metric((result,), times)
        yield reloads
