"""What operators see of the replicas: a word on /ready, numbers on /metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.replicas.exchange import Exchange, State
from pdgate.scheduling.instances import Instances


class ReplicaStatus(Collector):
    """
    Attributes:
        exchange: Runs for as long as the gateway does.
    """

    def __init__(self, exchange: Exchange, instances: Instances) -> None:
        self.exchange = exchange
        self._instances = instances

    def as_json(self) -> dict[str, str | int]:
        """Without a reason: /ready is for everybody, and reasons name addresses."""
        return {"state": self.exchange.state, "others": len(self.exchange.load.replicas)}

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        load = self.exchange.load
        yield GaugeMetricFamily(
            "pdgate_replicas", "Other gateways whose load counts here.", len(load.replicas)
        )
        yield GaugeMetricFamily(
            "pdgate_replicas_degraded",
            "1 while replicas cannot tell each other their load.",
            float(self.exchange.state is not State.CURRENT),
        )
        yield CounterMetricFamily(
            "pdgate_replicas_losses", "How often the replicas were lost.", self.exchange.losses
        )
        yield CounterMetricFamily(
            "pdgate_replicas_refused", "What a replica told and nobody can use.", load.refused
        )
        calls = GaugeMetricFamily(
            "pdgate_instance_replica_calls",
            "Legs of other gateways in flight at an instance.",
            labels=("instance", "role"),
        )
        for candidate in self._instances:
            shared = candidate.shared
            number = 0 if shared is None else shared.far.calls
            calls.add_metric((candidate.instance.id, candidate.instance.role.value), number)
        yield calls
