"""Conditional disaggregation: is a call worth splitting? Asked for every call that could be.

decision   what was decided, why, and what was expected
rules      always, never, uncached_tokens_above
auto       the way that is expected to keep callers waiting for less

Reading a short prompt on decode disturbs its streams less than a hand-over costs, and a
prefill engine with a queue is no help.
"""

from pdgate.scheduling.disaggregation.auto import Auto
from pdgate.scheduling.disaggregation.decision import Decision, Taken
from pdgate.scheduling.disaggregation.rules import Always, Never, SplitRule, UncachedTokensAbove

__all__ = ["Always", "Auto", "Decision", "Never", "SplitRule", "Taken", "UncachedTokensAbove"]
