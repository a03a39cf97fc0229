"""Prefix affinity: most of the prompt cached, unless others have much less to do: match - load.

(1.0, cached_share)   all of the prompt is worth as much as
(1.0, idleness)       MANY_TOKENS in flight there instead of none, twice
"""

from pdgate.scheduling.pipeline import Best, Pipeline
from pdgate.scheduling.pipeline.scorers import cached_share, fits, idleness
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext


def prefix_then_load(context: PolicyContext) -> Policy:
    return Pipeline(
        filters=[fits],
        scorers=[(1.0, cached_share(context)), (1.0, idleness)],
        picker=Best(context.random),
        prefixes=context.prefixes,
    )
