"""Least load: the fewest tokens in flight.

A call counts with its prompt and with TOKENS_PER_CALL for the answer, whose length is
not known; so prefill is balanced by prompt length, and decode, whose prompts are
read already, is not blind to many short ones. What an engine says that others have there
counts as well: their calls, and what of their prompts is not read yet. Equals take turns,
each round of which begins with another one: two roles that counted alike would meet in a
few pairs only.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance
from pdgate.scheduling.account import calls_there
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule, Step, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline.scorers import in_flight
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext


def load(endpoint: Endpoint) -> int:
    return in_flight(endpoint) + endpoint.beyond.unread_tokens


def weighed(endpoint: Endpoint, **values: float) -> Weighed:
    tokens = endpoint.tokens + endpoint.beyond.unread_tokens
    why = f"{calls_there(endpoint)} calls with {tokens} tokens in flight"
    return Weighed(endpoint.instance.id, -load(endpoint), why, values)


RULE: Final = (*HIGHEST_SCORE, Step("turn"))


class LeastLoaded(Policy):
    def __init__(self, random: Random | None = None) -> None:
        self._random = random or Random()
        self._turn = 0
        self._begin = 0

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context.random)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        count = len(endpoints)
        self._turn += 1
        if self._turn >= count:
            self._turn, self._begin = 0, self._random.randrange(count)
        first = (self._begin + self._turn) % count
        return min((*endpoints[first:], *endpoints[:first]), key=load)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        first, count = self._begin + self._turn, len(endpoints)
        # How many have their turn before it, if no other list was chosen from.
        return [weighed(one, turn=(n - first) % count) for n, one in enumerate(endpoints)]

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        return RULE
