"""The former name of `scheduling.endpoint`, for policies of others; it goes with 0.3."""

from pdgate.scheduling.former import former

__getattr__ = former(__name__, "pdgate.scheduling.endpoint", {"Candidate": "Endpoint"})
