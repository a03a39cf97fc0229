"""Power of two choices: the less loaded of two drawn at random.

Nearly as even as looking at all of them, and several gateways that do not know of each
other do not run to the same instance.
"""

from collections.abc import Sequence
from random import Random

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policies.least_loaded import load, weighed
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext


class RandomTwo(Policy):
    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context.random)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        if len(endpoints) == 1:
            return endpoints[0]
        return min(self._random.sample(endpoints, 2), key=load)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        """Which two were drawn is forgotten; the chosen one was no worse than the other."""
        return [weighed(endpoint) for endpoint in endpoints]
