"""cache_aware of vllm-router and sglang-router: affinity while loads are alike.

    max - min > 64 and max > 1.5 * min    whoever has fewest calls
    match / prompt > 0.3                  whoever has most of the prompt
    else                                  whoever has fewest calls

Loads are calls in flight, all equally heavy. The same policy serves both roles unless another is
named.

Source: vllm-project/router at 16917f4, src/policies/cache_aware.rs,
select_worker_cache_aware_with_decision; for low matches sglang-router takes the smallest tree instead.
Thresholds: the command line's defaults (sgl-project/sglang, sgl-model-gateway/src/main.rs); the
library's own are 0.5, 32 and 1.1.
"""

from collections.abc import Sequence
from typing import Final

from pdgate.protocols.call import Call
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext, Prefixes

CACHE_THRESHOLD: Final = 0.3
BALANCE_ABS_THRESHOLD: Final = 64
BALANCE_REL_THRESHOLD: Final = 1.5


class CacheAware(Policy):
    needs_prefixes = True

    def __init__(self, prefixes: Prefixes | None) -> None:
        self._prefixes = prefixes

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context.prefixes)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        # The first of equals, as Rust's min_by_key has it.
        least = min(endpoints, key=_calls)
        low, high = least.calls, max(map(_calls, endpoints))
        if high - low > BALANCE_ABS_THRESHOLD and high > low * BALANCE_REL_THRESHOLD:
            return least
        matched = {} if self._prefixes is None else self._prefixes.matched(call)
        best = max(endpoints, key=lambda one: matched.get(one.instance.id, 0))
        match = matched.get(best.instance.id, 0)
        return best if match > CACHE_THRESHOLD * call.prompt_tokens else least


def _calls(endpoint: Endpoint) -> int:
    return endpoint.calls
