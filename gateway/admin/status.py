"""What operators see of the Redis that replicas share: a word on /ready, a number on /metrics.

waiting    it has not answered since this process started: what was configured is in force
degraded   it does not answer: what was last said is in force, and nothing new can be said
current    it answers, and what it says is in force
"""

from collections.abc import Iterator
from enum import StrEnum

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.gateway.admin.dial import Dial
from pdgate.gateway.config.sections import Disaggregation


class State(StrEnum):
    WAITING = "waiting"
    DEGRADED = "degraded"
    CURRENT = "current"


class SharedStatus(Collector):
    def __init__(self, dial: Dial[Disaggregation]) -> None:
        self._dial = dial

    def as_json(self) -> dict[str, str]:
        """Without a reason: /ready is for everybody, and reasons name addresses."""
        return {"state": self.state}

    @property
    def state(self) -> State:
        match self._dial.reachable:
            case None:
                return State.WAITING
            case True:
                return State.CURRENT
        return State.DEGRADED

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield GaugeMetricFamily(
            "pdgate_redis_degraded",
            "1 while the Redis that replicas share does not answer.",
            float(self.state is not State.CURRENT),
        )
