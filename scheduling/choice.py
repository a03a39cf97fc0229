"""Former name of pdgate.scheduling.decision_trace."""

from pdgate.scheduling.former import former

__getattr__ = former(__name__, "pdgate.scheduling.decision_trace", {"Choice": "DecisionTrace"})
