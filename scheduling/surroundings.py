"""Former name of pdgate.scheduling.policy_context."""

from pdgate.scheduling.former import former

__getattr__ = former(
    __name__, "pdgate.scheduling.policy_context", {"Surroundings": "PolicyContext"}
)
