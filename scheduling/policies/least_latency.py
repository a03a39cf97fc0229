"""Least latency: the engine that makes the caller wait least, as far as their speed is known.

Prefill and plain engines by when the first token would come: behind what is unread there, and
what this prompt has that the engine has not cached. Decode engines by how long a step would take.
"""

from pdgate.protocols.instance import Role
from pdgate.scheduling.pipeline import Best, Pipeline
from pdgate.scheduling.pipeline.scorers import first_token_soon, fits, steps_quick
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext

NEAR = 0.05


def least_latency(context: PolicyContext) -> Policy:
    soon, quick = (1.0, first_token_soon(context)), (1.0, steps_quick(context))
    match context.role:
        case Role.DECODE:
            return Pipeline(filters=[fits], scorers=[quick], picker=Best(context.random), near=NEAR)
        case Role.PREFILL:
            prefer = [soon]
        case _:
            prefer = [soon, quick]
    return Pipeline(
        filters=[fits], scorers=prefer, picker=Best(context.random), prefixes=context.prefixes
    )
