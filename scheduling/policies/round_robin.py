"""Round robin: each in turn."""

from collections.abc import Sequence

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy


class RoundRobin(Policy):
    def __init__(self) -> None:
        self._turn = 0

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        self._turn += 1
        return endpoints[self._turn % len(endpoints)]

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        return [Weighed(endpoint.instance.id, why="each in turn") for endpoint in endpoints]
