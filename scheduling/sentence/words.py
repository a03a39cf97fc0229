"""Former name of what is filters and scorers of load in pdgate.scheduling.pipeline.scorers."""

from pdgate.scheduling.former import former

__getattr__ = former(__name__, "pdgate.scheduling.pipeline.scorers", {})
