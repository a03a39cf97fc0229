"""Policies as a pipeline: filters, scorers, a picker.

    def prefix_then_load(context: PolicyContext) -> Policy:
        return Pipeline(
            filters=[fits],
            scorers=[(1.0, cached_share(context)), (1.0, idleness)],
            picker=Best(context.random),
        )

pipeline    filters, then scorers, then a picker
pickers     best, one of two, or by lot
scorers     what is said of an engine, for all policies alike
shortlist   the engines that are looked at, among very many; and by what they can be near
"""

from pdgate.scheduling.pipeline.pickers import Best, Picker, PowerOfTwo, Softmax
from pdgate.scheduling.pipeline.pipeline import Pipeline

__all__ = ["Best", "Picker", "Pipeline", "PowerOfTwo", "Softmax"]
