"""Projected KV: most of it left, once the engine has this call and all that is on its way there.

Decode ends where memory does: an engine that runs out of it makes calls wait, or starts some of
them again. Engines that say nothing of their memory are compared by the tokens that are in flight.
"""

from pdgate.scheduling.pipeline import Best, Pipeline
from pdgate.scheduling.pipeline.scorers import fits, room
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

NEAR = 0.05


def projected_kv(context: PolicyContext) -> Policy:
    return Pipeline(filters=[fits], scorers=[(1.0, room)], picker=Best(context.random), near=NEAR)
