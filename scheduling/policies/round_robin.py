"""Round robin: each in turn."""

from collections.abc import Sequence

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.decision_trace import Weighed
from pdgate.scheduling.policy import Policy


class RoundRobin(Policy):
    def __init__(self) -> None:
        self._turn = 0

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        self._turn += 1
        return candidates[self._turn % len(candidates)]

    def explain(
        self, call: Call, candidates: Sequence[Candidate], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        return [Weighed(candidate.instance.id, why="each in turn") for candidate in candidates]
