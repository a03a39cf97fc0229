"""Which side engines serve, how hard they are pressed, and how often that has changed."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.adaptive.adapting import Adapting
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.roles import SIDES


class RoleBooks(Collector):
    def __init__(self, adapting: Adapting, candidates: Iterable[Candidate]) -> None:
        self._adapting = adapting
        self._candidates = candidates

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        side = GaugeMetricFamily(
            "pdgate_instance_side",
            "1 for the side that an instance with role both serves.",
            labels=("instance", "side"),
        )
        for candidate in self._candidates:
            if candidate.instance.role is Role.BOTH:
                side.add_metric((candidate.instance.id, self._adapting.sides.of(candidate)), 1.0)
        yield side
        pressure = GaugeMetricFamily(
            "pdgate_side_pressure",
            "How near engines of a side are to what they should not exceed, which is 1.",
            labels=("model", "side"),
        )
        for group in self._adapting.roles.groups():
            for one in SIDES:
                key = (group_name(group), one.value)
                pressure.add_metric(key, self._adapting.roles.pressure(group, one).now)
        yield pressure
        changes = CounterMetricFamily(
            "pdgate_role_changes",
            "How often an instance was turned to a side.",
            labels=("instance", "to"),
        )
        both = [one.instance.id for one in self._candidates if one.instance.role is Role.BOTH]
        turned = {(name, side.value): 0 for name in both for side in SIDES}
        turned.update({(name, to): times for (name, to), times in self._adapting.counted.items()})
        for key, times in turned.items():
            changes.add_metric(key, times)
        yield changes


def group_name(group: object) -> str:
    """Of a group of engines, for operators: the models that it serves."""
    assert isinstance(group, tuple)
    return ",".join(sorted(group[1]))
