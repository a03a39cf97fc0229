"""Former name of what is pickers in pdgate.scheduling.pipeline.scorers."""

from pdgate.scheduling.former import former

__getattr__ = former(__name__, "pdgate.scheduling.pipeline.scorers", {})
