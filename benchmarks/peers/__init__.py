"""How other routers choose, as policies that our simulator can run beside ours.

    cache_aware   vllm-router and sglang-router
    dynamo        NVIDIA Dynamo's KV router
    llm_d         llm-d's endpoint picker

Formulas and numbers are theirs, with their source; what they ask is answered by our account and
our prefix index. Both are exact here and never late, which theirs are not, so these policies do
no worse here than where they come from.
"""

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.peers.cache_aware import CacheAware
from benchmarks.peers.dynamo import Dynamo, softmax_dynamo
from benchmarks.peers.llm_d import llm_d, llm_d_pd
from pdgate.scheduling.policy import Policy, load
from pdgate.scheduling.policy_context import PolicyContext

PEERS: Final[Mapping[str, Callable[[PolicyContext], Policy]]] = {
    "cache_aware": CacheAware.made,
    "dynamo": Dynamo.made,
    "dynamo_softmax": softmax_dynamo,
    "llm_d": llm_d,
    "llm_d_pd": llm_d_pd,
}


def load_any(name: str, context: PolicyContext) -> Policy:
    """A peer's policy, or one of ours."""
    peer = PEERS.get(name)
    return load(name, context) if peer is None else peer(context)
