"""What operators see of the replicas: a word on /ready, numbers on /metrics."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.replicas.exchange import Exchange, State
from pdgate.gateway.replicas.far_prompts import FarPrompts
from pdgate.scheduling.instances import Instances


class ReplicaStatus(Collector):
    """
    Attributes:
        exchange, prompts: Run for as long as the gateway does.
    """

    def __init__(
        self, exchange: Exchange, instances: Instances, prompts: FarPrompts | None = None
    ) -> None:
        self.exchange = exchange
        self.prompts = prompts
        self._instances = instances

    def as_json(self) -> dict[str, str | int]:
        """Without a reason: /ready is for everybody, and reasons name addresses."""
        return {"state": self.exchange.state, "others": len(self.exchange.load.replicas)}

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        load = self.exchange.load
        refused = load.refused + (0 if self.prompts is None else self.prompts.refused)
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
            "pdgate_replicas_refused", "What a replica told and nobody can use.", refused
        )
        if self.prompts is not None:
            yield _prompts(self.prompts)
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


def _prompts(told: FarPrompts) -> CounterMetricFamily:
    found = CounterMetricFamily(
        "pdgate_replica_prompts",
        "Which prompts went where: told to other gateways, heard of them, or dropped untold.",
        labels=("happened",),
    )
    found.add_metric(("told",), told.told)
    found.add_metric(("heard",), told.heard)
    found.add_metric(("dropped",), told.dropped)
    return found
