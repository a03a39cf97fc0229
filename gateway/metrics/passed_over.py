"""How often no engine met a condition of a policy, on /metrics.

A policy that keeps only some engines passes over the condition that would leave it none: the call
goes somewhere all the same. So this says how often callers got less than they were to get.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from pdgate.protocols.instance import Role


class PassedOverMetrics(Collector):
    def __init__(self, passed_over: Mapping[tuple[Role, str], Counter[str]]) -> None:
        """Role and name of a policy -> condition -> how often."""
        self._passed_over = passed_over

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(
            "pdgate_policy_passed_over",
            "Choices for which no engine met a condition of the policy.",
            labels=("role", "policy", "condition"),
        )
        for (role, policy), conditions in self._passed_over.items():
            for condition, times in conditions.items():
                family.add_metric((role.value, policy, condition), times)
        yield family
