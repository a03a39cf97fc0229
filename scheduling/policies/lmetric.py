"""LMetric: what an engine would have to read, times the calls that it would have.

Two things that matter, the cache and the load, multiplied: what either weighs against the other cancels out
when engines are compared, so there is nothing to tune.

    prefill, plain   tokens of prompts that are unread there, and of this one what is not cached
    decode           this prompt's, which are alike everywhere: fewest calls

times the calls there, this one included, so that an idle engine with a part of the prompt is not like one
without. Equals are drawn.

Source: Zhang et al., LMetric (arXiv 2603.15202): new prefill tokens x batch size.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.account import calls_there, unread_tokens_there
from pdgate.scheduling.decision_trace import HIGHEST_SCORE, Rule, Weighed
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.pipeline.scorers import Best
from pdgate.scheduling.pipeline.shortlist import ALL, Shortlist
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

NOTHING: Final[Mapping[str, int]] = {}


class LMetric(Policy):
    def __init__(self, context: PolicyContext) -> None:
        self._prefixes = None if context.role is Role.DECODE else context.prefixes
        self.needs_prefixes = self._prefixes is not None
        self._reads = context.role is not Role.DECODE
        self._shortlist = Shortlist(self._prefixes, context.random)
        self._picker = Best(context.random)

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        if len(endpoints) > ALL:
            endpoints = self._shortlist.of(call, endpoints)
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)

        def score(call: Call, endpoint: Endpoint) -> float:
            return -self._new_tokens(call, endpoint, matched) * (calls_there(endpoint) + 1)

        return self._picker.among(call, endpoints, score)

    def explain(
        self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None
    ) -> Sequence[Weighed]:
        matched = NOTHING if self._prefixes is None else self._prefixes.matched(call)
        said = []
        for one in endpoints:
            tokens, calls = self._new_tokens(call, one, matched), calls_there(one) + 1
            why = f"{tokens} tokens to read x {calls} calls"
            values = {"tokens": tokens, "calls": calls}
            said.append(Weighed(one.instance.id, -tokens * calls, why, values))
        return said

    def rule(self, call: Call, endpoints: Sequence[Endpoint], peer: Instance | None = None) -> Rule:
        return HIGHEST_SCORE

    def _new_tokens(self, call: Call, endpoint: Endpoint, matched: Mapping[str, int]) -> int:
        uncached = call.prompt_tokens - matched.get(endpoint.instance.id, 0)
        return uncached + unread_tokens_there(endpoint) if self._reads else max(1, uncached)
