"""Power of two choices: the less loaded of two drawn at random.

Nearly as even as looking at all of them, and several gateways that do not know of each
other do not run to the same instance.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.least_loaded import load, weighed
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

RULE: Final = (Step("drawn", count=2), *HIGHEST_SCORE, Step("drawn"))


class RandomTwo(Policy):
    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._drawn: Sequence[Endpoint] = ()

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context.random)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]
        self._drawn = self._random.sample(endpoints, 2)
        return min(self._drawn, key=load)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        drawn = {one.instance.id: n for n, one in enumerate(self._drawn, 1)}
        said = []
        for one in endpoints:
            turn = drawn.get(one.instance.id)
            said.append(weighed(one) if turn is None else weighed(one, drawn=turn))
        return said

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        return RULE
