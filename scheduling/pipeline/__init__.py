"""Policies as a pipeline: filters, scorers, a picker.

    def prefix_then_load(context: PolicyContext) -> Policy:
        return Pipeline(
            filters=[fits],
            scorers=[(1.0, cached_share(context)), (1.0, idleness)],
            picker=Best(context.random),
        )

pipeline    filters, then scorers, then a picker
scorers     filters and scorers, which say something of an engine, for all policies alike; and pickers:
            best, one of two, or by lot
shortlist   the engines that are looked at, among very many; and by what they can be near
"""

from pdgate.scheduling.pipeline.pipeline import Pipeline
from pdgate.scheduling.pipeline.scorers import Best, Picker, PowerOfTwo, Softmax

__all__ = ["Best", "Picker", "Pipeline", "PowerOfTwo", "Softmax"]
