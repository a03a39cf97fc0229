"""A policy that knows what the other workers have in flight."""

from collections import Counter
from collections.abc import Callable, Sequence

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.decision_trace import Rule, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.partners import Partners
from pdgate.scheduling.policy import Policy


class LooksAround(Policy):
    """Chooses as another policy does, once `take_in` has brought the accounts up to date."""

    def __init__(self, policy: Policy, take_in: Callable[[], None]) -> None:
        self._policy = policy
        self.name = policy.name
        self.needs_prefixes = policy.needs_prefixes
        self._take_in = take_in

    @property
    def passed_over(self) -> Counter[str] | None:
        return self._policy.passed_over

    @passed_over.setter
    def passed_over(self, counter: Counter[str] | None) -> None:
        self._policy.passed_over = counter

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        self._take_in()
        return self._policy.choose(call, endpoints)

    def choose_beside(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance) -> Endpoint:
        self._take_in()
        return self._policy.choose_beside(call, endpoints, peer)

    def choose_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Endpoint:
        self._take_in()
        return self._policy.choose_ahead(call, endpoints, partners)

    def partners(self, call: Call, endpoints: Sequence[Endpoint]) -> Partners | None:
        self._take_in()
        return self._policy.partners(call, endpoints)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        return self._policy.explain(call, endpoints, peer)

    def explain_ahead(
        self, call: Call, endpoints: Sequence[Endpoint], partners: Partners
    ) -> Sequence[Weighed]:
        return self._policy.explain_ahead(call, endpoints, partners)

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        return self._policy.rule(call, endpoints, peer)
