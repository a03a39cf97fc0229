"""The least in flight, in tokens.

A call counts with its prompt and with TOKENS_PER_CALL for the answer that nobody knows
the length of; so prefill is balanced by prompt length, and decode, whose prompts are
read already, is not blind to many short ones. Equals take turns.
"""

from collections.abc import Sequence

from pdgate.protocols.call import Call
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.policy import Policy

TOKENS_PER_CALL = 256


def load(candidate: Candidate) -> int:
    return candidate.tokens + candidate.calls * TOKENS_PER_CALL


class LeastLoaded(Policy):
    def __init__(self) -> None:
        self._turn = 0

    def choose(self, call: Call, candidates: Sequence[Candidate]) -> Candidate:
        self._turn += 1
        first = self._turn % len(candidates)
        return min((*candidates[first:], *candidates[:first]), key=load)
