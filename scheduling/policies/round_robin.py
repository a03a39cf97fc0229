"""Round robin: each in turn."""

from collections.abc import Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy

RULE: Final = (Step("turn"),)


class RoundRobin(Policy):
    def __init__(self) -> None:
        self._turn = 0

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        self._turn += 1
        return endpoints[self._turn % len(endpoints)]

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        count = len(endpoints)
        turns = ((n - self._turn) % count for n in range(count))
        return [
            Weighed(one.instance.id, why="each in turn", values={"turn": turn})
            for one, turn in zip(endpoints, turns, strict=True)
        ]

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        return RULE
