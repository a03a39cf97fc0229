"""Former name of pdgate.scheduling.pipeline.pickers."""

from pdgate.scheduling.former import former

__getattr__ = former(__name__, "pdgate.scheduling.pipeline.pickers", {"Pick": "Picker"})
